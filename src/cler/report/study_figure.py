"""The figure of a study: what each trial reached, by which values, and which of them were dropped when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from cler.config.comparing import label_of
from cler.report.figures import COLORS, GRAY, INK, finish_panel, new_figure, write_figure
from cler.tune.space import Range
from cler.tune.study import Study, Trial, best

ACROSS = 3
"""Panels beside each other, of which there are at least three; four are two by two."""
BEST, KEPT = COLORS[1], COLORS[0]


def draw_study(study: Study, trials: Sequence[Trial], path: Path) -> None:
    """Write a PNG: accuracy by trial, after each task of those that were not dropped, and against each setting."""
    settings = study.settings(trials[0].values)
    rungs = study.selection.rungs(settings)
    panels = [
        lambda panel: _by_trial(panel, trials),
        lambda panel: _by_task(panel, trials, rungs),
        *(lambda panel, each=each: _by_value(panel, each, trials) for each in study.space),
    ]
    across = 2 if len(panels) == 4 else ACROSS
    rows = -(-len(panels) // across)
    figure = new_figure(4.0 * across, 0.4 + 3.2 * rows)
    places = list(figure.subplots(rows, across, squeeze=False).flat)
    for place, draw in zip(places, panels, strict=False):
        draw(place)
    for place in places[len(panels) :]:
        place.set_axis_off()
    for row in range(rows):
        places[row * across].set_ylabel("Accuracy on held-out images (%)", fontsize=9.5, color=INK)
    label = label_of(settings.method, settings.regularizer, settings.teacher)
    write_figure(figure, places[0], path, f"{label}: {len(trials)} trials, selected on {study.selection}")


def _by_trial(panel: Any, trials: Sequence[Trial]) -> None:
    numbers = range(1, len(trials) + 1)
    _points(panel, list(numbers), trials)
    reached = accumulate((-math.inf if trial.dropped else trial.score for trial in trials), max)
    shown = [score if math.isfinite(score) else math.nan for score in reached]
    panel.plot(numbers, shown, drawstyle="steps-post", color=BEST, linewidth=1.4, label="best so far")
    finish_panel(panel, "By trial", "Trial")


def _by_task(panel: Any, trials: Sequence[Trial], rungs: Sequence[int]) -> None:
    """A line for each trial through the tasks after which it was compared with others, as far as it was trained."""
    winner = best(trials)
    for trial in sorted(trials, key=lambda trial: (not trial.dropped, trial is winner)):
        tasks = tasks_of(trial, rungs)
        color = BEST if trial is winner else GRAY if trial.dropped else KEPT
        panel.plot(tasks, trial.scores, color=color, marker="o", markersize=3.5, linewidth=1.2, alpha=0.8)
    finish_panel(panel, "Halving: each trial as far as it was trained", "Tasks learned")
    panel.set_xlim(rungs[0] - 0.3, rungs[-1] + 0.3)


def tasks_of(trial: Trial, rungs: Sequence[int]) -> list[int]:
    """After how many tasks each of its scores was taken; the last of a generation skips to the end."""
    if trial.dropped:
        return list(rungs[: len(trial.scores)])
    return [*rungs[: len(trial.scores) - 1], rungs[-1]]


def _by_value(panel: Any, each: Range, trials: Sequence[Trial]) -> None:
    """Accuracy against the values of one setting; choices stand beside each other."""
    values = [trial.values[each.name] for trial in trials]
    if each.choices:
        _points(panel, [each.choices.index(value) for value in values], trials)
    else:
        _points(panel, values, trials)
    finish_panel(panel, f"By {each.name}", each.name)
    if each.choices:
        panel.set_xticks(range(len(each.choices)), list(map(str, each.choices)))
        panel.set_xlim(-0.5, len(each.choices) - 0.5)
    elif each.log:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(numticks=6))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.xaxis.set_minor_formatter(NullFormatter())
    elif not each.whole:
        from matplotlib.ticker import MaxNLocator

        panel.xaxis.set_major_locator(MaxNLocator(nbins=6))


def _points(panel: Any, places: Sequence[Any], trials: Sequence[Trial]) -> None:
    """A point for each trial: open where it was dropped, by what it had reached then."""
    winner = best(trials)
    kinds: dict[str, tuple[list[bool], dict[str, Any]]] = {
        "dropped, as it was then": ([trial.dropped for trial in trials], {"facecolors": "none", "edgecolors": GRAY}),
        "trained to the end": ([not trial.dropped for trial in trials], {"color": KEPT}),
        "best": ([trial is winner for trial in trials], {"color": BEST, "marker": "*", "s": 110, "zorder": 3}),
    }
    for label, (chosen, style) in kinds.items():
        found = [(place, trial.score) for place, trial, wanted in zip(places, trials, chosen, strict=True) if wanted]
        if found:
            panel.scatter(*zip(*found, strict=True), label=label, linewidths=1.0, **{"s": 22} | style)
