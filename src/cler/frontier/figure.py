"""The figure of a frontier: accuracy against arithmetic, a panel for each contest, with the best methods named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cler.config.labels import title_of
from cler.config.registry import TEACHERS
from cler.frontier.entries import Entry, Frontier
from cler.frontier.published import Contest
from cler.report.figures import COLORS, GRAY, INK, finish_panel, new_figure, write_figure

ACROSS = 2
"""Panels beside each other."""
PLACES = ((-6, 5, "right"), (6, -12, "left"), (-9, -3, "right"), (-6, -12, "right"), (6, 5, "left"), (9, -3, "left"))
"""Where the name of a point may be, the first choice first: points to the right and up, and which end is there."""
POINT = 7
"""Half of a point's size, in pixels."""
LINE = 0.3
"""Half of the width of the line of the best published number, in pixels; less than it is, as points matter more."""
ROOM = 0.12
"""Share of a panel's height above and below what it shows."""
_BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
MARKERS = {"none": "o", "ema": "^", "mkd": "s"}
"""The marker of each teacher."""


def draw_frontier(frontier: Frontier, path: Path) -> None:
    """Write a PNG: accuracy against arithmetic, a panel for each contest."""
    contests = frontier.contests
    rows = -(-len(contests) // ACROSS)
    figure = new_figure(5.2 * ACROSS, 0.5 + 3.6 * rows)
    panels = list(figure.subplots(rows, ACROSS, squeeze=False).flat)
    height = max(high - low for low, high in (_heights(frontier, contest) for contest in contests)) * (1 + 2 * ROOM)
    for panel, contest in zip(panels, contests, strict=False):
        _draw(panel, frontier, contest, height or 1.0)
    across = [entry.arithmetic for entry in frontier.entries]
    for panel in panels[: len(contests)]:
        panel.set_xlim(min(across) / 4, max(across) * 3)  # for names, most of which are on the left
    for panel in panels[len(contests) :]:
        panel.set_axis_off()
    for row in range(rows):
        panels[ACROSS * row].set_ylabel("Class-incremental accuracy (%)", fontsize=9.5, color=INK)
    figure.draw_without_rendering()  # for names to be measured where they will be
    for panel, contest in zip(panels, contests, strict=False):
        _add_names(panel, frontier, contest)
    _legend(panels[0], frontier)
    write_figure(figure, panels[0], path)


def _heights(frontier: Frontier, contest: Contest) -> tuple[float, float]:
    """The lowest and the highest accuracy that a panel shows."""
    shown = [entry.accuracy.mean for entry in frontier.of(contest)]
    top = frontier.best_published(contest)
    shown += [top.mean] if top else []
    return min(shown), max(shown)


def _draw(panel: Any, frontier: Frontier, contest: Contest, height: float) -> None:
    """One panel; all are `height` points high, so that distances can be compared between them."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    front = frontier.cheapest(contest)
    panel.step(
        [one.arithmetic for one in front], [one.accuracy.mean for one in front],
        where="post", color=COLORS[6], linewidth=1.0, alpha=0.5,
    )  # fmt: skip
    for entry in frontier.of(contest):
        panel.scatter(entry.arithmetic, entry.accuracy.mean, s=34, linewidths=1.2, zorder=3, **_style(entry))
    if top := frontier.best_published(contest):
        panel.axhline(top.mean, color=GRAY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        panel.text(
            0.99, 0.03, f"– – best published: {top.name}, {top}", transform=panel.transAxes, fontsize=8, color=INK,
            ha="right", bbox=_BEHIND,
        )  # fmt: skip
    finish_panel(panel, str(contest), "Arithmetic per image of the stream (ER at 10+10 is 1)")
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    middle = sum(_heights(frontier, contest)) / 2
    panel.set_ylim(middle - height / 2, middle + height / 2)


def _add_names(panel: Any, frontier: Frontier, contest: Contest) -> None:
    """Name the rows that none beats, the best first, each where it covers least of points, names and the line."""
    from matplotlib.transforms import Bbox

    where = [panel.transData.transform((one.arithmetic, one.accuracy.mean)) for one in frontier.of(contest)]
    taken = [Bbox.from_extents(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in where]
    taken += [text.get_window_extent() for text in panel.texts]
    if top := frontier.best_published(contest):
        _, height = panel.transData.transform((1.0, top.mean))
        taken.append(Bbox.from_extents(panel.bbox.x0, height - LINE, panel.bbox.x1, height + LINE))
    for entry in reversed(frontier.cheapest(contest)):
        name = panel.annotate(
            entry.name, (entry.arithmetic, entry.accuracy.mean), xytext=(0, 0), textcoords="offset points",
            fontsize=8, color=INK, bbox=_BEHIND,
        )  # fmt: skip
        boxes = [_moved(name, *place).get_window_extent() for place in PLACES]
        covered = [_area_shared(box, taken) + _area_outside(box, panel.bbox) for box in boxes]
        best = covered.index(min(covered))
        _moved(name, *PLACES[best])
        taken.append(boxes[best])


def _moved(name: Any, right: float, up: float, end: str) -> Any:
    """The name, put where it may be."""
    name.set_position((right, up))
    name.set_horizontalalignment(end)
    return name


def _area_shared(box: Any, others: Sequence[Any]) -> float:
    overlaps = [type(box).intersection(box, other) for other in others]
    return sum(overlap.width * overlap.height for overlap in overlaps if overlap is not None)


def _area_outside(box: Any, panel: Any) -> float:
    return box.width * box.height - _area_shared(box, [panel])


def _style(entry: Entry) -> dict[str, Any]:
    """Filled with CLER, empty without; a marker for each teacher."""
    marker = MARKERS.get(entry.row.settings["teacher"], "D")
    color = COLORS[0] if entry.row.regularized else GRAY
    return {"marker": marker, "edgecolors": color, "facecolors": color if entry.row.regularized else "white"}


def _legend(panel: Any, frontier: Frontier) -> None:
    """What colors and markers mean, of those that there are."""
    used = {(one.row.regularized, one.row.settings["teacher"]): one for one in frontier.entries}
    for regularized, teacher in sorted(used, key=lambda one: (one[0], one[1] != "none", one[1])):
        label = "with CLER" if regularized else "without CLER"
        label += "" if teacher == "none" else f", {title_of(TEACHERS, teacher)}"
        panel.scatter([], [], s=34, linewidths=1.2, label=label, **_style(used[regularized, teacher]))
