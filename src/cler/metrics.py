"""What continual learning reports of a run: functions of its accuracy matrix, and the table of them, `METRICS`.

An accuracy matrix is given as rows: row t holds the accuracies in percent on tasks 0..t after learning task t.
A model that learned every task at once (Joint) has a single row, with one accuracy per task.

Results hold accuracy matrices and no metrics: these are computed when a result is read, so that a metric that is added
to `METRICS` appears for every result that there is, in Python, `cler compare --json` and the CSV files of a report::

    from cler.metrics import METRICS, Metric

    METRICS["worst_task"] = Metric(
        lambda rows: min(rows[-1]), "Accuracy on the worst task at the end.", better="higher", unit="%"
    )
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from torch import Tensor

from cler.errors import UsageError

Rows = Sequence[Sequence[float]]
"""An accuracy matrix in percent: row t has the accuracies on tasks 0..t after task t."""


def check_rows(rows: Rows) -> None:
    """Raise `UsageError` unless `rows` is a lower triangle or one row."""
    if not rows or not rows[0]:
        raise UsageError("an accuracy matrix needs at least one row")
    for task, row in enumerate(rows):
        if len(rows) > 1 and len(row) != task + 1:
            raise UsageError(f"row {task} of an accuracy matrix needs {task + 1} accuracies, not {len(row)}")


def accuracy(rows: Rows) -> float:
    """Final average accuracy: the mean over all tasks after the last one."""
    check_rows(rows)
    return fmean(rows[-1])


def incremental_accuracy(rows: Rows) -> float:
    """Average incremental accuracy: the mean, over the tasks as they come, of the accuracy on those seen so far."""
    return fmean(average_accuracy_after_each_task(rows))


def adjusted_forgetting(rows: Rows) -> float:
    """Mean share, in percent, that earlier tasks lost of the best accuracy they had before the last task.

    A task that improved counts 0, and so does one that was never right; NaN where there is no earlier task.
    """
    return 100 * _mean_over_earlier_tasks(rows, lambda history: _share_lost(max(history[:-1]), history[-1]))


def forgetting(rows: Rows, next_task: Sequence[float] = ()) -> float:
    """Mean drop of earlier tasks from their best accuracy at any time, the end included, hence never negative.

    `next_task[t]`, where given, is the accuracy on task t + 1 before training on it; it counts as one of the times.
    NaN where there is no earlier task.
    """
    early_looks = {task + 1: [accuracy] for task, accuracy in enumerate(next_task)}
    drops = [max(history + early_looks.get(task, [])) - history[-1] for task, history in enumerate(_histories(rows))]
    return fmean(drops) if drops else math.nan


def backward_transfer(rows: Rows) -> float:
    """Mean change of earlier tasks from right after learning them to the end; NaN where there is no earlier task."""
    return _mean_over_earlier_tasks(rows, lambda history: history[-1] - history[0])


def average_accuracy_after_each_task(rows: Rows) -> list[float]:
    """Mean accuracy over the tasks seen so far, after each task."""
    check_rows(rows)
    return [fmean(row) for row in rows]


def class_and_task_correct(logits: Tensor, labels: Tensor, of_class: Tensor) -> tuple[Tensor, Tensor]:
    """Which samples are right, as booleans: class-incremental, task-incremental.

    `logits` is (..., C), `labels` (...), `of_class` (C,) the task of each class. Class-incremental is the argmax over
    all C logits, unseen classes included; task-incremental is the argmax among the classes of the label's own task. No
    value leaves the device.
    """
    other_task = of_class != of_class[labels].unsqueeze(-1)
    own_task_logits = logits.masked_fill(other_task, float("-inf"))
    return logits.argmax(-1) == labels, own_task_logits.argmax(-1) == labels


def _histories(rows: Rows) -> list[list[float]]:
    """For every task but the last: its accuracies from when it was learned to the end."""
    check_rows(rows)
    return [[row[task] for row in rows[task:]] for task in range(len(rows) - 1)]


def _mean_over_earlier_tasks(rows: Rows, term: Callable[[list[float]], float]) -> float:
    terms = [term(history) for history in _histories(rows)]
    return fmean(terms) if terms else math.nan


def _share_lost(best: float, final: float) -> float:
    return max(0.0, (best - final) / best) if best > 0 else 0.0


@dataclass(frozen=True)
class Metric:
    """A number that is computed from a run's accuracies, class- and task-incremental, when its result is read."""

    function: Callable[..., float]
    """Called with the rows of an accuracy matrix, and with `facts` by name; NaN where the rows do not determine it."""
    meaning: str
    """In one sentence."""
    better: Literal["higher", "lower"]
    unit: str
    """'%' for a share, 'points' for a difference between shares."""
    facts: tuple[str, ...] = ()
    """What else the function is given of a result, such as 'settings', 'seconds' or 'steps'."""


METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, "Final average accuracy: the mean over all tasks after the last one.", "higher", "%"),
    "incremental_accuracy": Metric(
        incremental_accuracy,
        "Average incremental accuracy: the mean, over the tasks as they come, of the accuracy on those seen so far.",
        "higher",
        "%",
    ),
    "adjusted_forgetting": Metric(
        adjusted_forgetting,
        "Mean share that earlier tasks lost of the best accuracy they had before the last task.",
        "lower",
        "%",
    ),
    "forgetting": Metric(forgetting, "Mean drop of earlier tasks from their best accuracy.", "lower", "points"),
    "backward_transfer": Metric(
        backward_transfer,
        "Mean change of the accuracy on earlier tasks from right after learning them to the end.",
        "higher",
        "points",
    ),
}
"""Every metric by its name."""


def measure(rows: Rows, facts: Mapping[str, Any] | None = None) -> dict[str, float]:
    """The value of every metric for one accuracy matrix; all are NaN before the first evaluation."""
    return {name: _value(metric, rows, facts or {}) for name, metric in METRICS.items()}


def _value(metric: Metric, rows: Rows, facts: Mapping[str, Any]) -> float:
    return metric.function(rows, **{name: facts[name] for name in metric.facts}) if rows else math.nan
