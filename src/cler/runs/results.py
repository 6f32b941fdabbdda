"""The results of runs on disk: a folder each, with a `result.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from cler import metrics
from cler.config.comparing import completed
from cler.config.reading import is_stamp
from cler.config.values import number_of_tasks, read_tasks
from cler.engine.run import VALIDATION
from cler.errors import UsageError
from cler.files import as_path, read_json
from cler.methods import METHODS
from cler.metrics import Curve
from cler.runs.folders import search

FORMAT = 2
MOST = 1e12
"""Largest count, and largest number of seconds, that is read."""
SCENARIOS = ("class_il", "task_il")

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


@dataclass(frozen=True)
class Result:
    """One run as read from disk: what happened. What is computed from it are properties."""

    path: Path
    settings: dict[str, Any]
    """All of them: those that the file lacks are what their absence meant."""
    seed: int
    accuracy: dict[str, list[list[float]]]
    """The accuracy matrices of both scenarios, class_il and task_il."""
    seconds: float
    steps_per_second: float
    environment: dict[str, Any]
    complete: bool
    steps: int | None = None
    """Steps that were taken; results of format 1 do not say."""
    images: int | None = None
    """Images of the stream that were seen, each as often as it came; results of format 1 do not say."""
    at_once: int | None = None
    """Runs that were trained side by side and share `seconds`; results from before it was written do not say."""
    failure: str | None = None
    data: str | None = None
    """The fingerprint of the dataset; results of format 1 do not say."""
    revisions: dict[str, int | str] = field(default_factory=dict)
    """The revisions of the code that decided the numbers; results of format 1 do not say."""
    validation: dict[str, list[list[float]]] | None = None
    """The same matrices on training images that were held out, where the setting `validate` asked for it."""
    curves: dict[str, list[Any]] | None = None
    """What was found within tasks, where the setting `evaluate_every` asked for it, as `cler.engine.run.Curves`."""
    confusion: list[list[int]] | None = None
    """How many test images of each task (rows) were predicted as a class of each task (columns) at the end."""
    tuned: dict[str, Any] | None = None
    """How the settings were tuned, as `cler tune` says it; None where they were not."""

    @cached_property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Each of `cler.metrics.METRICS` in both scenarios; NaN where the accuracies do not determine it."""
        measured = {
            name: metrics.measure(self.accuracy[name], vars(self) | {"curve": self.curve(name)}) for name in SCENARIOS
        }
        return {metric: {name: measured[name][metric] for name in SCENARIOS} for metric in metrics.METRICS}

    def curve(self, scenario: str) -> Curve | None:
        """The run's evaluations in the order of time, where there were any within tasks."""
        if not self.curves or not self.curves.get("task"):
            return None
        found, column = self.curves, SCENARIOS.index(scenario)
        return Curve(
            task=found["task"],
            rows=found[scenario],
            tested=found["tested"],
            ahead=found[f"ahead_{scenario}"],
            met=found.get(f"met_{scenario}", ()),
            predicted=[(each[column], each[2], each[3]) for each in found["predicted"]],
        )

    def until(self, tasks: int) -> Result | None:
        """The run as it was after so many tasks, as if there were no more.

        None if it did not get as far, or has no such moment because it learned all tasks at once.
        """
        rows = self.accuracy["class_il"]
        if len(rows) < tasks or len(rows[tasks - 1]) > tasks or self.failure is not None:
            return None

        def cut(rows: Mapping[str, list[list[float]]]) -> dict[str, list[list[float]]]:
            return {name: each[:tasks] for name, each in rows.items()}

        validation = cut(self.validation) if self.validation else None
        curves = _curves_until(self.curves, tasks) if self.curves else None
        confusion = self.confusion if len(rows) == tasks else None
        return replace(
            self,
            accuracy=cut(self.accuracy),
            validation=validation,
            curves=curves,
            confusion=confusion,
            complete=True,
        )

    @classmethod
    def from_dict(cls, path: Path, value: dict[str, Any]) -> Result:
        """From the content of a `result.json`, of whatever format."""
        counts = value.get("counts", {})
        seconds = value["seconds"]
        speed = counts["steps"] / seconds if counts and seconds else value.get("steps_per_second", 0.0)
        same = ("seed", "accuracy", "seconds", "environment", "complete")
        return cls(
            path=path,
            settings=completed(value["settings"]),
            **{name: value[name] for name in same},
            steps_per_second=speed,
            steps=counts.get("steps"),
            images=counts.get("images"),
            at_once=value.get("at_once"),
            failure=value.get("failure"),
            data=value.get("data"),
            revisions=value.get("revisions", {}),
            validation=value.get("validation"),
            curves=value.get("curves"),
            confusion=value.get("confusion"),
            tuned=value.get("tuned"),
        )


def make_result(
    settings: dict[str, Any],
    seed: int,
    accuracy: Mapping[str, metrics.Rows],
    seconds: float,
    steps: int,
    environment: dict[str, Any],
    *,
    images: int = 0,
    data: str | None = None,
    revisions: Mapping[str, int | str] | None = None,
    at_once: int = 1,
    complete: bool = True,
    failure: str | None = None,
    curves: Mapping[str, Sequence[Any]] | None = None,
    confusion: Sequence[Sequence[int]] | None = None,
    tuned: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of `result.json`: facts, from which metrics are computed when it is read."""
    result = {
        "format": FORMAT,
        "settings": settings,
        "seed": seed,
        "complete": complete,
        "accuracy": _matrices(accuracy, SCENARIOS),
        "counts": {"steps": steps, "images": images},
        "seconds": round(seconds, 3),
        "at_once": at_once,
        "environment": environment,
        "data": data,
        "revisions": dict(revisions or {}),
    }
    if VALIDATION[0] in accuracy:
        result["validation"] = dict(zip(SCENARIOS, _matrices(accuracy, VALIDATION).values(), strict=True))
    if curves is not None:
        result["curves"] = _rounded(dict(curves))
    result |= {} if confusion is None else {"confusion": [list(row) for row in confusion]}
    result |= {} if tuned is None else {"tuned": tuned}
    return result if failure is None else result | {"failure": failure}


def _matrices(accuracy: Mapping[str, metrics.Rows], names: Sequence[str]) -> dict[str, list[list[float]]]:
    return {name: [[round(float(x), 4) for x in row] for row in accuracy[name]] for name in names}


def _rounded(value: Any) -> Any:
    """A value with the numbers in it, however deep, rounded to four decimals."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def _curves_until(curves: dict[str, list[Any]], tasks: int) -> dict[str, list[Any]]:
    """Those of the first tasks."""
    points = sum(task < tasks for task in curves.get("task", ()))
    ahead = {name: each[:tasks] for name, each in curves.items() if name.startswith("ahead_")}
    return {name: each[:points] for name, each in curves.items()} | {"tested": curves.get("tested", [])} | ahead


def read_result(folder_or_file: str | Path) -> dict[str, Any]:
    """The checked content of a `result.json`; `UsageError` says in one line what is wrong with the file."""
    path = Path(folder_or_file)
    path = path / "result.json" if path.is_dir() else path
    value = read_json(path)
    try:
        _check(value)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return value


def find_results(paths: Iterable[str | Path]) -> tuple[list[Result], list[str]]:
    """Every result under the given folders, and a complaint for each `result.json` or folder that cannot be read."""
    files, complaints = find_files(paths, ["result.json"])
    results = []
    for file in files:
        try:
            results.append(Result.from_dict(file, read_result(file)))
        except UsageError as error:
            complaints.append(f"skipped: {error}")
    return results, complaints


def find_files(paths: Iterable[str | Path], names: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The files of these names under the given folders, each once, and a complaint for each folder not to be read."""
    files: dict[str, Path] = {}
    complaints = []
    real = cache(os.path.realpath)  # of folders, since there are many files in few of them
    for path in map(as_path, paths):
        if not path.exists():
            raise UsageError(f"no such file or folder: {path}")
        found, unreadable = search(path, names) if path.is_dir() else ([path], [])
        for file in found:
            whole = os.path.realpath(file) if file.is_symlink() else os.path.join(real(file.parent), file.name)
            files.setdefault(whole, file)
        complaints += [f"skipped: {line}" for line in unreadable]
    return list(files.values()), complaints


def _check(value: Any) -> None:
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
