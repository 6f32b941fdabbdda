"""Tables, whatever the format they are written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from cler.report.numbers import minus, plus_minus, signed, tenths
from cler.runs.results import Result
from cler.runs.series import Estimate, Series
from cler.tune.selection import tuning_lines

NAMES = {"class_il": "class-incremental", "task_il": "task-incremental"}


@dataclass(frozen=True)
class Cell:
    """One cell of a table; the note is shown smaller than the text."""

    text: str
    note: str = ""
    strong: bool = False
    tone: str = ""
    """'up' or 'down' for a gain or a loss."""


@dataclass(frozen=True)
class Column:
    """A column's heading, and the one above it that several columns share."""

    heading: str
    above: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Row:
    """The cells of one row, the runs that it is about, and the heading that it shares with its neighbors."""

    runs: Series
    cells: tuple[Cell, ...]
    heading: str = ""
    anchor: str = ""
    """What a link to it says, where there are links to it."""


@dataclass(frozen=True)
class Sheet:
    """A table with its title and a note on how to read it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str
    anchor: str = ""

    @property
    def blocks(self) -> list[tuple[str, list[Row]]]:
        """The headings that rows share, and the rows under each."""
        return [(heading, list(rows)) for heading, rows in groupby(self.rows, key=lambda row: row.heading)]

    @property
    def stamps(self) -> list[str]:
        """A line for each row whose settings were tuned."""
        return tuning_lines(dict.fromkeys(row.runs for row in self.rows))


def shared_headings(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The headings that columns share, and how many columns share each; empty where none do."""
    if not any(column.above for column in columns):
        return []
    return [(above, len(list(shared))) for above, shared in groupby(columns, key=lambda column: column.above)]


def gained(points: float, *, strong: bool = False) -> Cell:
    """A gain in points in a cell: '+3.26', with its tone."""
    text = minus(signed(points, 2))
    return Cell(text, strong=strong, tone={"+": "up", "−": "down"}[text[0]] if text.strip("+−0.") else "")


def estimate(mean_and_std: Estimate) -> Cell:
    """Mean and deviation in a cell: '20.88 ± 1.06'."""
    return Cell(plus_minus(mean_and_std, " ± "))


def adjusted_forgetting(group: Series, name: str) -> Cell:
    """Mean adjusted forgetting in a cell; empty where everything was learned at once."""
    return Cell("" if nothing_to_forget(group.results, name) else tenths(group.adjusted_forgetting[name].mean))


def nothing_to_forget(runs: Sequence[Result], name: str) -> bool:
    """Whether everything was learned at once, as by Joint, so that there is no earlier task to forget."""
    return all(len(run.accuracy[name]) == 1 for run in runs)
