"""What a learner can be made with, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from cler.config.settings import LARGEST_SEED, Settings, option_kinds
from cler.errors import UsageError, unknown
from cler.learner.inputs import Label, to_labels
from cler.methods import METHODS
from cler.regularizers import find_regularizer
from cler.runs.machine import find_device

KINDS = {
    **dict.fromkeys(("method", "regularizer", "optimizer", "device"), "str"),
    **dict.fromkeys(("image_size", "channels", "buffer", "batch", "replay_batch", "width", "seed"), "int"),
    **dict.fromkeys(("lr", "weight"), "float"),
}
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "int": ((int,), "a whole number"),
    "float": ((float, int), "a number"),
    "bool": ((bool,), "true or false"),
}
SMALLEST_IMAGE, LARGEST_IMAGE = 3, 1024
"""In pixels; on smaller ones no network of ours learns."""
MOST_CHANNELS = 64
HALVED = 8
"""Images up to this size end as a single pixel, which batch norm cannot normalize alone."""


def to_plain(value: Any) -> Any:
    """The same without arrays, ranges and numbers of other libraries: something that JSON knows, if there is one."""
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
    """The settings for these parameters of a learner, which are plain."""
    for name, kind in KINDS.items():
        if name != "weight" or given[name] is not None:
            _check_kind(name, given[name], kind)
    method, regularizer, size = (given[name] for name in ("method", "regularizer", "image_size"))
    task_free = [name for name, each in METHODS.items() if each.task_free]
    if method not in METHODS:
        raise unknown("method", method, task_free)
    if method not in task_free:
        known = ", ".join(task_free)
        raise UsageError(f"{method} has to know where tasks begin and end; a stream without tasks can have {known}")
    names = ("method", "regularizer", "batch", "replay_batch", "lr", "optimizer", "width")
    try:
        settings = Settings(
            buffer=given["buffer"] if METHODS[method].replays else 0,
            weight=_weight(regularizer, given["weight"]),
            options=_options(method, given["options"]),
            **{name: given[name] for name in names},
        )
        find_device(given["device"])
    except UsageError as error:  # which speaks of the command line
        raise UsageError(re.sub(r"--[a-z-]+", lambda flag: flag[0][2:].replace("-", "_"), str(error))) from None
    _within("image_size", size, SMALLEST_IMAGE, LARGEST_IMAGE)
    _within("channels", given["channels"], 1, MOST_CHANNELS)
    _within("seed", given["seed"], 0, LARGEST_SEED)
    if size <= HALVED and min(settings.batch, settings.replay_batch) < 2:
        raise UsageError(f"batch and replay_batch must be at least 2 for images of {size}×{size}")
    if entry := find_regularizer(regularizer):
        entry.check(size, size)
    check_classes(given["classes"])
    for name in ("mean", "std"):
        _check_statistics(name, given[name], given["channels"])
    return settings


def check_classes(classes: Any) -> None:
    """Refuse what is neither 'grow' nor a list of different labels."""
    if isinstance(classes, str) and classes == "grow":
        return
    if not isinstance(classes, list | tuple) or not classes:
        raise UsageError(f"classes must be a list of the labels that can occur, or 'grow', not {classes!r}")
    if len(set(to_labels(classes))) < len(classes):
        raise UsageError("classes must be different from each other")


def check_among(labels: Sequence[Label], classes: Any) -> Sequence[Label]:
    """The classes of one call, which every label has to be among."""
    check_classes(classes)
    if classes == "grow":
        return []
    for label in labels:
        if label not in classes:
            raise UsageError(f"label {label!r} is not among the classes of this call")
    return classes


def _weight(regularizer: str, weight: float | None) -> float:
    if regularizer == "none" and weight:
        raise UsageError(f"weight {weight} has no effect without a regularizer")
    entry = find_regularizer(regularizer)
    return weight if weight is not None else entry.weight if entry else 0.0


def _options(method: str, options: Any) -> dict[str, Any]:
    if not isinstance(options, dict | None):
        raise UsageError(f"options must be a dictionary of settings of {method}, not {options!r}")
    kinds = option_kinds(method)
    for name, value in (options or {}).items():
        if name in kinds:  # Settings refuses the others
            _check_kind(name, value, kinds[name])
    return options or {}


def _check_kind(name: str, value: Any, kind: str) -> None:
    types, words = _TYPES[kind]
    if isinstance(value, bool) != (kind == "bool") or not isinstance(value, types):
        raise UsageError(f"{name} must be {words}, not {value!r}")


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name} must lie from {least} to {most}, not {value}")


def _check_statistics(name: str, given: Any, channels: int) -> None:
    values = given if isinstance(given, list | tuple) else [given] * channels
    numbers = all(isinstance(each, float | int) and math.isfinite(each) for each in values)
    if not numbers or len(values) != channels or (name == "std" and min(values) <= 0):
        positive = " above zero" if name == "std" else ""
        raise UsageError(f"{name} must be a number{positive}, or one for each of {channels} channels, not {given!r}")
