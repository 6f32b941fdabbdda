"""Charts as inline SVG, and matrices as tables, colored by the style sheet of the page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from statistics import fmean

from cler import stats
from cler.regularizers import REGULARIZERS
from cler.report.escaping import in_html
from cler.report.figures import mean_curve
from cler.report.numbers import minus
from cler.runs.series import Series

WIDTH, HEIGHT = 300, 210
LEFT, RIGHT, TOP, BOTTOM = 34, 6, 10, 38
FINE = 2
"""Units of a path for each one of the chart, so that whole numbers are fine enough."""
COLORS = 6
DASHES = 3
MOST_TASKS_WITH_NUMBERS = 10
"""Tasks up to which the cells of a matrix show numbers; with more, a cell shows its number under the mouse."""
SHADES = 20
STRONG = 0.72
"""Share of the scale above which a cell's number changes color, to stay readable on light and dark pages."""

Point = tuple[float, float, float]
"""A place on the axis of tasks, the mean there, and the deviation, NaN where it is not known."""


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart: its label, its classes in the style sheet, and the runs that it shows."""

    label: str
    style: str
    runs: Series


@dataclass(frozen=True)
class Frame:
    """The axes of a chart: tasks across, from `first` to `last`, and the values at the ticks up."""

    first: float
    last: float
    ticks: tuple[float, ...]

    def x(self, place: float) -> float:
        """Where a task is, from the left."""
        if self.first == self.last:
            return (LEFT + WIDTH - RIGHT) / 2
        share = (place - self.first) / (self.last - self.first)
        return LEFT + 8 + share * (WIDTH - RIGHT - LEFT - 16)

    def y(self, value: float) -> float:
        """Where a value is, from the top."""
        low, high = self.ticks[0], self.ticks[-1]
        share = (min(max(value, low), high) - low) / (high - low)
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def colors(groups: Iterable[Series]) -> dict[str, int]:
    """The number of each regularizer's color, the same in every chart; unknown regularizers come last."""
    known = "none", *REGULARIZERS
    others = sorted({group.settings["regularizer"] for group in groups} - set(known))
    return {name: index % COLORS for index, name in enumerate((*known, *others))}


def chart_lines(
    groups: Sequence[Series], labels: Sequence[str], references: Sequence[Series], colored: Mapping[str, int]
) -> list[ChartLine]:
    """A line for each group in the color of its regularizer, dashed where that is taken; gray for the references."""
    lines = [ChartLine(group.label, f"reference {group.settings['method']}", group) for group in references]
    taken: Counter[int] = Counter()
    for label, group in zip(labels, groups, strict=True):
        color = colored[group.settings["regularizer"]]
        lines.append(ChartLine(label, f"c{color} d{taken[color] % DASHES}", group))
        taken[color] += 1
    return lines


def round_ticks(low: float, high: float, most: int = 8) -> tuple[float, ...]:
    """At most so many round numbers, from below everything that is shown to above it."""
    span = high - low if high - low > 1e-300 else 1.0  # whose parts are numbers, too
    rough = span / (most - 2)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(step * index for index in range(first, max(last, first + 1) + 1))


def top_of_scale(groups: Sequence[Series], name: str) -> float:
    """The highest that a chart of these groups shows, in percent."""
    return highest(point for group in groups for point in (*after_tasks(group, name), *within_tasks(group, name)))


def after_tasks(group: Series, name: str) -> list[Point]:
    """Accuracy after each task, on those seen so far."""
    return [(float(task), mean, std) for task, (mean, std) in enumerate(mean_curve(group, name), 1)]


def within_tasks(group: Series, name: str) -> list[Point]:
    """Accuracy within tasks and after them, at the moments when all the runs were evaluated; empty where none were."""
    found: dict[float, list[float]] = {}
    for run in group.results:
        steps = (run.curves or {}).get("step", [])
        if (curve := run.curve(name)) is not None:
            last = dict(zip(curve.task, steps, strict=True))  # of several evaluations in a task the last one counts
            for task, step, row in zip(curve.task, steps, curve.rows, strict=True):
                found.setdefault(round(task + step / max(last[task], 1), 6), []).append(fmean(row))
    shared = [place for place, values in sorted(found.items()) if len(values) == len(group.results)]
    return [(place, *stats.mean_std(found[place])) for place in shared]


def curve_chart(lines: Sequence[ChartLine], name: str, *, top: float, title: str) -> str:
    """Accuracy within and after tasks, with a band of one deviation over the seeds, as SVG."""
    after = [after_tasks(line.runs, name) for line in lines]
    within = [within_tasks(line.runs, name) for line in lines]
    tasks = max(map(len, after))
    frame = Frame(0 if any(within) else 1, tasks, round_ticks(0, max(1, min(top, 100))))
    parts = [*_axes(frame, "tasks learned")]
    for line, points, finer in zip(lines, after, within, strict=True):
        if len(points) == 1 < tasks:  # Joint has no tasks: a horizontal line
            parts += _curve([(place, *points[0][1:]) for place in (frame.first, frame.last)], line.style, frame)
        else:
            parts += [*_curve(finer or points, line.style, frame), *_dots(points, line.style, frame)]
    return _svg(title, parts)


def loss_chart(points: Sequence[Point], tasks: int, *, title: str) -> str:
    """The mean of a loss term over the seeds while tasks are learned, as SVG, with a band of one deviation."""
    frame = _frame(points, tasks)
    place, mean, _ = points[0]  # a line needs two
    dot = f'<g class="dot c0"><circle cx="{frame.x(place):.1f}" cy="{frame.y(mean):.1f}"/></g>'
    return _svg(title, [*_axes(frame, "tasks"), *_curve(points, "c0 d0", frame), *([dot] if len(points) == 1 else [])])


def accuracy_chart(points: Sequence[Point], tasks: int, *, title: str) -> str:
    """Accuracy after the tasks that one run has learned so far, as SVG."""
    frame = _frame(points, tasks)
    return _svg(title, [*_axes(frame, "tasks learned"), *_curve(points, "c0 d0", frame), *_dots(points, "c0", frame)])


def _frame(points: Sequence[Point], tasks: int) -> Frame:
    """Axes from 0 to so many tasks, or more where there are points, and from 0 up, or below where there are points."""
    low = min(0.0, *(mean for _, mean, _ in points))
    return Frame(0, max(tasks, math.ceil(points[-1][0] - 1e-3)), round_ticks(low, highest(points), 6))


def highest(points: Iterable[Point]) -> float:
    """The upper edge of the bands of some points."""
    return max(mean + (0 if math.isnan(std) else std) for _, mean, std in points)


def _svg(title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{in_html(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _axes(frame: Frame, across: str) -> Iterator[str]:
    lines = "".join(f"M{LEFT} {frame.y(level):.1f}H{WIDTH - RIGHT}" for level in frame.ticks)
    yield f'<path class="grid" d="{lines}"/>'
    for level in frame.ticks:
        text = minus(f"{level:.4g}")
        yield f'<text class="tick end" x="{LEFT - 5}" y="{frame.y(level) + 4:.1f}">{text}</text>'
    stride = max(1, math.ceil(frame.last / 10))
    for task in range(stride, int(frame.last) + 1, stride):
        yield f'<text class="tick middle" x="{frame.x(task):.1f}" y="{HEIGHT - BOTTOM + 16}">{task}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text class="tick middle" x="{middle:.0f}" y="{HEIGHT - 4}">{across}</text>'


def _curve(points: Sequence[Point], style: str, frame: Frame) -> Iterator[str]:
    yield f'<g transform="scale({1 / FINE})">'
    if len(spread := [point for point in points if not math.isnan(point[2])]) > 1:
        edge = [(x, mean + std) for x, mean, std in spread] + [(x, mean - std) for x, mean, std in reversed(spread)]
        yield f'<path class="band {style}" d="{_path(edge, frame)}Z"/>'
    yield f'<path class="line {style}" d="{_path([(x, mean) for x, mean, _ in points], frame)}"/></g>'


def _path(points: Sequence[tuple[float, float]], frame: Frame) -> str:
    """Whole numbers, each relative to the one before: a few characters for each point."""
    whole = [(round(FINE * frame.x(place)), round(FINE * frame.y(value))) for place, value in points]
    steps = [f"{x - was_x} {y - was_y}" for (was_x, was_y), (x, y) in pairwise(whole)]
    return f"M{whole[0][0]} {whole[0][1]}" + (f"l{' '.join(steps)}" if steps else "").replace(" -", "-")


def _dots(points: Sequence[Point], style: str, frame: Frame) -> Iterator[str]:
    yield f'<g class="dot {style}">'
    for place, mean, std in points:
        deviation = "" if math.isnan(std) else f" ± {std:.1f}"
        yield (
            f'<circle cx="{frame.x(place):.0f}" cy="{frame.y(mean):.1f}">'
            f"<title>after task {place:g}: {mean:.1f}{deviation} %</title></circle>"
        )
    yield "</g>"


def heat_map(rows: Sequence[Sequence[float]], *, top: float, title: str) -> str:
    """A matrix of percentages by tasks, as a table whose cells are the darker, the closer they are to `top`."""
    width = max(map(len, rows))
    kind = "heat" if width <= MOST_TASKS_WITH_NUMBERS else "heat small"
    heading = "".join(f"<th>{task}</th>" for task in range(1, width + 1))
    lines = "".join(
        f"<tr><th>{task}</th>{''.join(_heat_cell(value, value / top) for value in row)}</tr>"
        for task, row in enumerate(rows, 1)
    )
    return (
        f'<table class="{kind}" aria-label="{in_html(title)}">'
        f"<thead><tr><th></th>{heading}</tr></thead><tbody>{lines}</tbody></table>"
    )


def highest_accuracy(groups: Sequence[Series], name: str) -> float:
    """The accuracy that the darkest cell of these groups' heat maps stands for."""
    return max(1.0, *(accuracy for group in groups for row in mean_matrix(group, name) for accuracy in row))


def mean_matrix(group: Series, name: str) -> list[list[float]]:
    """The mean of each cell of the accuracy matrices over the runs that have it."""
    rows_of_runs = zip_longest(*(run.accuracy[name] for run in group.results), fillvalue=[])
    return [
        [fmean(value for value in values if value is not None) for values in zip_longest(*rows)]
        for rows in rows_of_runs
    ]


def mean_confusion(group: Series) -> list[list[float]]:
    """How many percent of each task's test images are predicted as classes of each task, over the runs that say it."""
    found = [run.confusion for run in group.results if run.confusion]
    summed = [[sum(counts) for counts in zip(*rows, strict=True)] for rows in zip(*found, strict=True)]
    return [[100 * count / max(sum(row), 1) for count in row] for row in summed]


def _heat_cell(value: float, share: float) -> str:
    strength = " on" if share > STRONG else ""
    return f'<td class="h{round(SHADES * min(share, 1))}{strength}">{value:.0f}</td>'
