"""What continual learning reports about a run: functions of its accuracy matrix, and the table of them, `METRICS`.

An accuracy matrix is given as rows: row t holds the accuracies in percent on tasks 0..t after learning task t.
A model that learned every task at once (Joint) has a single row, with one accuracy per task.

A run that was also evaluated within its tasks has a `Curve`, and more metrics than one without.

Results hold accuracies and no metrics: these are computed when a result is read. So a metric that you add to `METRICS`
appears for existing results too, in Python, `cler compare --json` and the CSV files of a report:

```python
from cler.metrics import METRICS, Metric

METRICS["worst_task"] = Metric(
    lambda rows: min(rows[-1]), "Accuracy on the worst task at the end.", better="higher", unit="%"
)
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from torch import Tensor

from cler.errors import UsageError

SCENARIOS = ("class_il", "task_il")
"""The names of both accuracies: class-incremental, among all classes, and task-incremental, among those of its task."""
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
    return 100 * _mean_over_earlier_tasks(rows, lambda history: _share_lost(_best(history[:-1]), history[-1]))


def forgetting(rows: Rows, next_task: Sequence[float] = ()) -> float:
    """Mean drop of earlier tasks from their best accuracy at any time, the end included, hence never negative.

    `next_task[t]`, where given, is the accuracy on task t + 1 before training on it; it counts as one of the times.
    NaN where there is no earlier task.
    """
    early_looks = {task + 1: [accuracy] for task, accuracy in enumerate(next_task)}
    drops = [_best(history + early_looks.get(task, [])) - history[-1] for task, history in enumerate(_histories(rows))]
    return fmean(drops) if drops else math.nan


def backward_transfer(rows: Rows) -> float:
    """Mean change of earlier tasks from right after learning them to the end; NaN where there is no earlier task."""
    return _mean_over_earlier_tasks(rows, lambda history: history[-1] - history[0])


def average_accuracy_after_each_task(rows: Rows) -> list[float]:
    """Mean accuracy over the tasks seen so far, after each task."""
    check_rows(rows)
    return [fmean(row) for row in rows]


@dataclass(frozen=True)
class Curve:
    """What a run found that was evaluated within its tasks too: evaluations in the order of time, in one scenario."""

    task: Sequence[int]
    """The task, from 0, that was being learned at each evaluation; the one at its end belongs to it."""
    rows: Rows
    """Accuracies on the tasks met so far, the present one included, at each evaluation."""
    tested: Sequence[int]
    """Test images of each task."""
    ahead: Rows = ()
    """Row t has the accuracies on tasks t, t + 1, … before task t was learned: row 0 is of the untrained network."""
    met: Sequence[float] = ()
    """Accuracy on all classes met so far, in streams whose tasks do not say which these are."""
    predicted: Sequence[tuple[int, int, int]] = ()
    """At each evaluation: how many images of the stream had been predicted right before they were learned, how many a
    blind guess had right, and how many there were."""

    @property
    def pooled(self) -> list[float]:
        """Accuracy at each evaluation on the test images of all tasks met so far."""
        if self.met:
            return list(self.met)
        return [fmean(row, weights=self.tested[: len(row)]) for row in self.rows]

    @property
    def prequential_windows(self) -> list[float]:
        """Percent of the stream that was predicted right between each two evaluations."""
        before = [(0, 0, 0), *self.predicted]
        steps = zip(before, self.predicted, strict=False)
        return [100 * (now[0] - was[0]) / (now[2] - was[2]) for was, now in steps if now[2] > was[2]]


def average_anytime_accuracy(rows: Rows, curve: Curve | None) -> float:
    """The mean over all evaluations of the accuracy on the test images of the tasks met so far."""
    return fmean(curve.pooled) if curve and curve.rows else math.nan


def min_accuracy(rows: Rows, curve: Curve | None) -> float:
    """The mean over earlier tasks of the lowest accuracy that each had at any time after it was learned."""
    if not curve or not curve.rows:
        return math.nan
    lowest = [
        min((row[task] for row, now in zip(curve.rows, curve.task, strict=True) if now > task), default=math.nan)
        for task in range(curve.task[-1])
    ]
    return fmean(lowest) if lowest else math.nan


def worst_case_accuracy(rows: Rows, curve: Curve | None) -> float:
    """The accuracy on the present task and the lowest ones of earlier tasks, each task weighing the same."""
    if not curve or not curve.rows or len(curve.rows[-1]) != curve.task[-1] + 1:
        return math.nan
    earlier, present = curve.task[-1], curve.rows[-1][-1]
    return (present + earlier * min_accuracy(rows, curve)) / (earlier + 1) if earlier else present


def forward_transfer(rows: Rows, curve: Curve | None) -> float:
    """Mean gain, over the untrained network, of the accuracy on each task but the first right before learning it."""
    if not curve or len(curve.ahead) < 2:
        return math.nan
    untrained, *later = curve.ahead
    return fmean(row[0] - untrained[task] for task, row in enumerate(later, start=1))


def future_accuracy(rows: Rows, curve: Curve | None) -> float:
    """Mean accuracy, after each task, on each of the tasks to come."""
    later = [accuracy for row in (curve.ahead[1:] if curve else ()) for accuracy in row]
    return fmean(later) if later else math.nan


def prequential_accuracy(rows: Rows, curve: Curve | None) -> float:
    """Percent of the stream that was predicted right before it was learned."""
    return _predicted(curve, 0)


def blind_accuracy(rows: Rows, curve: Curve | None) -> float:
    """Percent of the stream that repeats the last label of the batch before: what is right without looking."""
    return _predicted(curve, 1)


def _predicted(curve: Curve | None, whose: int) -> float:
    if not curve or not curve.predicted or not curve.predicted[-1][2]:
        return math.nan
    return 100 * curve.predicted[-1][whose] / curve.predicted[-1][2]


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


def _best(accuracies: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, accuracies)) else max(accuracies)


def _share_lost(best: float, final: float) -> float:
    if math.isnan(best - final):
        return math.nan
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
    """What else the function is given of a result, such as 'settings', 'seconds', 'steps' or 'curve', a `Curve` or None
    of the scenario whose rows they are."""


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
    "average_anytime_accuracy": Metric(
        average_anytime_accuracy,
        "Mean over all evaluations, within tasks too, of the accuracy on the tasks met so far.",
        "higher",
        "%",
        ("curve",),
    ),
    "min_accuracy": Metric(
        min_accuracy,
        "Mean over earlier tasks of the lowest accuracy that each had after it was learned.",
        "higher",
        "%",
        ("curve",),
    ),
    "worst_case_accuracy": Metric(
        worst_case_accuracy,
        "Mean of the accuracy on the last task and the lowest ones of earlier tasks.",
        "higher",
        "%",
        ("curve",),
    ),
    "forward_transfer": Metric(
        forward_transfer,
        "Mean gain over the untrained network of the accuracy on a task right before it is learned.",
        "higher",
        "points",
        ("curve",),
    ),
    "future_accuracy": Metric(
        future_accuracy, "Mean accuracy, after each task, on each of the tasks to come.", "higher", "%", ("curve",)
    ),
    "prequential_accuracy": Metric(
        prequential_accuracy,
        "Share of the stream that was predicted right before it was learned.",
        "higher",
        "%",
        ("curve",),
    ),
    "blind_accuracy": Metric(
        blind_accuracy,
        "Share of the stream that repeating the last label of the batch before gets right, without looking at images.",
        "higher",
        "%",
        ("curve",),
    ),
}
"""Every metric by its name."""


def measure(rows: Rows, facts: Mapping[str, Any] | None = None) -> dict[str, float]:
    """The value of every metric for one accuracy matrix; all are NaN before the first evaluation.

    A fact that there is none of is None to the metrics that ask for it. One that fails is named by a `UsageError`.
    """
    values = {}
    for name, metric in METRICS.items():
        try:
            values[name] = _value(metric, rows, facts or {})
        except Exception as error:
            raise UsageError(f"the metric {name} fails with {type(error).__name__}: {error}") from error
    return values


def _value(metric: Metric, rows: Rows, facts: Mapping[str, Any]) -> float:
    return float(metric.function(rows, **{name: facts.get(name) for name in metric.facts})) if rows else math.nan
