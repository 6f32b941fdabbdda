"""Charts as inline SVG, colored by the style sheet of the page: accuracy after each task, and accuracy matrices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean

from cler.regularizers import REGULARIZERS
from cler.report.figures import mean_curve
from cler.report.harmless import in_html
from cler.runs.compare import Series

WIDTH, HEIGHT = 300, 210
LEFT, RIGHT, TOP, BOTTOM = 30, 6, 10, 38
COLORS = 6
DASHES = 3
CELL, LARGEST_CELL = 20, 26
MOST_TASKS_WITH_NUMBERS = 10
STRONG = 0.72
"""Share of the scale above which a cell's number changes color, to stay readable on light and dark pages."""


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart: its label, its classes in the style sheet, and the runs that it shows."""

    label: str
    style: str
    runs: Series


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


def top_of_scale(groups: Sequence[Series], name: str) -> int:
    """The first tick of the axis above everything that a chart of these groups shows."""
    highest = max(mean + (0 if math.isnan(std) else std) for group in groups for mean, std in mean_curve(group, name))
    step = _step(highest)
    return min(100, step * math.ceil(max(highest, 1) / step))


def curve_chart(lines: Sequence[ChartLine], name: str, *, top: int, title: str) -> str:
    """Accuracy after each task, with a band of one deviation over the seeds, as SVG."""
    values = [mean_curve(line.runs, name) for line in lines]
    tasks = max(map(len, values))
    parts = [*_axes(tasks, top)]
    for line, means in zip(lines, values, strict=True):
        parts += _curve(line, means, tasks, top)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{in_html(title)}">'
        f"{''.join(parts)}</svg>"
    )


def heat_map(group: Series, name: str, *, top: float, title: str) -> str:
    """The accuracy matrix, mean over the seeds, as SVG: row t is after task t, column t is accuracy on task t."""
    rows = _mean_matrix(group, name)
    size = max(map(len, rows))
    numbers = size <= MOST_TASKS_WITH_NUMBERS
    cells = []
    for after, row in enumerate(rows):
        for task, accuracy in enumerate(row):
            cells.append(_heat_cell(task, after, accuracy, accuracy / top, numbers))
    return (
        f'<svg class="heat" viewBox="0 0 {size * CELL} {len(rows) * CELL}" style="max-width:{size * LARGEST_CELL}px" '
        f'role="img" aria-label="{in_html(title)}">'
        f"{''.join(cells)}</svg>"
    )


def highest_accuracy(groups: Sequence[Series], name: str) -> float:
    """The accuracy that the darkest cell of these groups' heat maps stands for."""
    return max(1.0, *(accuracy for group in groups for row in _mean_matrix(group, name) for accuracy in row))


def _mean_matrix(group: Series, name: str) -> list[list[float]]:
    """The mean of each cell of the accuracy matrices over the runs that have it."""
    rows_of_runs = zip_longest(*(run.accuracy[name] for run in group.results), fillvalue=[])
    return [
        [fmean(value for value in values if value is not None) for values in zip_longest(*rows)]
        for rows in rows_of_runs
    ]


def _heat_cell(task: int, after: int, accuracy: float, share: float, number: bool) -> str:
    place = f'x="{task * CELL}" y="{after * CELL}"'
    opacity = f'fill-opacity="{share:.2f}"'
    if not number:
        return f"<rect {place} {opacity}><title>task {task + 1} after {after + 1}: {accuracy:.1f} %</title></rect>"
    strength = ' class="strong"' if share > STRONG else ""
    text = f'<text x="{task * CELL + CELL // 2}" y="{after * CELL + 13}"{strength}>{accuracy:.0f}</text>'
    return f"<rect {place} {opacity}/>{text}"


def _axes(tasks: int, top: int) -> Iterator[str]:
    for level in range(0, top + 1, _step(top)):
        y = _y(level, top)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="tick end" x="{LEFT - 5}" y="{y + 4:.1f}">{level}</text>'
    stride = math.ceil(tasks / 10)
    for task in range(stride, tasks + 1, stride):
        yield f'<text class="tick middle" x="{_x(task, tasks):.1f}" y="{HEIGHT - BOTTOM + 16}">{task}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text class="tick middle" x="{middle:.0f}" y="{HEIGHT - 4}">tasks learned</text>'


def _curve(line: ChartLine, values: Sequence[tuple[float, float]], tasks: int, top: int) -> Iterator[str]:
    level = len(values) == 1 < tasks  # Joint has no tasks: a horizontal line
    places = [1, tasks] if level else range(1, len(values) + 1)
    values = [*values, *values] if level else values
    points = [(_x(task, tasks), mean, std) for task, (mean, std) in zip(places, values, strict=True)]
    if spread := [point for point in points if not math.isnan(point[2])]:
        edge = [(x, mean + std) for x, mean, std in spread] + [(x, mean - std) for x, mean, std in reversed(spread)]
        yield f'<path class="band {line.style}" d="{_path([(x, _y(value, top)) for x, value in edge])}Z"/>'
    yield f'<path class="line {line.style}" d="{_path([(x, _y(mean, top)) for x, mean, _ in points])}"/>'
    if level:
        return
    for task, (x, mean, std) in enumerate(points, 1):
        deviation = "" if math.isnan(std) else f" ± {std:.1f}"
        yield (
            f'<circle class="dot {line.style}" cx="{x:.1f}" cy="{_y(mean, top):.1f}" r="2.6">'
            f"<title>{in_html(line.label)}, after task {task}: {mean:.1f}{deviation} %</title></circle>"
        )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _x(task: int, tasks: int) -> float:
    if tasks == 1:
        return (LEFT + WIDTH - RIGHT) / 2
    return LEFT + 8 + (task - 1) / (tasks - 1) * (WIDTH - RIGHT - LEFT - 16)


def _y(value: float, top: int) -> float:
    return TOP + (1 - min(max(value, 0), top) / top) * (HEIGHT - TOP - BOTTOM)


def _step(top: float) -> int:
    return 10 if top <= 50 else 20
