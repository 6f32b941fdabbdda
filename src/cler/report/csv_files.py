"""A report as comma-separated values for programs: not rounded, empty where nothing is known."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from typing import Any

from cler import stats
from cler.metrics import SCENARIOS
from cler.report.content import Report, readable
from cler.report.escaping import in_csv
from cler.report.evidence import Evidence
from cler.runs.results import Result
from cler.runs.series import Series
from cler.tune.selection import tuning_in_words


def results_csv(report: Report) -> str:
    """A line for each row of the report and each scenario."""
    found = {(one.runs, one.scenario): one for section in report.sections for one in section.evidence}
    lines = []
    for group in (group for section in report.sections for group in section.groups):
        for name in SCENARIOS:
            line = {"label": group.label, **group.settings, "scenario": name, "runs": len(group.results)}
            line |= _tuned(group, name) | _held_out(group)
            key = group, name
            lines.append(line | _scores(group, name) | _gain(found.get(key)) | dict(report.beside.columns.get(key, {})))
    return _csv(lines)


def runs_csv(report: Report) -> str:
    """A line for each run."""
    return _csv(_run(run) for section in report.sections for group in section.groups for run in group.results)


def _scores(group: Series, name: str) -> dict[str, Any]:
    low, high = stats.confidence_interval(group.accuracies(name))
    columns: dict[str, Any] = {}
    for metric, estimates in group.metrics.items():
        columns |= {metric: estimates[name].mean, f"{metric}_std": estimates[name].std}
        if metric == "accuracy":
            columns |= {"accuracy_low": low, "accuracy_high": high}
    return columns


def _held_out(group: Series) -> dict[str, Any]:
    if group.validation is None:
        return {}
    return {"held_out_accuracy": group.validation.mean, "held_out_accuracy_std": group.validation.std}


def _tuned(group: Series, name: str) -> dict[str, Any]:
    if not group.tuned:
        return {}
    unseen = group.unseen_by_tuning(name)
    return {
        "tuned": tuning_in_words(group.tuned, group.settings),
        "accuracy_unseen_by_tuning": unseen.mean if unseen else math.nan,
    }


def _gain(one: Evidence | None) -> dict[str, Any]:
    if one is None:
        return {}
    return {
        "gain": one.points,
        **dict(zip(("gain_welch_low", "gain_welch_high"), one.welch_interval, strict=True)),
        **dict(zip(("gain_bootstrap_low", "gain_bootstrap_high"), one.bootstrap_interval, strict=True)),
        "p_student": one.student,
        "p_welch": one.welch,
        "p_paired": one.paired,
        "pairs": one.pairs,
        "p_holm": one.holm,
    }


def _run(run: Result) -> dict[str, Any]:
    measured = {f"{metric}_{name}": values[name] for metric, values in run.metrics.items() for name in SCENARIOS}
    times = {"seconds": run.seconds, "steps_per_second": run.steps_per_second}
    return {
        **run.settings,
        "seed": run.seed,
        **measured,
        **times,
        **run.environment,
        "path": readable(run.path.as_posix()),
    }


def _csv(lines: Iterable[dict[str, Any]]) -> str:
    lines = list(lines)
    columns = list(dict.fromkeys(name for line in lines for name in line))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(in_csv, columns))
    writer.writerows([in_csv(_value(line.get(name))) for name in columns] for line in lines)
    return stream.getvalue()


def _value(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    return json.dumps(value) if isinstance(value, dict | list) else value
