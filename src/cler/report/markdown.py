"""A report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from cler.report.content import Report, Section
from cler.report.sheets import Cell, Column, Sheet


def markdown(report: Report) -> str:
    """The whole report as Markdown."""
    return "\n\n".join(filter(None, _parts(report))) + "\n"


def markdown_sections(sections: Sequence[Section]) -> str:
    """The sections of a report as Markdown, one for each dataset."""
    return "\n\n".join(filter(None, (part for section in sections for part in _section(section))))


def _parts(report: Report) -> Iterator[str]:
    yield f"# {_plain(report.title)}"
    yield from report.preface
    yield "\n".join(f"- {name}: {_plain(value)}" for name, value in report.facts)
    if report.beside.sheets:
        yield f"## Beside {_plain(report.beside.source)}"
        yield report.beside.verdict
        yield report.beside.agreement
        yield report.beside.reading
    for sheet in report.beside.sheets:
        yield from _sheet(sheet)
    yield markdown_sections(report.sections)
    if report.complaints:
        yield "## Left out"
        yield "\n".join(f"- {_plain(line)}" for line in report.complaints)


def _section(section: Section) -> Iterator[str]:
    yield f"## {_plain(section.title)}"
    yield section.summary
    for sheet in section.sheets:
        yield from _sheet(sheet)


def _sheet(sheet: Sheet) -> Iterator[str]:
    yield f"### {sheet.title}"
    yield _table(sheet)
    yield sheet.note


def _table(sheet: Sheet) -> str:
    lines = [[_heading(column) for column in sheet.columns]]
    lines.append(["---:" if column.numeric else "---" for column in sheet.columns])
    for heading, rows in groupby(sheet.rows, key=lambda row: row.heading):
        if heading:
            lines.append([f"**{_plain(heading)}**", *[""] * (len(sheet.columns) - 1)])
        lines += [[_cell(cell) for cell in row.cells] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _heading(column: Column) -> str:
    return f"{column.above}: {column.heading}" if column.above else column.heading


def _cell(cell: Cell) -> str:
    text = _plain(cell.text)
    bold = f"**{text}**" if cell.strong else text
    if not cell.note:
        return bold
    return f"{bold}{' ' if cell.note.startswith('(') else ', '}{_plain(cell.note)}"


def _plain(text: str) -> str:
    """A string that Markdown shows as it is: no bar ends a cell, no tag begins."""
    return re.sub(r"<(?=[\w/!])", "&lt;", text.replace("|", "\\|").replace("\n", " "))
