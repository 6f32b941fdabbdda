"""Tables of runs that show themselves: as text, in a terminal, in a notebook."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult

from cler.errors import one_line
from cler.report.console import Terminal
from cler.report.escaping import in_html
from cler.report.sections import Section, make_sections
from cler.report.sheets import Cell, Column, Sheet, shared_headings
from cler.report.terminal import comparison_table
from cler.runs.compare import Comparison
from cler.runs.series import Series
from cler.tune.selection import tuning_lines

WIDTH = 100
"""Columns of the table as text."""


class Table(Sequence[Series]):
    """Rows of runs with the same settings: means, deviations, and gains over the same method without a regularizer."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison, self.rows = comparison, comparison.groups

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def to_json(self) -> dict[str, Any]:
        """Plain values: every metric, the gains and their p-values."""
        return self.comparison.to_json()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [*tuning_lines(self.comparison.groups), *map(one_line, self.comparison.complaints)]
        shown = Group(comparison_table(self.comparison.groups), *lines)
        yield from Terminal(width=options.max_width).render(shown, options)  # which shows strings as they are

    def __repr__(self) -> str:
        console = Terminal(file=io.StringIO(), width=WIDTH, force_jupyter=False, color_system=None)
        console.print(self)
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        sections = make_sections(self.comparison.groups)
        return "\n".join(line for section in sections for sheet in section.sheets for line in _html(section, sheet))


def _html(section: Section, sheet: Sheet) -> Iterator[str]:
    yield f"<table><caption>{in_html(f'{section.title}: {sheet.title.lower()}')}</caption><thead>"
    if shared := shared_headings(sheet.columns):
        yield f"<tr>{''.join(_heading(above, 'center', width) for above, width in shared)}</tr>"
    yield f"<tr>{''.join(_heading(column.heading, _side(column)) for column in sheet.columns)}</tr></thead><tbody>"
    for heading, rows in sheet.blocks:
        if heading:
            yield f"<tr>{_heading(heading, 'left', len(sheet.columns))}</tr>"
        for row in rows:
            yield f"<tr>{''.join(map(_cell, row.cells, sheet.columns))}</tr>"
    yield "</tbody></table>"
    yield from (f"<p>{in_html(line)}</p>" for line in (sheet.note, *sheet.stamps))


def _heading(text: str, side: str, width: int = 1) -> str:
    return f'<th colspan="{width}" style="text-align: {side}">{in_html(text)}</th>'


def _cell(cell: Cell, column: Column) -> str:
    text = f"<b>{in_html(cell.text)}</b>" if cell.strong else in_html(cell.text)
    note = f" <small>{in_html(cell.note)}</small>" if cell.note else ""
    return f'<td style="text-align: {_side(column)}{"; white-space: nowrap" * column.numeric}">{text}{note}</td>'


def _side(column: Column) -> str:
    return "right" if column.numeric else "left"
