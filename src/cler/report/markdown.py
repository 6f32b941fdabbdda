"""A report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from cler.report.content import Report
from cler.report.escaping import in_markdown
from cler.report.prose import Block, Grid, Heading, Paragraph
from cler.report.published import DIFFERENCES, LEGEND, MARKS, Glance, Mark, Published
from cler.report.sections import Section
from cler.report.sheets import Cell, Column, Sheet


def markdown(report: Report) -> str:
    """The whole report as Markdown."""
    return "\n\n".join(filter(None, _parts(report))) + "\n"


def markdown_sections(sections: Sequence[Section]) -> str:
    """The sections of a report as Markdown, one for each dataset."""
    return "\n\n".join(filter(None, (part for section in sections for part in _section(section))))


def markdown_sheet(sheet: Sheet) -> str:
    """A table with its title and notes as Markdown."""
    return "\n\n".join(filter(None, _sheet(sheet)))


def table_lines(rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, of which the second row says how columns are aligned."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _parts(report: Report) -> Iterator[str]:
    yield f"# {in_markdown(report.title)}"
    if report.beside.glances:
        yield from _glances(report.beside)
    yield from map(_block, report.preface)
    yield "\n".join(f"- {name}: {in_markdown(value)}" for name, value in report.facts)
    if report.beside.sheets:
        yield f"## {report.beside.possessive} tables"
        yield report.beside.agreement
        yield report.beside.reading
    for sheet in report.beside.sheets:
        yield from _sheet(sheet)
    yield markdown_sections(report.sections)
    yield from map(_block, report.notes)
    if report.complaints:
        yield "## Left out"
        yield "\n".join(f"- {in_markdown(line)}" for line in report.complaints)


def _glances(beside: Published) -> Iterator[str]:
    yield f"## {beside.possessive} numbers at a glance"
    yield f"**{beside.counts_in_words}**"
    yield from beside.verdict
    yield f"{LEGEND} {DIFFERENCES}"
    for glance in beside.glances:
        title = in_markdown(glance.title)
        yield f"[{title}](#{_slug(glance.title)})" if _shown(glance, beside) else title
        lines = [["", *(f"{column.above} {column.heading}".strip() for column in glance.columns[1:])]]
        lines.append(["---", *["---:"] * (len(glance.columns) - 1)])
        lines += [[in_markdown(name), *map(_mark, marks)] for name, marks in glance.rows]
        yield table_lines(lines)


def _mark(mark: Mark | None) -> str:
    return f"{MARKS[mark.state]} {mark.text}".strip() if mark else ""


def _shown(glance: Glance, beside: Published) -> bool:
    return any(sheet.title == glance.title for sheet in beside.sheets)


def _slug(title: str) -> str:
    """What a link to a heading says."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {text}"
        case Paragraph(text):
            return text
        case Grid(columns, rows):
            lines = [columns, ("---",) * len(columns), *rows]
            return table_lines(lines)


def _section(section: Section) -> Iterator[str]:
    yield f"## {in_markdown(section.title)}"
    yield section.summary
    for sheet in section.sheets:
        yield from _sheet(sheet)


def _sheet(sheet: Sheet) -> Iterator[str]:
    yield f"### {sheet.title}"
    yield _table(sheet)
    yield sheet.note
    yield from map(in_markdown, sheet.stamps)


def _table(sheet: Sheet) -> str:
    lines = [[_heading(column) for column in sheet.columns]]
    lines.append(["---:" if column.numeric else "---" for column in sheet.columns])
    for heading, rows in sheet.blocks:
        if heading:
            lines.append([f"**{in_markdown(heading)}**", *[""] * (len(sheet.columns) - 1)])
        lines += [[_cell(cell) for cell in row.cells] for row in rows]
    return table_lines(lines)


def _heading(column: Column) -> str:
    return f"{column.above}: {column.heading}" if column.above else column.heading


def _cell(cell: Cell) -> str:
    text = in_markdown(cell.text)
    bold = f"**{text}**" if cell.strong else text
    if not cell.note:
        return bold
    return f"{bold}{' ' if cell.note.startswith('(') else ', '}{in_markdown(cell.note)}"
