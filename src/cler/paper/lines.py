"""A table of the paper from our runs: every number beside the paper's, and what they amount to."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cler import stats
from cler.config.settings import Settings
from cler.files import without_non_finite
from cler.methods import METHODS
from cler.paper.tables import BesidePaper, PaperCell, PaperTable, Printed, compared, evaluated_as
from cler.report.numbers import or_nan
from cler.runs.series import Gain, Series, gain

GAIN_TOLERANCE = 1.5
"""Points within which our gain counts as agreeing with the paper's."""
CHOSEN = "†"
"""Marks rows whose settings we chose by the accuracy that is reported."""


@dataclass(frozen=True)
class Line:
    """One number of a table: ours and the paper's, and the gain over the method alone in both."""

    cell: PaperCell
    scenario: str
    """class_il or task_il."""
    ours: Series | None
    """Our runs; None where there are none."""
    paper: Printed | None
    """None for the pretext task that the paper does not print."""
    beside: BesidePaper | None
    """Our accuracy and the paper's; None where one of them is missing."""
    gain: Gain | None
    """The gain of our runs over those of the method alone."""
    paper_gain: Gain | None
    """The gain in the paper; its p-value is NaN where the paper prints none."""
    better_of_two: bool | None = None
    """With runs of both pretext tasks: whether these are the better ones, beside which the paper's number stands."""
    holm: float = math.nan
    """The p-value of the gain after Holm's correction for all tests in the table."""

    @property
    def runs(self) -> int:
        """The number of our runs."""
        return len(self.ours.results) if self.ours else 0

    @property
    def mean(self) -> float | None:
        """Our final average accuracy, evaluated as the paper did."""
        if self.beside:
            return self.beside.ours
        return self.ours.final_accuracy[self.scenario].mean if self.ours else None

    @property
    def std(self) -> float | None:
        """The standard deviation of our final average accuracy; NaN for a single run."""
        if self.beside:
            return self.beside.ours_std
        return self.ours.final_accuracy[self.scenario].std if self.ours else None

    @property
    def adjusted_forgetting(self) -> float | None:
        """Our adjusted forgetting; None where everything is learned at once."""
        if self.ours is None or METHODS[self.cell.method].merged:
            return None
        return self.ours.adjusted_forgetting[self.scenario].mean

    @property
    def difference(self) -> float | None:
        """Our accuracy minus the paper's, in points."""
        return self.beside.difference if self.beside else None

    @property
    def p_value(self) -> float | None:
        """The p-value of Welch's test of our accuracy against the paper's."""
        return self.beside.p_value if self.beside else None

    @property
    def agrees(self) -> bool | None:
        """Whether our accuracy agrees with the paper's, as `BesidePaper` defines it; None where one is missing."""
        return self.beside.agrees if self.beside else None

    @property
    def gain_difference(self) -> float | None:
        """Our gain minus the paper's, in points."""
        return self.gain.points - self.paper_gain.points if self.gain and self.paper_gain else None

    @property
    def gain_agrees(self) -> bool | None:
        """Whether our gain is close to the paper's and, for CLER, positive, as it claims; None where one is missing."""
        if self.gain is None or self.gain_difference is None:
            return None
        as_claimed = self.gain.points > 0 or not self.cell.equivariant
        return as_claimed and abs(self.gain_difference) <= GAIN_TOLERANCE

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON; what is not known is null."""
        numbers = {
            "mean": self.mean,
            "std": self.std,
            "adjusted_forgetting": self.adjusted_forgetting,
            "runs": self.runs,
        }
        return without_non_finite(
            {
                **self.cell.to_json(),
                "scenario": self.scenario,
                "in_this_version": self.cell.available,
                "precision": self.ours.settings.get("precision") if self.ours else None,
                "ours": numbers if self.ours else None,
                "paper": dataclasses.asdict(self.paper) if self.paper else None,
                "difference": self.difference,
                "p_value": self.p_value,
                "p_value_of_three": self.beside.p_value_of_three if self.beside else None,
                "agrees": self.agrees,
                "gain": vars(self.gain) | {"p_holm": self.holm} if self.gain else None,
                "paper_gain": vars(self.paper_gain) if self.paper_gain else None,
                "gain_difference": self.gain_difference,
                "gain_agrees": self.gain_agrees,
                "better_of_two": self.better_of_two,
            }
        )


def lines(table: PaperTable, groups: Sequence[Series], precision: str = Settings.precision) -> list[Line]:
    """A line for each cell and scenario of a table, with our numbers beside the paper's.

    Of runs that differ only in precision, those in the precision of most of the table's runs are preferred, and in a
    tie those in `precision`.
    """
    usual = usual_precision(table, groups, precision)
    ours = {cell: find_group(cell, groups, usual) for cell in table.cells}
    told = [
        _line(cell, scenario, table, ours)
        for cell in table.cells
        for scenario in table.scenarios
        if cell.printed(scenario) or not (cell.class_il or cell.task_il)
    ]
    corrected = stats.holm([line.gain.p_value if line.gain else math.nan for line in told])
    return [dataclasses.replace(line, holm=p_value) for line, p_value in zip(told, corrected, strict=True)]


def usual_precision(table: PaperTable, groups: Sequence[Series], default: str) -> str:
    """The precision of most runs of a table; in a tie, and without any runs, the default."""
    runs: Counter[str] = Counter()
    for group in groups:
        if any(cell.made(group) for cell in table.cells):
            runs[group.settings["precision"]] += len(group.results)
    return max([*runs], key=lambda name: (runs[name], name == default), default=default)


def find_group(cell: PaperCell, groups: Sequence[Series], precision: str) -> Series | None:
    """The runs of a cell: in this precision if there are any, else in the precision with the most runs."""
    made = [group for group in groups if cell.made(group)]
    return max(made, key=lambda one: (one.settings.get("precision") == precision, len(one.results)), default=None)


def _line(cell: PaperCell, scenario: str, table: PaperTable, ours: dict[PaperCell, Series | None]) -> Line:
    paper, better = _paper_of(cell, scenario, table, ours)
    group, alone = ours[cell], table.baseline(cell)
    return Line(
        cell=cell,
        scenario=scenario,
        ours=group,
        paper=paper,
        beside=compared(group, scenario, paper) if group and paper else None,
        gain=_gain(ours[alone], group, scenario, alone.printed(scenario)) if alone else None,
        paper_gain=_paper_gain(alone.printed(scenario), paper) if alone else None,
        better_of_two=better,
    )


def _paper_of(
    cell: PaperCell, scenario: str, table: PaperTable, ours: dict[PaperCell, Series | None]
) -> tuple[Printed | None, bool | None]:
    """The paper's numbers for a cell: where we have both pretext tasks, they belong to our better one."""
    rivals = [one for one in table.cells if one.place == cell.place and one.equivariant]
    scores = {one: group.final_accuracy["class_il"].mean for one in rivals if (group := ours[one])}
    if not cell.equivariant or len(scores) < 2:
        return cell.printed(scenario), None
    better = max(rivals, key=scores.__getitem__) == cell
    return next(filter(None, (one.printed(scenario) for one in rivals)), None) if better else None, better


def _gain(alone: Series | None, group: Series | None, scenario: str, printed: Printed | None) -> Gain | None:
    """The gain of runs over those of the method alone, all evaluated as the paper evaluates the method alone."""
    if not (alone and group) or alone.settings.get("precision") != group.settings.get("precision"):
        return None
    if printed is None:
        return gain(alone.accuracies(scenario), group.accuracies(scenario))
    return gain(evaluated_as(printed, alone, scenario), evaluated_as(printed, group, scenario))


def _paper_gain(alone: Printed | None, paper: Printed | None) -> Gain | None:
    if not (alone and paper):
        return None
    return Gain(paper.mean - alone.mean, or_nan(paper.p))


def verdict(told: Sequence[Line], scenario: str) -> str | None:
    """Whether our runs confirm the paper's claim that CLER gains, in one sentence; None without such runs."""
    claimed = [line for line in told if line.scenario == scenario and line.cell.equivariant and line.paper_gain]
    gains = [
        (line.gain.points, line.gain_difference)
        for line in claimed
        if line.gain is not None and line.gain_difference is not None
    ]
    if not gains:
        return None
    positive = sum(points > 0 for points, _ in gains)
    close = sum(abs(difference) <= GAIN_TOLERANCE for _, difference in gains)
    absent = len(claimed) - len(gains)
    return (
        f"CLER's gain is positive in {positive} of {len(gains)} cell{'s' * (len(gains) > 1)} "
        f"and within {GAIN_TOLERANCE} points of the paper's in {close}"
        f"{f'; {absent} not run' if absent else ''}."
    )


def notes(table: PaperTable, told: Sequence[Line]) -> list[str]:
    """Sentences that a reader of the table has to know."""
    sentences = []
    if any(line.better_of_two is not None for line in told):
        sentences.append(
            "The paper prints the better of the two pretext tasks, chosen by the accuracy that it reports. "
            "Its number stands beside that of our better one, chosen by class-incremental accuracy."
        )
    if any(line.paper and line.paper.slip for line in told):
        sentences.append(
            "The authors tested Joint's first task on the images of all tasks, which lowers its task-incremental "
            "accuracy and moves the class-incremental one a little; our accuracies and gains are evaluated in the same "
            "way here."
        )
    chosen = dict.fromkeys(f"{line.cell.label}: {line.cell.chosen}" for line in told if line.cell.chosen and line.ours)
    if chosen:
        sentences.append(
            f"{CHOSEN} marks settings that we chose by the accuracy that is reported ({'; '.join(chosen)})."
        )
    several = len({line.cell.method for line in told}) > 1
    return sentences + [one.sentence for one in table.contradictions if several]
