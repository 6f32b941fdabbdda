"""What a learner can be made with, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from cler.config.learner import Form, learner_settings
from cler.config.registry import METHODS, OPTIMIZERS, REGULARIZERS, VIEWS
from cler.config.schema import settings_of
from cler.config.settings import PARTS, Settings, elsewhere, own_settings
from cler.config.values import own_weight
from cler.data.inputs import Label, to_labels
from cler.errors import UsageError, unknown
from cler.nets.build import check_pretrained, find_network
from cler.runs.custom import name_class, name_network
from cler.runs.machine import find_device

HALVED = 8
"""Images up to this size end as a single pixel, which batch norm cannot normalize alone."""


CLASSES = ("method", "regularizer", "teacher")
"""Parameters that may be a class of the user's own, in place of a name."""
OTHERS = {"classes": "grow", "mean": 0.5, "std": 0.25}
"""Parameters that are no plain numbers and names, with their defaults."""


def completed_parameters(written: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters in a learner's file with those that it lacks, which meant what their `absent` says."""
    return {name: each.absent for name, each in learner_settings().items()} | OTHERS | dict(written)


def resolved_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are given, without arrays and numbers of other libraries, and the defaults of the others."""
    plain = {name: value if name == "network" else to_plain(value) for name, value in given.items()}
    resolved = {name: each.default for name, each in learner_settings().items()} | OTHERS | plain
    return resolved | {kind: name_class(kind, resolved[kind]) for kind in CLASSES}


def check_registered(written: Mapping[str, Any]) -> None:
    """Refuse the parameters in a learner's file that name parts which are not registered: those were the user's own."""
    tables = {**{kind: PARTS[kind] for kind in CLASSES}, "optimizer": OPTIMIZERS, "augment": VIEWS}
    for parameter, table in tables.items():
        for name in written[parameter].split("+") if table.joined else [written[parameter]]:
            if name not in table and not (table.optional and name == "none"):
                raise UsageError(
                    f"it was made with the {table.kind} '{name}', one of your own: name its file with --import (in "
                    "Python, import it first), and see that the file registers it, as by @cler.register"
                )


def to_plain(value: Any) -> Any:
    """The value without arrays, ranges and numbers of other libraries: as JSON knows it, if it can."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    match value:
        case str() | bytes() | bool():
            return value
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case tuple():
            return tuple(map(to_plain, value))
        case Sequence():
            return list(map(to_plain, value))
        case dict():
            return {name: to_plain(each) for name, each in value.items()}
    return value


def check_parameters(given: Mapping[str, Any]) -> Settings:
    """The settings for these parameters of a learner, which are resolved."""
    form = Form(**{name: given[name] for name in settings_of(Form)})
    method, regularizer = given["method"], settings_of(Settings)["regularizer"].checked(given["regularizer"])
    task_free = [name for name, each in METHODS.items() if each.task_free]
    if method not in METHODS:
        raise METHODS.no_such(str(method), task_free)
    if method not in task_free:
        known = ", ".join(task_free)
        raise UsageError(f"{method} has to know where tasks begin and end; a stream without tasks can have {known}")
    declared = learner_settings()
    own = {name: value for name, value in given.items() if name not in declared | OTHERS}
    of_parts = own_settings(given)
    for name in own:
        if name not in of_parts:
            raise UsageError(f"{unknown('parameter', name, [*declared, *OTHERS, *of_parts])}{elsewhere(name)}")
    values = {name: given[name] for name in declared if name not in settings_of(Form)}
    buffer = declared["buffer"].checked(given["buffer"])
    values["buffer"] = buffer if METHODS[method].replays else 0
    values["network"] = name_network(given["network"])
    settings = Settings(**values | {"weight": _weight(regularizer, given["weight"])}, options=own)
    find_device(form.device)
    _check_network(settings)
    if form.image_size <= HALVED and min(settings.batch, settings.replay_batch) < 2:
        raise UsageError(
            f"and replay_batch must be at least 2 for images of {form.image_size}×{form.image_size}", "batch"
        )
    for name in settings.regularizers:
        try:
            REGULARIZERS[name].check(form.image_size, form.image_size)
        except UsageError as error:
            raise UsageError(f"{form.image_size} does not suit the regularizer: {error}", "image_size") from None
    check_classes(given["classes"])
    for name in ("mean", "std"):
        _check_statistics(name, given[name], form.channels)
    return settings


def _check_network(settings: Settings) -> None:
    """Refuse pretrained weights of a network that has none, before the first image comes."""
    if settings.pretrained:
        check_pretrained(find_network(settings.network))


def _weight(regularizer: str, weight: Any) -> float | str:
    """The weight that is given, or each regularizer's own."""
    if regularizer == "none" and weight:
        raise UsageError(f"{weight} has no effect without a regularizer: leave it out", "weight")
    return own_weight(regularizer) if weight is None else settings_of(Settings)["weight"].checked(weight)


def check_classes(classes: Any) -> None:
    """Refuse what is neither 'grow' nor a list of different labels."""
    if isinstance(classes, str) and classes == "grow":
        return
    if not isinstance(classes, list | tuple) or not classes:
        raise UsageError(f"classes must be a list of the labels that can occur, or 'grow', not {classes!r}")
    labels = to_labels(classes)
    if len(set(labels)) < len(classes):
        raise UsageError("classes must be different from each other")
    check_same_kind(labels)


def check_same_kind(labels: Sequence[Label], known: Sequence[Label] = ()) -> None:
    """Refuse labels that are not all strings or all whole numbers, as those that are known."""
    examples = {isinstance(label, str): label for label in known or labels[:1]}
    for label in labels:
        if isinstance(label, str) not in examples:
            (other,) = examples.values()
            raise UsageError(f"labels must be all strings or all whole numbers, but there are {other!r} and {label!r}")


def check_among(labels: Sequence[Label], classes: Any) -> Sequence[Label]:
    """The classes of one call, which every label has to be among."""
    check_classes(classes)
    if classes == "grow":
        return []
    for label in labels:
        if label not in classes:
            raise UsageError(f"label {label!r} is not among the classes of this call")
    return classes


def _check_statistics(name: str, given: Any, channels: int) -> None:
    values = given if isinstance(given, list | tuple) else [given] * channels
    numbers = all(isinstance(each, float | int) and math.isfinite(each) for each in values)
    if not numbers or len(values) != channels or (name == "std" and min(values) <= 0):
        positive = " above zero" if name == "std" else ""
        raise UsageError(f"{name} must be a number{positive}, or one for each of {channels} channels, not {given!r}")
