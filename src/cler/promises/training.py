"""What runs promise of a method with a regularizer or without one, and of a teacher: a function each."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from cler.engine import Control, Run, checkpoint, train
from cler.engine.evaluate import evaluate
from cler.methods import METHODS
from cler.promises.outcome import BrokenPromise, demand
from cler.promises.state import differences, named, snapshot, tensors_of
from cler.promises.toy import colors, in_later_task, make_run, make_short_run, trained
from cler.regularizers import REGULARIZERS

TRIES: Sequence[Mapping[str, Any]] = (
    {"lr": 0.03, "epochs": 3},
    {"lr": 0.003, "epochs": 6},
    {"lr": 0.1, "epochs": 4},
)
"""Settings with one of which the colors have to be learned."""
FEWER = {"inversion_steps": 10, "noise": 8, "refinement_epochs": 1}
"""Shorter loops inside a step for learning, of the methods that have them."""


def learns(
    method: str,
    regularizer: str = "none",
    *,
    tries: Sequence[Mapping[str, Any]] = TRIES,
    least: float = 30.0,
    kept: float | None = None,
    seeds: Sequence[int] = (1, 2),
    **changes: Any,
) -> None:
    """It learns four colors in two tasks better than chance, with one of some learning rates.

    Asked for are, in percent: more than 65 where the task is told, of which chance is 50, and more than `least` over
    all classes, of which chance is 25; or, with `kept`, of a method with a buffer more than that of the first task at
    the end, whatever comes of the last: in so few steps X-DER and DualNet often never predict their newest classes.
    """
    data, found = changes.pop("data", None) or colors(size=16, train_images=32), []
    if regularizer != "none":
        weight = REGULARIZERS[regularizer].weight
        tries = [*tries, *({**each, "weight": 0.01 * weight} for each in tries[:1] if "weight" not in each)]
    for each in tries:
        common: dict[str, Any] = (
            {"data": data, "loops": FEWER, "batch": 8, "replay_batch": 16, "buffer": 32} | changes | dict(each)
        )
        runs = [trained(method, regularizer, seed, **common) for seed in seeds]
        failure = next((run.failure for run in runs if run.failure), None)
        found.append(failure or _shortfall(method, runs, least, kept))
        if found[-1] is None:
            return
    before = make_short_run(method, regularizer, seeds[-1], **common).method.network.parameters()
    if all(map(torch.equal, before, runs[-1].method.network.parameters())):
        raise BrokenPromise("no step changes the network's weights: observe has to call self.descend(terms)")
    told = "; ".join(f"{_settings(each)}: {why}" for each, why in zip(tries, found, strict=True))
    raise BrokenPromise(f"four colors in two tasks are not learned: {told}")


def _settings(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in changes.items())


def _shortfall(method: str, runs: Sequence[Run], least: float, kept: float | None) -> str | None:
    """What is too low at the end, in words; None where nothing is."""
    told = fmean(fmean(run.accuracy["task_il"][-1]) for run in runs)
    if told <= 65:
        return f"{told:.0f} % correct when it is told the task, not above 65 % (chance is 50 %)"
    class_il = [run.accuracy["class_il"][-1] for run in runs]
    if METHODS[method].replays and kept is not None:
        first = fmean(row[0] for row in class_il)
        return None if first > kept else f"{first:.0f} % correct on the first task at the end, not above {kept:g} %"
    all_classes = fmean(map(fmean, class_il))
    return None if all_classes > least else f"{all_classes:.0f} % correct over all classes, not above {least:g} %"


def begins_from_the_seed(method: str, regularizer: str = "none", **changes: Any) -> None:
    """Initial weights and draws come from the seed, and building a run draws from no global generator."""
    state = torch.get_rng_state()
    first, again, other = (make_run(method, regularizer, seed, **changes) for seed in (3, 3, 4))
    demand(torch.equal(state, torch.get_rng_state()), "building a run moves PyTorch's global generator")
    same = differences(snapshot(first), snapshot(again))
    demand(not same, f"two runs with the same seed begin with different {named(same)}")
    changed = differences(snapshot(first), snapshot(other))
    demand("generator" in changed, "runs with different seeds have the same generator")
    if changes.get("network") is None or callable(changes["network"]):
        _demand_other_weights(changed, "begin")


def _demand_other_weights(changed: Sequence[str], verb: str) -> None:
    found = any(path.endswith("_parameters.weight") and "classifier" in path for path in changed)
    demand(
        found or any("_parameters" in path for path in changed),
        f"runs with different seeds {verb} with the same weights",
    )


def repeats(method: str, regularizer: str = "none", **changes: Any) -> None:
    """The same seed gives the same result, whatever the global generator is at; another seed gives another."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = trained(method, regularizer, seed=3, **changes)
        torch.manual_seed(2)
        again, other = (trained(method, regularizer, seed=seed, **changes) for seed in (3, 4))
    same = differences(snapshot(first), snapshot(again))
    demand(
        first.accuracy == again.accuracy and not same, f"two runs with the same seed end with different {named(same)}"
    )
    _demand_other_weights(differences(snapshot(first), snapshot(other)), "end")


def equals_alone(wanted: Sequence[tuple[str, str, int]], **changes: Any) -> None:
    """Runs of these methods, regularizers and seeds, trained side by side, end as each does alone."""
    together = [make_short_run(*each, **changes) for each in wanted]
    train(together)
    for each, beside in zip(wanted, together, strict=True):
        alone = trained(*each, **changes)
        demand(alone.complete, alone.failure or "a run does not reach its end")
        differing = differences(snapshot(beside), snapshot(alone))
        demand(
            beside.accuracy == alone.accuracy and not differing,
            f"seed {each[2]} beside other runs ends with other {named(differing)} than alone",
        )


def together_equals_alone(method: str, regularizer: str = "none", **changes: Any) -> None:
    """Two seeds side by side end as each does alone."""
    equals_alone([(method, regularizer, seed) for seed in (0, 1)], **changes)


class Stopped(Exception):  # noqa: N818 - it reads as what happened
    """A run that was to be stopped has been; it stands for `kill -9`."""


class StopAt(Control):
    """Writes the checkpoint of one moment, and stops there."""

    checkpoint_every = 0.0

    def __init__(self, folder: Path, position: tuple[int, int]) -> None:
        self.folder, self.position = folder, position

    def keep(self, run: Run) -> None:
        """Write a checkpoint where the run is to be stopped."""
        if (run.task, run.taken) == self.position:
            checkpoint.write(self.folder, checkpoint.take(run, {}))
            raise Stopped


def moments(run: Run) -> list[tuple[int, int]]:
    """Where to stop a run: at its first step, within its tasks, and between them."""
    within = [(task, max(1, steps // 2)) for task, steps in enumerate(run.schedule)]
    return sorted({(0, 1), *within, *((task, 0) for task in range(1, len(run.schedule)))})


def resumes(
    method: str,
    regularizer: str = "none",
    *,
    stops: Sequence[tuple[int, int]] | None = None,
    folder: Path | None = None,
    **changes: Any,
) -> None:
    """Stopped within tasks and between them, and resumed from its files, it ends as if nothing had happened."""
    whole = trained(method, regularizer, **changes)
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        run = make_short_run(method, regularizer, **changes)
        for position in moments(whole) if stops is None else stops:
            _stop(run, StopAt(place, position))
            run = resumed(place, make_short_run(method, regularizer, **changes))
            demand((run.task, run.taken) == position, f"a run stopped at {position} resumes at {(run.task, run.taken)}")
    train([run])
    check_same(run, whole)


def _stop(run: Run, control: StopAt) -> None:
    try:
        train([run], control=control)
    except Stopped:
        return
    raise BrokenPromise(f"no checkpoint was asked for at task {control.position[0] + 1}, step {control.position[1]}")


def resumed(folder: Path, run: Run) -> Run:
    """A new run, standing where the checkpoint in the folder was taken."""
    said: list[str] = []
    found = checkpoint.find(folder, said.append)
    if found is None or said:
        raise BrokenPromise(f"its checkpoint cannot be read: {' '.join(said) or 'there is none'}")
    run.restore(found.state, found.accuracy, found.curves)
    return run


def check_same(run: Run, whole: Run) -> None:
    """Refuse a resumed run that is not to the last bit what it would have been, but for the time it took."""
    modes, wanted = _modes(run), _modes(whole)
    other = [name for name, training in modes.items() if wanted.get(name) != training]
    demand(not other, f"resumed, {named(other)} is in another mode: set it, by train() or eval(), in __init__")
    one, two = run.state(), whole.state()
    differing = differences(one.tensors, two.tensors)
    differing += [name for name in two.numbers if name != "run.seconds" and one.numbers.get(name) != two.numbers[name]]
    demand(not differing, f"resumed, it ends with other {named(differing)}")
    demand(run.accuracy == whole.accuracy, "resumed, it ends with other accuracies")
    demand(run.curves == whole.curves, "resumed, it ends with other accuracies within tasks")


def _modes(run: Run) -> dict[str, bool]:
    """Whether each network of the method and its teacher is in training mode, by its name."""
    owners = {"": run.method, "teacher's ": run.method.teacher}
    return {
        f"{prefix}{name}": each.training
        for prefix, owner in owners.items()
        for name, each in (vars(owner) if owner else {}).items()
        if isinstance(each, nn.Module)
    }


def answers_with_statistics_that_move(method: str, regularizer: str, **changes: Any) -> None:
    """As the running statistics of the network move, so do those of the network that answers."""
    run = make_run(method, regularizer, **changes)
    before = copy.deepcopy(run.method.answerer)
    in_later_task(run)
    pairs = zip(run.method.answerer.named_buffers(), before.buffers(), strict=True)
    still = [name for (name, now), then in pairs if name.endswith("running_mean") and torch.equal(now, then)]
    demand(
        not still,
        f"running statistics of the network that answers never change: {named(still)}; copy the network's in "
        "after_step, as in: for mine, its in zip(average.buffers(), network.buffers()): mine.copy_(its)",
    )


def evaluation_changes_nothing(method: str, regularizer: str = "none", **changes: Any) -> None:
    """Evaluation leaves everything as it was, and gives the same the second time."""
    watched, unwatched = (in_later_task(make_run(method, regularizer, **changes)) for _ in range(2))
    demand(watched.method.network.training, "a step leaves the network in evaluation mode: put it back into training")
    before, tasks = snapshot(watched), range(watched.stream.n_tasks)
    first = evaluate(watched.method, watched.stream, watched.views, tasks)
    moved = differences(before, snapshot(watched))
    demand(not moved, f"evaluation changes {named(moved)}")
    demand(watched.method.network.training, "after evaluation the network is no longer in training mode")
    again = evaluate(watched.method, watched.stream, watched.views, tasks)
    demand(first == again, "evaluation gives other accuracies the second time")
    for run in (watched, unwatched):
        for _ in range(3):
            run.step()
    demand(not differences(snapshot(watched), snapshot(unwatched)), "a run that was evaluated trains differently")
    demand(bool(differences(before, snapshot(watched))), "three steps change nothing")


def answers_by_the_image_alone(method: str, regularizer: str = "none", **changes: Any) -> None:
    """The logits of an image do not depend on which others are in the batch."""
    run = in_later_task(make_run(method, regularizer, **changes))
    run.method.network.eval()
    images = run.views.plain(run.stream.data.test_images[::5])
    with torch.no_grad():
        together = run.method.logits(images)
        alone = torch.cat([run.method.logits(image) for image in images.split(1)])
    wanted = (len(images), run.stream.n_classes)
    demand(together.shape == wanted, f"logits has to give a tensor (N, classes) {wanted}, not {tuple(together.shape)}")
    apart = float((together - alone).abs().max())
    demand(
        apart < 1e-5 * (1 + float(together.abs().max())), f"logits of an image change by {apart:.2g} with the others"
    )


def weighs_its_loss(method: str, regularizer: str, **changes: Any) -> None:
    """With twice the weight the loss of the regularizer is another one, unless it is zero."""
    weight = REGULARIZERS[regularizer].weight or 1.0
    found = []
    for factor in (1, 2):
        run = make_run(method, regularizer, weight=factor * weight, **changes)
        run.begin_task(0)
        found.append(run.method.learn(run._batch(torch.arange(8)))[regularizer].item())
    demand(found[0] != found[1] or found[0] == 0, "its loss is the same with twice the weight: multiply it by weight")


def leaves_images_and_labels_alone(method: str, regularizer: str, **changes: Any) -> None:
    """The regularizer changes none of what it is given in place: the method uses it too, and so does the buffer."""
    run = make_run(method, regularizer, **changes)
    given = _some(run)
    before = {name: each.clone() for name, each in given.items()}
    run.method.outputs(given["images"], pixels=given["pixels"], labels=given["labels"])
    changed = differences(before, given)
    demand(not changed, f"it changes the {' and '.join(changed)} that it is given: change a copy, as of x.clone()")


def moves_statistics(method: str, regularizer: str, **changes: Any) -> bool:
    """Whether a method's pass with it leaves other running statistics in the network than the pass without."""
    run = make_run(method, regularizer, **changes)
    alone, given = copy.deepcopy(run.method.network), _some(run)
    alone(given["images"])
    run.method.outputs(given["images"], pixels=given["pixels"], labels=given["labels"])
    pairs = zip(run.method.network.named_buffers(), alone.buffers(), strict=True)
    return any("running" in name and not torch.allclose(moved, once) for (name, moved), once in pairs)


def _some(run: Run) -> dict[str, torch.Tensor]:
    """Copies of some images as they are stored, with their labels, and as the network takes them."""
    pixels, labels = run.stream.data.train_images[::6].clone(), run.stream.data.train_labels[::6].clone()
    return {"images": run.views.plain(pixels), "pixels": pixels, "labels": labels}


def says_whether_it_moves_statistics(method: str, regularizer: str, **changes: Any) -> None:
    """The regularizer moves the running statistics of batch norm only where it says so."""
    (built,) = make_run(method, regularizer, **changes).method.regularizers
    moved = moves_statistics(method, regularizer, **changes)
    demand(
        moved == built.moves_statistics,
        "its own pass moves the running statistics of batch norm a second time: wrap it in frozen_statistics(network), "
        "or say moves_statistics = True"
        if moved
        else "it says moves_statistics = True, but leaves them alone",
    )


def leaves_learning_alone(method: str, regularizer: str = "none", *, teacher: str, **changes: Any) -> None:
    """A teacher that only answers changes neither the network nor what is drawn."""
    beside, alone = (trained(method, regularizer, teacher=each, **changes) for each in (teacher, "none"))
    changed = differences(tensors_of(beside.method.network), tensors_of(alone.method.network))
    demand(not changed, f"it says teaches = False, but the network learns something else with it: {named(changed)}")
    drawn = torch.equal(beside.generator.get_state(), alone.generator.get_state())
    demand(drawn, "it says teaches = False, but draws from the run's generator")
