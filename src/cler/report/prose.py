"""Text that a user puts into a report: a little Markdown, as headings, paragraphs and tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

LATER = "---"
"""A line of a preface; what follows it comes at the end of a report."""


@dataclass(frozen=True)
class Heading:
    """A line that begins with ##."""

    kind: ClassVar = "heading"
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Lines up to an empty one."""

    kind: ClassVar = "paragraph"
    text: str


@dataclass(frozen=True)
class Grid:
    """A table: lines that begin with a bar, the second of them a rule."""

    kind: ClassVar = "grid"
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Block = Heading | Paragraph | Grid


def split(text: str) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    """The blocks of a preface that begin a report, and those that end it."""
    lines = text.splitlines()
    end = next((number for number, line in enumerate(lines) if line.strip() == LATER), len(lines))
    return tuple(_blocks(lines[:end])), tuple(_blocks(lines[end + 1 :]))


def pieces(text: str) -> list[tuple[str, bool]]:
    """The parts of a string, and whether each stands between backticks."""
    return [(part, bool(index % 2)) for index, part in enumerate(text.split("`")) if part]


def _blocks(lines: list[str]) -> Iterator[Block]:
    for block in "\n".join(line.strip() for line in lines).split("\n\n"):
        text = " ".join(block.split())
        if text.startswith("## "):
            yield Heading(text.removeprefix("## "))
        elif text.startswith("|") and len(rows := [_cells(line) for line in block.split("\n") if line]) > 1:
            yield Grid(rows[0], tuple(rows[2:]))
        elif text:
            yield Paragraph(text)


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip("|").split("|"))
