"""What the page says first where no numbers are published: of each dataset and buffer, what does best and gains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cler.report.content import Report
from cler.report.numbers import SIGNIFICANT
from cler.report.sections import Section, by_buffer, note, under_buffer
from cler.report.sheets import Cell, estimate, gained
from cler.runs.series import Series

MOST_LINES = 12
"""Lines of a summary that fits one screen."""
SCENARIO = "class_il"


@dataclass(frozen=True)
class SummaryLine:
    """The rows on one dataset with one size of the buffer."""

    dataset: str
    buffer: str
    rows: int
    best: Series
    """The highest final average accuracy, class-incremental, on held-out images where all rows have them, else on those
    for testing. Bounds such as Joint count where there is nothing else."""
    note: str
    accuracy: Cell
    gain: Cell
    """The largest gain."""
    gaining: str
    """How many of the rows with a gain gain something, and how many significantly."""


@dataclass(frozen=True)
class Summary:
    """Lines by dataset and buffer, and how many more there are."""

    lines: tuple[SummaryLine, ...]
    left: int


def summary(report: Report) -> Summary:
    """What does best and gains, of each dataset and buffer."""
    lines = [line for section in report.sections for line in _lines(section)]
    return Summary(tuple(lines[:MOST_LINES]), len(lines[MOST_LINES:]))


def _lines(section: Section) -> Iterator[SummaryLine]:
    beside: dict[str, list[Series]] = {}
    for group in by_buffer(section.groups):
        beside.setdefault(under_buffer(group), []).append(group)
    for heading, groups in beside.items():
        rivals = [group for group in groups if not group.reference] or groups
        held_out = {group: group.validation.mean for group in rivals if group.validation}
        deciding = held_out if len(held_out) == len(rivals) else {}
        best = max(rivals, key=lambda group: deciding.get(group, group.final_accuracy[SCENARIO].mean))
        found = [one for one in section.evidence if one.runs in groups and one.scenario == SCENARIO]
        better = [one for one in found if one.points > 0]
        significant = f", {sum(one.holm < SIGNIFICANT for one in better)} significantly" if better else ""
        if better and not any(one.tested for one in found):
            significant = ", not tested"
        yield SummaryLine(
            dataset=section.title,
            buffer=heading.removeprefix("buffer "),
            rows=len(groups),
            best=best,
            note=", ".join(filter(None, [note(best, section.groups), "by held-out images" if deciding else ""])),
            accuracy=estimate(best.final_accuracy[SCENARIO]),
            gain=gained(max(one.points for one in found)) if found else Cell(""),
            gaining=f"{len(better)} of {len(found)}{significant}" if found else "",
        )
