"""What a page tells of runs beyond their row: settings, curves, matrices, images of the buffer."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from cler import stats
from cler.metrics import SCENARIOS
from cler.report import charts
from cler.report.charts import Point
from cler.report.content import time_taken
from cler.report.sheets import NAMES
from cler.runs.buffer_images import small
from cler.runs.logs import Log
from cler.runs.scan import Attachments, Unfinished
from cler.runs.series import Series

MOST_POINTS = 50
"""Points of a curve of the loss."""


@dataclass(frozen=True)
class Detail:
    """A chart, a matrix or a picture, with its caption."""

    caption: str
    note: str
    html: str
    kind: str = "curve"
    """'curve', 'matrix' or 'picture'."""


def settings_told(group: Series) -> list[tuple[str, str]]:
    """The settings of runs, their seeds, accuracies and time."""
    shown = {name.replace("_", " "): value for name, value in group.settings.items() if value is not None}
    seeds = ", ".join(map(str, group.seeds))
    accuracies = {
        f"{NAMES[name]} accuracy by seed": ", ".join(f"{accuracy:.2f}" for accuracy in group.accuracies(name))
        for name in SCENARIOS
    }
    rows = shown | {"seeds": seeds} | accuracies | {"time": time_taken(group.results)}
    return [(name, str(value)) for name, value in rows.items()]


def details(group: Series, attachments: Mapping[Path, Attachments], tops: Mapping[str, float]) -> Iterator[Detail]:
    """Everything to see of runs with the same settings; `tops` are the accuracies of the darkest cells."""
    found = [beside for run in group.results if (beside := attachments.get(run.path.parent))]
    yield from _losses(group.label, [beside.log for beside in found])
    yield from _accuracy_within(group)
    for name in SCENARIOS:
        yield Detail(
            f"accuracy matrix, {NAMES[name]}",
            f"% on each task (across) after learning each (down); darkest: {tops[name]:.0f}",
            charts.heat_map(charts.mean_matrix(group, name), top=tops[name], title=f"{group.label}: {NAMES[name]}"),
            "matrix",
        )
    if rows := charts.mean_confusion(group):
        yield Detail(
            "confusion between tasks",
            "% of the test images of each task (down) that are predicted as a class of each (across) at the end",
            charts.heat_map(rows, top=100.0, title=f"{group.label}: confusion between tasks"),
            "matrix",
        )
    yield from _buffer(group, attachments)


def details_so_far(label: str, one: Unfinished) -> Iterator[Detail]:
    """The curves of a run that is not finished."""
    yield from _losses(label, [one.log], one.tasks)
    if points := [(task + 1, accuracy, math.nan) for task, accuracy in one.log.accuracies.items()]:
        title = f"{label}: {NAMES['class_il']} accuracy so far"
        yield Detail(
            f"accuracy, {NAMES['class_il']}",
            "% on the tasks seen so far, after each",
            charts.accuracy_chart(points, one.tasks, title=title),
        )


def _losses(label: str, logs: Sequence[Log], tasks: int = 1) -> Iterator[Detail]:
    """A chart for each loss term."""
    for term in dict.fromkeys(name for log in logs for name in log.losses):
        found = [log for log in logs if term in log.losses]
        note = "mean over the seeds ± one standard deviation" if len(found) > 1 else ""
        chart = charts.loss_chart(loss_curve(term, found), tasks, title=f"{label}: loss term {term}")
        yield Detail(f"loss: {term}", note, chart)


def loss_curve(term: str, logs: Sequence[Log]) -> list[Point]:
    """The mean and deviation over runs of a loss term, at as many moments at most, for as long as any run has it."""
    runs = [_thinned([(log.place(task, step), mean) for task, step, mean in log.losses[term]]) for log in logs]
    first, last = min(places[0] for places, _ in runs), max(places[-1] for places, _ in runs)
    found = []
    for place in np.linspace(first, last, max(len(places) for places, _ in runs)):
        values = [np.interp(place, *run) for run in runs if run[0][0] <= place <= run[0][-1]]
        found += [(float(place), *stats.mean_std(list(map(float, values))))] if values else []
    return found


def _thinned(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Places and means, each the mean of several points where there are too many."""
    size = math.ceil(len(points) / MOST_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [part[-1][0] for part in parts], [fmean(mean for _, mean in part) for part in parts]


def _accuracy_within(group: Series) -> Iterator[Detail]:
    for name in SCENARIOS:
        if points := charts.within_tasks(group, name):
            title = f"{group.label}: {NAMES[name]} accuracy within tasks"
            line = charts.ChartLine(NAMES[name], "c0 d0", group)
            yield Detail(
                f"accuracy, {NAMES[name]}",
                "% on the tasks seen so far, within tasks and after each",
                charts.curve_chart([line], name, top=charts.highest(points), title=title),
            )


def _buffer(group: Series, attachments: Mapping[Path, Attachments]) -> Iterator[Detail]:
    """Images of the buffer of the first run that kept some."""
    for run in group.results:
        beside = attachments.get(run.path.parent)
        if beside and beside.picture and (picture := small(beside.picture, beside.picture_changed)):
            source = f"data:image/webp;base64,{base64.b64encode(picture).decode()}"
            html = f'<img src="{source}" alt="images of the buffer at the end of seed {run.seed}">'
            yield Detail(f"buffer at the end, seed {run.seed}", "in the order of the classes", html, "picture")
            return
