"""What the files of a run have to hold, so that nobody who reads them has to ask again."""

from __future__ import annotations

import json
from typing import Any

from cler import metrics
from cler.config.reading import is_stamp
from cler.config.values import number_of_tasks, read_tasks
from cler.errors import UsageError
from cler.methods import METHODS
from cler.metrics import SCENARIOS

FORMAT = 2
"""The newest format of a `result.json`, which is written."""
MOST = 1e12
"""Largest count, and largest number of seconds, that is read."""

_FIELDS = {
    "settings": dict,
    "seed": int,
    "accuracy": dict,
    "seconds": (int, float),
    "environment": dict,
    "complete": bool,
}
_FIELDS_OF_FORMAT: dict[int, dict[str, Any]] = {
    1: {"steps_per_second": (int, float)},
    2: {"counts": dict, "revisions": dict},
}
_OPTIONAL: dict[str, Any] = {"at_once": int, "failure": str, "validation": dict, "curves": dict}
_SETTINGS_FIELDS = {
    "method": str,
    "regularizer": str,
    "dataset": str,
    "tasks": (int, str),
    "buffer": int,
    "epochs": int,
}
_SETTINGS_STRINGS = ("teacher", "network", "stream", "precision")
"""Settings that older files lack."""
_COUNTS = {"steps": int, "images": int}
_LEAST = {"seed": 0, "seconds": 0, "steps_per_second": 0, "at_once": 1}
_SETTINGS_LEAST = {"buffer": 0, "epochs": 1}


def check_result(value: dict[str, Any]) -> None:
    """Refuse the content of a `result.json` that is not what a run leaves; a `UsageError` says why."""
    if not (_is(value.get("format"), int) and value["format"] >= 1):
        raise UsageError("not a result of cler: no 'format' number")
    if value["format"] > FORMAT:
        raise UsageError(f"format {value['format']} is newer than {FORMAT}, the newest this cler reads; update cler")
    optional = (*_FIELDS_OF_FORMAT.values(), _OPTIONAL)
    there = {name: kind for each in optional for name, kind in each.items() if name in value}
    _check_fields(value, _FIELDS | _FIELDS_OF_FORMAT[value["format"]] | there, "")
    check_settings(value["settings"])
    _check_least(value, _LEAST, "")
    if "counts" in value:
        _check_fields(value["counts"], _COUNTS, "counts.")
        _check_least(value["counts"], dict.fromkeys(_COUNTS, 0), "counts.")
    _check_origin(value)
    for name in SCENARIOS:
        _check_accuracy(value["accuracy"].get(name), f"accuracy.{name}", value["complete"])
    if list(map(len, value["accuracy"]["class_il"])) != list(map(len, value["accuracy"]["task_il"])):
        raise UsageError("the two accuracy matrices differ in size")
    for name in SCENARIOS if "validation" in value else ():
        _check_accuracy(value["validation"].get(name), f"validation.{name}", value["complete"])
    if "curves" in value:
        _check_curves(value["curves"])
    if "confusion" in value:
        _check_confusion(value["confusion"], number_of_tasks(checked_tasks(value["settings"]["tasks"])))
    if value["complete"]:
        _check_complete(value)


def check_settings(settings: dict[str, Any]) -> None:
    """Refuse settings, as files hold them, that do not say what every run has."""
    strings = {name: str for name in _SETTINGS_STRINGS if name in settings}
    _check_fields(settings, _SETTINGS_FIELDS | strings, "settings.")
    _check_least(settings, _SETTINGS_LEAST, "settings.")


def _check_origin(value: dict[str, Any]) -> None:
    """How the run was made, as far as that is told."""
    if not isinstance(value.get("data"), str | None):
        raise UsageError("'data' is not the fingerprint of a dataset")
    if "tuned" in value and not is_stamp(value["tuned"]):
        raise UsageError("'tuned' does not say how the settings were tuned")
    for name, revision in value.get("revisions", {}).items():
        if not _is(revision, (int, str)):
            raise UsageError(f"'revisions.{name}' is neither a whole number nor a string")


def _check_curves(curves: dict[str, Any]) -> None:
    """What was found within tasks: as many entries of each kind, of the tasks that there are, in the order of time."""
    if not curves.get("task"):
        return
    points, tested = curves["task"], curves.get("tested") or []
    if not (tested and _are(points, int, 0) and points == sorted(points) and _are(tested, int, 1)):
        raise UsageError("'curves.task' and 'curves.tested' are not whole numbers as they should be")
    for name in (*SCENARIOS, *(f"ahead_{each}" for each in SCENARIOS)):
        rows = curves.get(name)
        if not (isinstance(rows, list) and all(_are(row, (int, float), 0, 100) and row for row in rows)):
            raise UsageError(f"'curves.{name}' has entries that are not percentages")
        if max(map(len, rows), default=0) > len(tested):
            raise UsageError(f"'curves.{name}' has accuracies of more than {len(tested)} tasks")
    counted = curves.get("predicted")
    if not (isinstance(counted, list) and all(_are(each, int, 0) and len(each) == 4 for each in counted)):
        raise UsageError("'curves.predicted' are not four counts each")
    met = [name for name in (f"met_{each}" for each in SCENARIOS) if name in curves]
    if not all(_are(curves[name], (int, float), 0, 100) for name in met):
        raise UsageError("'curves' have accuracies on the classes met that are not percentages")
    if any(len(curves.get(name, ())) != len(points) for name in ("step", *SCENARIOS, "predicted", *met)):
        raise UsageError("'curves' differ in length")
    for name in SCENARIOS:
        if any(len(row) not in (task + 1, len(tested)) for row, task in zip(curves[name], points, strict=True)):
            raise UsageError(f"'curves.{name}' has rows that are not of the tasks met so far")


def _check_confusion(rows: Any, tasks: int) -> None:
    if not (isinstance(rows, list) and all(_are(row, int, 0) and len(row) == tasks for row in rows)):
        raise UsageError("'confusion' is not a matrix of counts")
    if len(rows) != tasks:
        raise UsageError(f"'confusion' has {len(rows)} rows for {tasks} tasks")


def _are(values: Any, kind: Any, least: float, most: float = MOST) -> bool:
    return isinstance(values, list) and all(_is(each, kind) and least <= each <= most for each in values)


def _check_complete(value: dict[str, Any]) -> None:
    """A run that has ended has accuracies after every task, or after all at once."""
    tasks, method = number_of_tasks(checked_tasks(value["settings"]["tasks"])), METHODS.get(value["settings"]["method"])
    allowed = (1, tasks) if method is None else (1,) if method.merged else (tasks,)
    for name in SCENARIOS:
        rows = value["accuracy"][name]
        if len(rows) not in allowed or len(rows[-1]) != tasks:
            raise UsageError(f"'accuracy.{name}' does not have the size of a complete run with {tasks} tasks")


def checked_tasks(written: int | str) -> int | str:
    """The setting `tasks` as a file has it, if it is one."""
    try:
        return read_tasks(written)
    except ValueError as error:
        raise UsageError(f"'settings.tasks' {error}") from None


def _check_fields(value: dict[str, Any], fields: dict[str, Any], prefix: str) -> None:
    for key, kind in fields.items():
        if key not in value:
            raise UsageError(f"'{prefix}{key}' is missing")
        if not _is(value[key], kind):
            raise UsageError(f"'{prefix}{key}' is {json.dumps(value[key])[:40]}, not {_kind_name(kind)}")


def _check_least(value: dict[str, Any], least: dict[str, int], prefix: str) -> None:
    for key, number in least.items():
        if not number <= value.get(key, number) < MOST:
            raise UsageError(f"'{prefix}{key}' is {value[key]}, which is out of range")


def _check_accuracy(rows: Any, name: str, complete: bool) -> None:
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise UsageError(f"'{name}' is not a list of rows")
    if not all(_is(x, (int, float)) and 0 <= x <= 100 for row in rows for x in row):
        raise UsageError(f"'{name}' has entries that are not percentages")
    if rows or complete:
        try:
            metrics.check_rows(rows)
        except UsageError as error:
            raise UsageError(f"'{name}': {error}") from None


def _is(value: Any, kind: Any) -> bool:
    """`isinstance`, except that true and false are not numbers."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _kind_name(kind: Any) -> str:
    names = {dict: "an object", str: "a string", int: "a whole number", bool: "true or false"}
    return names.get(kind, "a number")
