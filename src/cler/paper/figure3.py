"""Figure 3: with CLER, do more parameters matter, are filters less redundant, do damaged networks recover sooner?

(a) and (b) analyze the network after the last task. (c) takes the network after six tenths of the tasks, sets some
filters of every convolution to zero, and learns the latest task again, counting the batches until its accuracy is back.
Where the paper leaves open what it measures, several definitions are tried. The distance of filters is also taken by
stage: the pretext loss does not reach the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from cler.config.registry import VIEWS
from cler.engine import Run
from cler.metrics import SCENARIOS
from cler.paper.analysis import Analysis, Findings, Measure, Panel, mean_of
from cler.paper.filters import importance, important_share, redundancy
from cler.paper.recovery import accuracy, drop_filters, recover
from cler.report.sheets import NAMES

BATCH = 10
"""Images in a batch on which importance is measured, which depends on the size of the batch."""
BATCHES = 200
"""Batches over which importance is averaged: 2000 images of all tasks, to save time; the paper uses all images."""
SHARES = (0.1, 0.3, 0.5)
"""Shares of the filters that are set to zero."""
DRAWN = SHARES[:2]
"""The shares that the figure has panels for."""
DROPS = 5
"""Repetitions for each share, each with other filters."""
STEPS = 200
"""Batches that are learned after filters are set to zero, at most."""
LIMITS = (50, STEPS)
"""Numbers of batches within which a network is to recover."""
STAGES = ("stem", "layer1", "layer2", "layer3", "layer4")
IMPORTANT, REDUNDANT = "more parameters are important", "the filters that pruning would remove are nearer to the others"
FRAGILE, QUICK = "losing filters costs more accuracy at first", "accuracy is back after fewer batches"


def probe(run: Run, task: int) -> dict[str, Any] | None:
    """Recovery after six tenths of the tasks, importance and redundancy after the last."""
    last = run.stream.tasks.number - 1
    found: dict[str, Any] = {}
    if task == max(0, round(0.6 * run.stream.tasks.number) - 1):
        found |= {"recovery": _recovery(run, task)}
    if task == last:
        network = deepcopy(run.method.network).eval()
        scores = importance(network, _images_of_all_tasks(run))
        found |= {
            "important parameters": important_share(scores),
            "important filters": important_share(scores, filters=True),
            "redundancy": redundancy(network),
        }
    return found or None


def _images_of_all_tasks(run: Run) -> list[tuple[Tensor, Tensor]]:
    """Batches of training images, not augmented, the same for every run."""
    stream = run.stream
    generator = torch.Generator(run.device).manual_seed(0)
    order = torch.randperm(len(stream.train_labels), generator=generator, device=run.device)
    batches = order[: len(order) // BATCH * BATCH].view(-1, BATCH)[:BATCHES]
    return [(run.views.plain(stream.data.train_images[each]), stream.train_labels[each]) for each in batches]


def _recovery(run: Run, task: int) -> dict[str, Any]:
    """Accuracy on the latest task: before filters are set to zero, right after, and after each batch from there."""
    test = run.stream.test(task)
    tested, of_class = (run.views.plain(test.pixels), test.labels), run.stream.tasks.of_class
    before = accuracy(deepcopy(run.method.network), tested, of_class).tolist()
    curves: dict[str, dict[str, list[list[float]]]] = {}
    for share in SHARES:
        curve = curves[str(share)] = {"class_il": [], "task_il": []}
        for drop in range(DROPS):
            generator = torch.Generator(run.device).manual_seed(drop)
            network = deepcopy(run.method.network).train()
            drop_filters(network, share, generator)
            batches = _batches(run, task, generator)
            recovered = recover(network, batches, tested, of_class=of_class, lr=run.method.setup.lr)
            for scenario, values in recovered.items():
                curve[scenario].append([round(value, 2) for value in values])
    return {"before": dict(zip(SCENARIOS, before, strict=True)), "after": curves}


def _batches(run: Run, task: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a task in a random order and augmented, drawn from a generator of their own."""
    data = run.stream.data
    for indices in run.stream.order(task, generator)[:STEPS]:
        images = VIEWS[run.views.augment](data.train_images[indices], generator)
        yield run.views.plain(images), run.stream.train_labels[indices]


def _important(run: Findings, *, what: str) -> list[float]:
    """The share of important parameters or filters of each 3×3 convolution, in order of depth."""
    return [share for name, share in _at_the_end(run)[f"important {what}"].items() if "shortcut" not in name]


def _distances(run: Findings, *, kind: str, stage: str = "") -> list[float]:
    """The distance of central filters of each 3×3 convolution, of a stage or of all, in order of depth."""
    layers = _at_the_end(run)["redundancy"].items()
    return [distances[kind] for name, distances in layers if "shortcut" not in name and name.startswith(stage)]


def _at_the_end(run: Findings) -> dict[str, Any]:
    return run.found[max(run.found)]


def _course(run: Findings, *, share: float, scenario: str) -> list[float]:
    """Accuracy after the damage and each batch, minus that before the damage, in points; mean over the repetitions."""
    drops, before = _drops(run, share, scenario)
    return [fmean(values) - before for values in zip(*drops, strict=True)]


def _points_lost(run: Findings, *, share: float, scenario: str) -> float:
    return -_course(run, share=share, scenario=scenario)[0]


def _batches_needed(run: Findings, *, share: float, scenario: str, limit: int) -> float:
    """Mean number of batches until the accuracy is back; where it is not back within so many, one more than these."""
    drops, before = _drops(run, share, scenario)
    if limit > LIMITS[0] and min(map(len, drops)) <= limit:
        raise KeyError(limit)  # so many were not learned
    cut = [drop[: limit + 1] for drop in drops]
    return fmean(next((step for step, value in enumerate(drop) if value >= before), len(drop)) for drop in cut)


def _drops(run: Findings, share: float, scenario: str) -> tuple[list[list[float]], float]:
    recovery = next(found["recovery"] for found in run.found.values() if "recovery" in found)
    return recovery["after"][str(share)][scenario], round(recovery["before"][scenario], 2)  # as the values after it are


def _measures_of_recovery() -> Iterator[Measure]:
    """The paper does not say which accuracy it measures: both are compared with its statements."""
    for scenario, name in NAMES.items():
        for share in SHARES:
            what, which = f"{share:.0%} of filters lost", f"{share:.0%}, {name}"
            lost = partial(_points_lost, share=share, scenario=scenario)
            yield Measure(f"{what}: points lost, {name}", lost, 2, {"jigsaw": "higher"}, FRAGILE, which)
            for limit in LIMITS:
                back = partial(_batches_needed, share=share, scenario=scenario, limit=limit)
                whole = f"{what}: batches to recover, of {limit}, {name}"
                yield Measure(whole, back, 1, {"jigsaw": "lower"}, QUICK, f"{which}, within {limit} batches")


def _measures_of_distance() -> Iterator[Measure]:
    """How far the filters that pruning would remove are from the others, in three norms, everywhere and by stage."""
    for kind, name in (("l1", "L1"), ("l2", "L2"), ("relative", "L1 over norm")):
        for stage in ("", *STAGES):
            which = f"{name}{f', {stage} alone' if stage else ''}"
            curve = partial(_distances, kind=kind, stage=stage)
            yield Measure(
                f"distance of central filters, {which}", mean_of(curve), 3, {"jigsaw": "lower"}, REDUNDANT, which
            )


def _panels_of_recovery() -> Iterator[Panel]:
    for scenario, name in NAMES.items():
        for share in DRAWN:
            course = partial(_course, share=share, scenario=scenario)
            yield Panel(
                f"{share:.0%} of filters lost, {name}", "batches learned", "change of accuracy, points", course, first=0
            )


parameters, filters = (partial(_important, what=what) for what in ("parameters", "filters"))
relative = partial(_distances, kind="relative")

ANALYSIS = Analysis(
    name="figure3",
    title="Figure 3: importance and redundancy of filters, and recovery after losing some",
    method="er-ace",
    regularizers=("none", "jigsaw"),
    probe=probe,
    panels=(
        Panel("Important parameters", "3×3 convolution", "share above the layer's mean, %", parameters),
        Panel("Distance of central filters", "3×3 convolution", "L1, over the mean norm", relative),
        *_panels_of_recovery(),
    ),
    measures=(
        Measure("important parameters, %", mean_of(parameters), 2, {"jigsaw": "higher"}, IMPORTANT, "parameters"),
        Measure("important filters, %", mean_of(filters), 2, {"jigsaw": "higher"}, IMPORTANT, "filters"),
        *_measures_of_distance(),
        *_measures_of_recovery(),
    ),
    note=(
        f"Importance is measured on {BATCH * BATCHES} training images of all tasks. A network that has not recovered "
        "after so many batches, or all of a task's, is counted with one batch more."
    ),
)
