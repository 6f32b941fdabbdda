"""`cler.check`: try the promises of one method, regularizer, teacher or network, and say which are not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import nn

from cler.config.registry import DATASETS, METHODS, NETWORKS, REGULARIZERS, STREAMS, TEACHERS, no_part
from cler.engine.evaluate import evaluate
from cler.errors import UsageError, one_line
from cler.methods.base import Method
from cler.nets.build import TIMM
from cler.promises import learners, networks, steps, training
from cler.promises.outcome import BrokenPromise, Outcome, Report
from cler.promises.rule import line_of_error
from cler.promises.toy import colors, in_later_task, make_run
from cler.regularizers.base import Entry, Regularizer, entry_of
from cler.runs.custom import name_network
from cler.runs.machine import threads
from cler.runs.usual_modes import usual_modes
from cler.streams.base import Stream
from cler.teachers.base import Teacher

Promise = Callable[..., None]
STEP = "can be built, takes its first steps, and answers"
TRAINING: Mapping[str, Promise] = {
    "its losses are finite numbers with names": steps.names_its_losses,
    "losses stay finite with the smallest batch that it can take": steps.takes_its_smallest_batch,
    "the one rule: no look at a tensor, no draw from elsewhere, same kernels, state in place": steps.keeps_the_rule,
    "the one rule in bfloat16": partial(steps.keeps_the_rule, precision="bf16"),
    "teachers and regularizers follow every step": steps.is_followed,
    "all that the loss reaches is trained": steps.trains_what_its_loss_reaches,
    "the rule in the first task, and a recorded step serves all with its recording_key": steps.recorded_step_serves,
    "initial weights and draws come from the seed": training.begins_from_the_seed,
    "the same seed gives the same result": training.repeats,
    "gives the same beside other runs as alone": training.together_equals_alone,
    "resumed in the middle of a task and between tasks, it ends the same to the bit": training.resumes,
    "evaluation changes nothing": training.evaluation_changes_nothing,
    "the logits of an image do not depend on the others in the batch": training.answers_by_the_image_alone,
    "a learner of it is saved and loaded to the bit, and takes more classes": learners.serves_a_learner,
    "learns a toy stream better than chance": training.learns,
}
"""In words, what is asked of a method with a regularizer, and of a regularizer or a teacher with a method."""
PENALIZING: Mapping[str, Promise] = {
    "moves the running statistics of batch norm only if it says so": training.says_whether_it_moves_statistics,
    "its loss is multiplied by its weight": training.weighs_its_loss,
    "leaves the images and labels that it is given as they are": training.leaves_images_and_labels_alone,
}
"""What is asked of a regularizer besides."""
MOVING: Mapping[str, Promise] = {
    "the running statistics of what answers follow the network's": training.answers_with_statistics_that_move,
}
"""What is asked of a teacher besides."""
ANSWERING: Mapping[str, Promise] = {
    "what is learned is the same without it": training.leaves_learning_alone,
}
"""What is asked of a teacher that does not teach: runs with it and without a teacher are trained once."""
BACKBONE: Mapping[str, Promise] = {
    "features and outputs have the shapes that they should": networks.gives_features_and_outputs,
    "no sub-module draws from the global generator": networks.draws_from_its_own_generator,
    "parts of a batch give what a pass for each gives": networks.parts_equal_passes,
    "pretext images leave outputs and running statistics alone": networks.pretext_images_are_silent,
    "a deep copy is the same network": networks.can_be_copied,
    "its state dict holds all of its state": networks.can_be_stored,
}
REMEDIES: Mapping[str, str] = {
    "backward through the graph a second time": "what is kept from a step, as in a buffer, keeps its graph: keep "
    "x.detach(), or update it under torch.no_grad()",
    "modified by an inplace operation": "a tensor is changed in place that its gradient needs: change a copy, as of "
    "x.clone()",
}
"""What to do about errors of PyTorch that say it at length, or not at all, by words in them."""
LONGEST = 400
"""Characters that are told of an error: a KeyError shows all numbers of a tensor."""
WITH_METHODS = ("er-ace", "finetune")
"""What a regularizer or a teacher is tried with."""
TEACHABLE = ("er-ace", "er")
"""What a teacher that teaches is tried with: a method that adds to its own loss, one whose loss it replaces."""


def check(thing: Any, *, each: Callable[[Outcome], None] | None = None) -> Report:
    """Test whether a method, regularizer, teacher or network keeps its promises, on a small made-up stream on the CPU.

    `thing` is a name; a subclass of `cler.Method`, `Regularizer`, `Teacher` or `Backbone`; a module; or a function that
    takes the number of outputs and returns a backbone. Returns a report that prints as a table and has `passed`. `each`
    is called with every outcome as soon as it is known.
    """
    kind, name, given = _find(thing)
    outcomes = []
    with usual_modes(), threads(1):  # which is quicker for what is as small
        for promise, keep in _promises(kind, name, given):
            outcomes.append(_outcome(promise, keep))
            if each is not None:
                each(outcomes[-1])
            if promise == STEP and outcomes[-1].failure is not None:
                break
    return Report(kind, name, tuple(outcomes))


def _find(thing: Any) -> tuple[str, str, Any]:
    """Kind, name, and what stands for it in a run."""
    if isinstance(thing, str):
        tables = {"method": METHODS, "regularizer": REGULARIZERS, "teacher": TEACHERS, "network": NETWORKS}
        found = [kind for kind, table in tables.items() if thing in table]
        if found or thing.startswith(TIMM):
            return (found or ["network"])[0], thing, thing
        if thing in DATASETS:
            raise UsageError(f"{thing} is a dataset: `cler data check {thing}` checks whether it can be used")
        if thing in STREAMS:
            raise _a_stream(thing)
        kinds = "method, regularizer, teacher or network"
        raise no_part(kinds, thing, [name for each in tables.values() for name in each])
    if isinstance(thing, type) and issubclass(thing, Method):
        METHODS.add(thing)
        return "method", thing.name, thing
    if isinstance(thing, type) and issubclass(thing, Teacher):
        TEACHERS.add(thing)
        return "teacher", thing.name, thing
    if isinstance(thing, Entry) or (isinstance(thing, type) and issubclass(thing, Regularizer)):
        entry = REGULARIZERS.add(thing if isinstance(thing, Entry) else entry_of(thing))
        return "regularizer", entry.name, entry
    if isinstance(thing, type) and issubclass(thing, Stream):
        raise _a_stream(thing.__name__)
    if isinstance(thing, nn.Module) or callable(thing):
        name = name_network(thing)
        assert name is not None
        return "network", name, thing
    raise UsageError(f"check takes a name, or a method, regularizer, teacher or network, not {thing!r}")


def _a_stream(name: str) -> UsageError:
    return UsageError(f"{name} is a stream: check tests methods, regularizers, teachers and networks")


def _promises(kind: str, name: str, given: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The promises in words, each with what tries it."""
    if kind == "network":
        yield STEP, partial(networks.build, given)
        for words, keep in BACKBONE.items():
            yield words, partial(keep, given)
        changes = {"network": given, "data": colors(size=networks.SIZE)}
        pairs, promises = [("er-ace", "jigsaw")], TRAINING
    elif kind == "regularizer":
        pairs, promises = [(method, name) for method in WITH_METHODS], {**TRAINING, **PENALIZING}
        changes = {}
        yield STEP, partial(_over, pairs, _first_steps, changes)
    elif kind == "teacher":
        teaches = TEACHERS[name].teaches
        pairs = [(method, "jigsaw") for method in (TEACHABLE if teaches else WITH_METHODS)]
        promises = {**TRAINING, **MOVING} if teaches else {**TRAINING, **MOVING, **ANSWERING}
        changes = {"teacher": name}
        yield STEP, partial(_over, pairs, _first_steps, changes)
    else:
        pairs, promises, changes = [(name, "none"), (name, "jigsaw")], TRAINING, {}
        yield STEP, partial(_over, pairs, _first_steps, changes)
    for words, keep in promises.items():
        yield words, partial(_over, pairs, keep, changes)


def _first_steps(method: str, regularizer: str, **changes: Any) -> None:
    run = in_later_task(make_run(method, regularizer, **changes))
    evaluate(run.method, run.stream, run.views, range(run.stream.n_tasks))


def _over(pairs: list[tuple[str, str]], keep: Promise, changes: Mapping[str, Any]) -> None:
    """Try a promise with each method and regularizer; which of them it was with is said."""
    for method, regularizer in pairs:
        try:
            keep(method, regularizer, **changes)
        except Exception as error:
            if len(pairs) == 1 or isinstance(error, UsageError):
                raise
            beside = method if regularizer == "none" else f"{method}+{regularizer}"
            raise BrokenPromise(f"{beside}: {_told(error)}") from error


def _outcome(promise: str, keep: Callable[[], Any]) -> Outcome:
    """What comes of one promise."""
    try:
        keep()
    except Exception as error:
        return Outcome(promise, _told(error))
    return Outcome(promise)


def _told(error: Exception) -> str:
    """Why a promise is not kept, in one line; with the user's line for an error of the code that is tried."""
    told = one_line(str(error))
    if isinstance(error, BrokenPromise | UsageError):
        return told
    told = next((remedy for words, remedy in REMEDIES.items() if words in told), told)
    told = told if len(told) <= LONGEST else f"{told[:LONGEST]}…"
    return f"{line_of_error(error)}: {type(error).__name__}: {told}"
