"""Statistical evidence for gains: intervals and p-values of several tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cler import stats
from cler.metrics import SCENARIOS
from cler.runs.series import Series

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Evidence:
    """A gain in final average accuracy, its 95 % intervals and its p-values; NaN where there are too few runs."""

    runs: Series
    scenario: str
    points: float
    welch_interval: Bounds
    bootstrap_interval: Bounds
    student: float
    """Student's t-test, with pooled variance."""
    welch: float
    paired: float
    """Student's test on the differences between runs of the same seed."""
    pairs: int
    holm: float = math.nan
    """Student's p-value after Holm's correction for all the gains of the table."""

    @property
    def tested(self) -> bool:
        """Whether there are enough runs for a p-value."""
        return not math.isnan(self.student)


def evidence(groups: Sequence[Series]) -> list[Evidence]:
    """The evidence for every gain in a table of groups, class- and task-incremental."""
    found = [_evidence(group, group.twin, name) for group in groups if group.twin for name in SCENARIOS]
    corrected = stats.holm([one.student for one in found])
    return [replace(one, holm=p_value) for one, p_value in zip(found, corrected, strict=True)]


def _evidence(group: Series, twin: Series, name: str) -> Evidence:
    by_seed = [{run.seed: run.metrics["accuracy"][name] for run in one.results} for one in (twin, group)]
    before, after = (list(one.values()) for one in by_seed)
    shared = sorted(by_seed[0].keys() & by_seed[1].keys())
    return Evidence(
        runs=group,
        scenario=name,
        points=group.gain[name].points,
        welch_interval=stats.welch_interval(before, after),
        bootstrap_interval=stats.bootstrap_interval(before, after),
        student=group.gain[name].p_value,
        welch=stats.welch(before, after).p_value,
        paired=stats.paired_t_test(*([one[seed] for seed in shared] for one in by_seed)).p_value,
        pairs=len(shared),
    )
