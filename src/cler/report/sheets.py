"""What tables are made of, whatever the format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cler.report.numbers import plus_minus, tenths
from cler.runs.compare import Estimate, Group
from cler.runs.results import Result

NAMES = {"class_il": "class-incremental", "task_il": "task-incremental"}


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table; the note is less important than the text."""

    text: str
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Column:
    """A heading, and the one above it that several columns share."""

    heading: str
    above: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Row:
    """The cells of one row, the runs that it is about, and the heading that it shares with rows beside it."""

    group: Group
    cells: tuple[Cell, ...]
    heading: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str


def estimate(mean_and_std: Estimate) -> Cell:
    """'20.88 ± 1.06'."""
    return Cell(plus_minus(mean_and_std, " ± "))


def forgetting(group: Group, name: str) -> Cell:
    """Nothing where there is nothing to forget."""
    return Cell("" if nothing_to_forget(group.runs, name) else tenths(group.adjusted_forgetting[name].mean))


def nothing_to_forget(runs: Sequence[Result], name: str) -> bool:
    """Whether everything was learned at once, as Joint does: there is no earlier task."""
    return all(len(run.accuracy[name]) == 1 for run in runs)
