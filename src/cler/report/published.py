"""Numbers that somebody has published, beside those of our runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cler.report.sheets import Column, Sheet
from cler.runs.series import Series

AGREES, OFF, NOT_RUN = "agrees", "off", "not run"
MARKS = {AGREES: "✓", OFF: "≠", NOT_RUN: "·"}
"""The signs of a published number that ours agrees with, one that it does not agree with, and one that we lack."""
LEGEND = (
    f"{MARKS[AGREES]} ours agrees: within one point, or the difference is not significant at 1 %. {MARKS[OFF]} ours is "
    f"off. {MARKS[NOT_RUN]} not run."
)
DIFFERENCES = "The numbers are ours minus the published ones, in points."


@dataclass(frozen=True)
class Mark:
    """How a published number compares with ours."""

    state: str
    """One of `MARKS`."""
    text: str = ""
    """How much ours differs."""
    told: str = ""
    """Both numbers, in words."""
    anchor: str = ""
    """The row of a sheet that has them."""


@dataclass(frozen=True)
class Glance:
    """A published table with a mark for each of its numbers."""

    title: str
    columns: tuple[Column, ...]
    """The first is that of the rows' names, and its heading says what the other headings are."""
    rows: tuple[tuple[str, tuple[Mark | None, ...]], ...]
    """The name of each row, and a mark for each other column; None where nothing is published."""


@dataclass(frozen=True)
class Published:
    """Numbers that somebody has published, beside those of our runs; without sheets there are none."""

    source: str = ""
    """Where they were published, as it reads within a sentence: 'the paper'."""
    title: str = ""
    """The full title of the source."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many of the published numbers have each of `MARKS`."""
    verdict: tuple[str, ...] = ()
    """Whether what the source claims holds for our runs, in sentences."""
    agreement: str = ""
    """How close our accuracies are to the published ones."""
    glances: tuple[Glance, ...] = ()
    reading: str = ""
    """How to read the tables."""
    sheets: tuple[Sheet, ...] = ()
    gains: Mapping[tuple[Series, str], float] = field(default_factory=dict)
    """Published gains in points, by our runs and the scenario."""
    caution: str = ""
    """What to know when these gains are drawn beside ours."""
    columns: Mapping[tuple[Series, str], Mapping[str, Any]] = field(default_factory=dict)
    """Further columns of the spreadsheet, by our runs and the scenario."""

    @property
    def possessive(self) -> str:
        """The source at the beginning of a heading: "The paper's"."""
        return f"{self.source[0].upper()}{self.source[1:]}'s"

    @property
    def counts_in_words(self) -> str:
        """How many of the published numbers ours agree with, in a sentence."""
        agree, off, absent = (self.counts.get(state, 0) for state in MARKS)
        return (
            f"Of {agree + off + absent} accuracies in {self.source}, {agree} agree with ours, {off} are off, "
            f"{absent} have not been run."
        )
