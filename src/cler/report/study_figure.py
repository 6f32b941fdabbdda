"""The figure of a study: what each trial had reached at each rung, by which values, and how far it got."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cler.config.labels import label_of
from cler.report.figures import COLORS, GRAY, INK, finish_panel, new_figure, write_figure
from cler.tune.space import Range
from cler.tune.study import Study, Trial, best

ACROSS = 3
"""Panels beside each other, of which there are at least three; four are two by two."""
BEST, KEPT = COLORS[1], COLORS[0]


def draw_study(study: Study, trials: Sequence[Trial], path: Path) -> None:
    """Write a PNG: accuracy at each rung by trial, by task, and against each setting."""
    settings, rungs = study.settings(trials[0].values), study.rungs()
    panels = [
        lambda panel: _by_trial(panel, trials, rungs),
        lambda panel: _by_task(panel, trials, rungs),
        *(lambda panel, each=each: _by_value(panel, each, trials, rungs) for each in study.space),
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


def _by_trial(panel: Any, trials: Sequence[Trial], rungs: Sequence[int]) -> None:
    _points(panel, list(range(1, len(trials) + 1)), trials, rungs)
    finish_panel(panel, "By trial", "Trial")


def _by_task(panel: Any, trials: Sequence[Trial], rungs: Sequence[int]) -> None:
    """A line for each trial through the rungs that it reached."""
    winner = best(trials)
    for trial in sorted(trials, key=lambda trial: (len(trial.scores), trial is winner)):
        tasks = rungs[: len(trial.scores)]
        color = BEST if trial is winner else KEPT if len(tasks) == len(rungs) else GRAY
        panel.plot(tasks, trial.scores, color=color, marker="o", markersize=3.5, linewidth=1.2, alpha=0.8)
    finish_panel(panel, "Halving: each trial as far as it was trained", "Tasks learned")
    panel.set_xlim(rungs[0] - 0.3, rungs[-1] + 0.3)


def _by_value(panel: Any, each: Range, trials: Sequence[Trial], rungs: Sequence[int]) -> None:
    """Accuracy against the values of one setting; choices stand beside each other."""
    values = [trial.values[each.name] for trial in trials]
    _points(panel, [each.choices.index(value) for value in values] if each.choices else values, trials, rungs)
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


def _points(panel: Any, places: Sequence[Any], trials: Sequence[Trial], rungs: Sequence[int]) -> None:
    """A point for each score of each trial, darker after more tasks, and a star for the last one of the best."""
    from matplotlib import colormaps

    for rung, tasks in enumerate(rungs):
        scores = [
            (place, trial.scores[rung]) for place, trial in zip(places, trials, strict=True) if len(trial.scores) > rung
        ]
        shade = colormaps["Blues"](0.15 + 0.8 * (rung + 1) / len(rungs))
        label = f"after {tasks} task{'s' * (tasks > 1)}"
        panel.scatter(*zip(*scores, strict=True), color=[shade], s=22, label=label)
    winner = best(trials)
    panel.scatter(places[trials.index(winner)], winner.score, color=BEST, marker="*", s=110, zorder=3, label="best")
