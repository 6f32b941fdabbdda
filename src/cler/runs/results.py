"""The results of runs on disk: a folder each, with a `result.json`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from cler import metrics
from cler.config.comparing import completed
from cler.engine.run import VALIDATION
from cler.errors import UsageError
from cler.files import as_path, read_json
from cler.metrics import SCENARIOS, Curve
from cler.runs.folders import RESULT, search
from cler.runs.measured import Measured
from cler.runs.wellformed import FORMAT, check_result


@dataclass(frozen=True)
class Result:
    """One run as read from disk: its fields are facts, its properties are computed from them."""

    path: Path
    settings: dict[str, Any]
    """All settings: one that the file lacks has the value of its `absent`."""
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
    """The accuracy matrices on training images that were held out, where the setting `validate` asked for it."""
    curves: dict[str, list[Any]] | None = None
    """What was found within tasks, where the setting `evaluate_every` asked for it, as `cler.engine.run.Curves`."""
    confusion: list[list[int]] | None = None
    """How many test images of each task (rows) were predicted as a class of each task (columns) at the end."""
    tuned: dict[str, Any] | None = None
    """How the settings were tuned, as `cler tune` says it; None where they were not."""

    @Measured
    def metrics(self) -> dict[str, dict[str, float]]:
        """Each of `cler.metrics.METRICS` in both scenarios; NaN where the accuracies do not determine it."""
        try:
            measured = {
                name: metrics.measure(self.accuracy[name], vars(self) | {"curve": self.curve(name)})
                for name in SCENARIOS
            }
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}") from error
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
        """The run as it was after this many tasks, as if there were no others.

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
    def read(cls, file: Path) -> Result:
        """Read a `result.json`; a `UsageError` says in one line what is wrong with the file."""
        return cls.from_dict(file, read_result(file))

    @classmethod
    def from_dict(cls, path: Path, value: dict[str, Any]) -> Result:
        """From the content of a `result.json` of any format."""
        counts, seconds = value.get("counts", {}), value["seconds"]
        speed = counts["steps"] / seconds if counts and seconds else value.get("steps_per_second", 0.0)
        found = {each.name: value[each.name] for each in fields(cls) if each.name in value}
        found |= {"settings": completed(value["settings"]), "steps_per_second": speed}
        return cls(**found | {"path": path, "steps": counts.get("steps"), "images": counts.get("images")})


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
        "accuracy": _matrices(accuracy),
        "counts": {"steps": steps, "images": images},
        "seconds": round(seconds, 3),
        "at_once": at_once,
        "environment": environment,
        "data": data,
        "revisions": dict(revisions or {}),
    }
    if f"{VALIDATION}class_il" in accuracy:
        result["validation"] = _matrices(accuracy, VALIDATION)
    if curves is not None:
        result["curves"] = _rounded(dict(curves))
    result |= {} if confusion is None else {"confusion": [list(row) for row in confusion]}
    result |= {} if tuned is None else {"tuned": tuned}
    return result if failure is None else result | {"failure": failure}


def _matrices(accuracy: Mapping[str, metrics.Rows], before: str = "") -> dict[str, list[list[float]]]:
    """The matrices of both scenarios, whose names begin with `before`."""
    return {name: [[round(float(x), 4) for x in row] for row in accuracy[before + name]] for name in SCENARIOS}


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
    path = path / RESULT if path.is_dir() else path
    value = read_json(path)
    try:
        check_result(value)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return value


def find_results(paths: Iterable[str | Path]) -> tuple[list[Result], list[str]]:
    """Every result under the given folders, and a complaint for each `result.json` or folder that cannot be read."""
    files, complaints = find_files(paths, [RESULT])
    results = []
    for file in files:
        try:
            results.append(Result.read(file))
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
