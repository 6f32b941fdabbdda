"""Runs with the same settings: their means and deviations over seeds, and the gain over others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cler import metrics as measures
from cler import stats
from cler.config.labels import label_of, title_of
from cler.config.settings import pair_of
from cler.config.values import OWN_SEED, number_of_tasks
from cler.files import without_non_finite
from cler.methods import METHODS
from cler.metrics import METRICS, SCENARIOS
from cler.regularizers import REGULARIZERS
from cler.runs.measured import Measured
from cler.runs.results import Result


@dataclass(frozen=True)
class Estimate:
    """Mean and sample standard deviation over runs; the deviation of a single run is NaN."""

    mean: float
    std: float


@dataclass(frozen=True)
class Gain:
    """How much accuracy a regularizer adds to a method, in points, and Student's p-value (NaN: too few runs)."""

    points: float
    p_value: float


def gain(alone: Sequence[float], values: Sequence[float]) -> Gain:
    """The gain of runs over those of the method alone, given one value per run."""
    return Gain(stats.mean_std(values)[0] - stats.mean_std(alone)[0], stats.t_test(alone, values).p_value)


@dataclass(frozen=True, eq=False)
class Series:
    """Runs with the same settings, by seed. Estimates and gains have the keys class_il and task_il."""

    settings: dict[str, Any]
    results: tuple[Result, ...]
    """One for each seed, in order."""
    twin: Series | None = None
    gain: dict[str, Gain] = field(default_factory=dict)

    @property
    def tasks(self) -> int:
        """How many tasks there are."""
        return number_of_tasks(self.settings["tasks"])

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs."""
        return [run.seed for run in self.results]

    @Measured
    def metrics(self) -> dict[str, dict[str, Estimate]]:
        """Mean and deviation of each of `cler.metrics.METRICS`."""

        def estimate(metric: str, scenario: str) -> Estimate:
            return Estimate(*stats.mean_std([run.metrics[metric][scenario] for run in self.results]))

        return {metric: {name: estimate(metric, name) for name in SCENARIOS} for metric in METRICS}

    @property
    def final_accuracy(self) -> dict[str, Estimate]:
        """Final average accuracy."""
        return self.metrics["accuracy"]

    @property
    def adjusted_forgetting(self) -> dict[str, Estimate]:
        """Adjusted forgetting; NaN where everything is learned at once."""
        return self.metrics["adjusted_forgetting"]

    def accuracies(self, scenario: str) -> list[float]:
        """The final average accuracies of the runs."""
        return [run.metrics["accuracy"][scenario] for run in self.results]

    @cached_property
    def validation(self) -> Estimate | None:
        """Final average accuracy on held-out training images, class-incremental; None where none were held out."""
        finals = [measures.accuracy(run.validation["class_il"]) for run in self.results if run.validation]
        return Estimate(*stats.mean_std(finals)) if len(finals) == len(self.results) else None

    @property
    def tuned(self) -> dict[str, Any] | None:
        """How the settings were tuned, by the first run that says it."""
        return next((run.tuned for run in self.results if run.tuned), None)

    @property
    def seen_by_tuning(self) -> int:
        """How many of the tasks, from the first on, decided when the settings were tuned.

        Where each seed has a class order of its own, the classes of any task may have decided: all count.
        """
        if not self.tuned or self.tuned["dataset"] != self.settings["dataset"]:
            return 0
        way, _, number = self.tuned["select_on"].partition(":")
        first = way == "first-tasks" and self.settings.get("class_order") != OWN_SEED
        return min(int(number), self.tasks) if first else self.tasks

    def unseen_by_tuning(self, scenario: str) -> Estimate | None:
        """Final average accuracy on the tasks that tuning did not see; None where it saw all, or there was none."""
        finals = [run.accuracy[scenario][-1][self.seen_by_tuning :] for run in self.results]
        if not self.tuned or not all(finals):
            return None
        return Estimate(*stats.mean_std([measures.accuracy([each]) for each in finals]))

    @property
    def regularized(self) -> bool:
        """Whether a regularizer was added to the method."""
        return self.settings["regularizer"] != "none"

    @property
    def reference(self) -> bool:
        """Whether these are runs of a bound that continual learners are measured against, such as Joint."""
        method = METHODS.get(self.settings["method"])
        return method is not None and method.about.reference and not self.regularized

    @property
    def regularizer_label(self) -> str:
        """The regularizer as tables show it: 'CLER (jigsaw)'."""
        return " + ".join(title_of(REGULARIZERS, name) for name in self.settings["regularizer"].split("+"))

    @property
    def pair(self) -> str:
        """Method, regularizer and teacher, as names of folders have them: 'er-ace+jigsaw+ema'."""
        return pair_of(*(self.settings[name] for name in ("method", "regularizer", "teacher")))

    @cached_property
    def label(self) -> str:
        """The parts as tables show them: 'ER-ACE + CLER (jigsaw) + EMA'."""
        return label_of(*(self.settings[name] for name in ("method", "regularizer", "teacher")))

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON; what is not known is null."""
        scores = {
            name: {
                **{metric: vars(estimates[name]) for metric, estimates in self.metrics.items()},
                "gain": vars(self.gain[name]) if self.gain else None,
                "unseen_by_tuning": vars(unseen) if (unseen := self.unseen_by_tuning(name)) else None,
            }
            for name in SCENARIOS
        }
        return without_non_finite(
            {
                "label": self.label,
                "settings": self.settings,
                "runs": len(self.results),
                "seeds": self.seeds,
                **scores,
                "validation": vars(self.validation) if self.validation else None,
                "tuned": self.tuned,
                "twin": self.twin.settings if self.twin else None,
            }
        )
