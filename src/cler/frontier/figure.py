"""The figure of a frontier: accuracy against arithmetic, a panel for each column, with the best methods named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cler.config.comparing import title_of
from cler.config.registry import REGULARIZERS, TEACHERS
from cler.frontier.entries import Entry, Frontier
from cler.frontier.published import Column
from cler.report.figures import COLORS, GRAY, INK, finish_panel, new_figure, write_figure

ACROSS = 2
"""Panels beside each other."""
CLOSE = 0.06
"""Share of a panel's height in which two names are in each other's way."""
ROOM = 0.12
"""Share of a panel's height above and below what it shows."""
_BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
MARKERS = {"none": "o", "ema": "^", "mkd": "s"}
"""By teacher."""


def draw_frontier(frontier: Frontier, path: Path) -> None:
    """Write a PNG: accuracy against arithmetic, a panel for each column."""
    columns = frontier.columns
    rows = -(-len(columns) // ACROSS)
    figure = new_figure(5.2 * ACROSS, 0.5 + 3.6 * rows)
    panels = list(figure.subplots(rows, ACROSS, squeeze=False).flat)
    height = max(high - low for low, high in (_heights(frontier, column) for column in columns)) * (1 + 2 * ROOM)
    for panel, column in zip(panels, columns, strict=False):
        _draw(panel, frontier, column, height or 1.0)
    across = [entry.arithmetic for entry in frontier.entries]
    for panel in panels[: len(columns)]:
        panel.set_xlim(min(across) / 6, max(across) * 6)  # for names on either side
    for panel in panels[len(columns) :]:
        panel.set_axis_off()
    for row in range(rows):
        panels[ACROSS * row].set_ylabel("Class-incremental accuracy (%)", fontsize=9.5, color=INK)
    _legend(panels[0], frontier)
    write_figure(figure, panels[0], path)


def _heights(frontier: Frontier, column: Column) -> tuple[float, float]:
    """The lowest and the highest accuracy that a panel shows."""
    shown = [entry.accuracy.mean for entry in frontier.of(column)]
    top = frontier.best_published(column)
    shown += [top.mean] if top else []
    return min(shown), max(shown)


def _draw(panel: Any, frontier: Frontier, column: Column, height: float) -> None:
    """One panel; all are `height` points high, so that distances can be compared between them."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    front = frontier.cheapest(column)
    panel.step(
        [one.arithmetic for one in front], [one.accuracy.mean for one in front],
        where="post", color=COLORS[6], linewidth=1.0, alpha=0.5,
    )  # fmt: skip
    for entry in frontier.of(column):
        panel.scatter(entry.arithmetic, entry.accuracy.mean, s=34, linewidths=1.2, zorder=3, **_style(entry))
    if top := frontier.best_published(column):
        panel.axhline(top.mean, color=GRAY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        panel.text(
            0.99, 0.03, f"– – best published: {top.label}, {top}", transform=panel.transAxes, fontsize=8, color=INK,
            ha="right", bbox=_BEHIND,
        )  # fmt: skip
    for entry, below in zip(front, _below([one.accuracy.mean for one in front], CLOSE * height), strict=True):
        panel.annotate(
            _name(entry), (entry.arithmetic, entry.accuracy.mean), textcoords="offset points", fontsize=8, color=INK,
            xytext=(6, -12) if below else (-6, 5), ha="left" if below else "right", bbox=_BEHIND,
        )  # fmt: skip
    finish_panel(panel, str(column), "Arithmetic per image of the stream (ER at 10+10 is 1)")
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    middle = sum(_heights(frontier, column)) / 2
    panel.set_ylim(middle - height / 2, middle + height / 2)


def _below(heights: list[float], close: float) -> list[bool]:
    """Whether each name goes to the right and below, for rising points: where the one before it is in its way."""
    below = [False] * len(heights)
    for number in range(1, len(heights)):
        below[number] = heights[number] - heights[number - 1] < close and not below[number - 1]
    return below


def _name(entry: Entry) -> str:
    """What stands beside its point: its parts, without the pretext task, which all that have one share."""
    return entry.row.label.replace(title_of(REGULARIZERS, "jigsaw"), "CLER")


def _style(entry: Entry) -> dict[str, Any]:
    """Filled with CLER, empty without; a marker for each teacher."""
    marker = MARKERS.get(entry.row.settings["teacher"], "D")
    color = COLORS[0] if entry.row.regularized else GRAY
    return {"marker": marker, "edgecolors": color, "facecolors": color if entry.row.regularized else "white"}


def _legend(panel: Any, frontier: Frontier) -> None:
    """What colors and markers mean, of those that there are."""
    used = {(one.row.settings["teacher"], one.row.regularized): one for one in frontier.entries}
    for (teacher, regularized), entry in sorted(used.items()):
        answering = "" if teacher == "none" else f", {title_of(TEACHERS, teacher)}"
        label = f"{'+ CLER' if regularized else 'without CLER'}{answering}"
        panel.scatter([], [], s=34, linewidths=1.2, label=label, **_style(entry))
