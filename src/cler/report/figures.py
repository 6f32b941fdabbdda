"""Figures of runs, drawn without pyplot: no window, no global state."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import cycle, zip_longest
from pathlib import Path
from typing import Any

from cler import stats
from cler.errors import UsageError, one_line
from cler.files import replacing, writing
from cler.metrics import average_accuracy_after_each_task as averages
from cler.report.sheets import NAMES
from cler.runs.distinguishing import distinguishing_settings
from cler.runs.series import Series

# Okabe and Ito's colors, which color-blind readers can distinguish; markers distinguish them in gray.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX"
FORMATS = ("png", "pdf", "svg")
GRAY = "#8a8a8a"
INK = "#333333"
REFERENCES: dict[str, dict[str, Any]] = {
    "finetune": {"color": GRAY, "marker": "o", "linestyle": (0, (4, 2))},
    "joint": {"color": GRAY, "marker": "s", "linestyle": (0, (1, 1.5))},
}


def accuracy_after_each_task(groups: Sequence[Series], path: str | Path) -> None:
    """Draw the mean accuracy over the tasks seen so far, after each task, ± one deviation over the seeds."""
    if not groups:
        raise UsageError("there is no complete run to draw")
    figure = new_figure(8.4, 3.9)
    panels = figure.subplots(1, len(NAMES), sharey=True)
    tasks = max(len(run.accuracy["class_il"]) for group in groups for run in group.results)
    for panel, name in zip(panels, NAMES, strict=True):
        for group, style in zip(groups, _styles(groups), strict=True):
            _draw_group(panel, group, name, tasks, style)
        finish_panel(panel, NAMES[name].capitalize(), "Tasks learned")
        panel.set_xlim(0.8, tasks + 0.2)
    panels[0].set_ylim(0, min(100, panels[0].get_ylim()[1]))
    if any(len(group.results) > 1 for group in groups):
        panels[-1].set_title("bands: ± one std over seeds", fontsize=8.5, loc="right", color=GRAY)
    panels[0].set_ylabel("Accuracy on tasks seen so far (%)", fontsize=9.5, color=INK)
    write_figure(figure, panels[0], path)


def new_figure(width: float, height: float) -> Any:
    """An empty figure of this size in inches."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("figures need matplotlib: pip install matplotlib") from None

    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08, wspace=0.04)
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure: Any, panel: Any, path: str | Path, title: str | None = None) -> None:
    """Add a title and the legend of a panel, and write the figure in the format that the name of the file ends in."""
    from matplotlib import rc_context

    path = Path(path)
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise UsageError(f"cannot draw {path}: its name has to end in {' or '.join(f'.{each}' for each in FORMATS)}")
    with rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a sign that the font lacks is drawn as a box
        _add_legend(figure, panel)
        if title:
            figure.suptitle(title, fontsize=11.5, fontweight="bold", color=INK)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                figure.savefig(file, format=form)


def mean_curve(group: Series, name: str) -> list[tuple[float, float]]:
    """Mean and deviation over the seeds of the accuracy on the tasks seen so far, after each task.

    A run with fewer tasks than others counts in the means after the tasks that it has.
    """
    curves = zip_longest(*(averages(run.accuracy[name]) for run in group.results))
    return [stats.mean_std([value for value in values if value is not None]) for values in curves]


def _styles(groups: Sequence[Series]) -> list[dict[str, Any]]:
    """Gray for Finetune and Joint alone, a color and a marker for each of the others; no two labels are equal."""
    palette = zip(cycle(COLORS), cycle(MARKERS), strict=False)
    styles = []
    for group in groups:
        reference = None if group.regularized else REFERENCES.get(group.settings["method"])
        style = reference or dict(zip(("color", "marker"), next(palette), strict=True))
        note = distinguishing_settings(group, groups)
        styles.append(style | {"label": one_line(f"{group.label}, {note}" if note else group.label)})
    return styles


def _draw_group(panel: Any, group: Series, name: str, tasks: int, style: dict[str, Any]) -> None:
    means, deviations = zip(*mean_curve(group, name), strict=True)
    places = list(range(1, len(means) + 1))
    if len(means) < tasks and len(means) == 1:  # Joint has no tasks: a horizontal line
        places, means, deviations = [1, tasks], means * 2, deviations * 2
        style = style | {"marker": ""}
    draw_curve(panel, places, means, deviations, style)


def draw_curve(
    panel: Any, places: Sequence[int], means: Sequence[float], deviations: Sequence[float], style: dict[str, Any]
) -> None:
    """A line through the means, with a band of one deviation where there are several runs."""
    marks = {"markersize": 4.5, "markeredgecolor": "white", "markeredgewidth": 0.6}
    panel.plot(places, means, linewidth=1.8, clip_on=False, **marks, **style)
    if not any(map(math.isnan, deviations)):
        low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
        high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
        panel.fill_between(places, low, high, color=style["color"], alpha=0.16, linewidth=0)


def finish_panel(panel: Any, title: str, across: str) -> None:
    """Set title, axes and grid in the style of all figures."""
    from matplotlib.ticker import MaxNLocator

    panel.set_title(title, fontsize=10.5, loc="left", color=INK)
    panel.set_xlabel(across, fontsize=9.5, color=INK)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    panel.tick_params(labelsize=8.5, length=3, color=GRAY, labelcolor=INK)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        panel.spines[side].set_color(GRAY)


def _add_legend(figure: Any, panel: Any) -> None:
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(4, len(labels)),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handlelength=2.4,
    )
