"""The whole paper at a glance: a mark for each number of its tables, that ours agrees, is off, or is not there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from cler.config.labels import label_of
from cler.paper.lines import Line
from cler.paper.tables import PaperCell, PaperTable
from cler.report.numbers import SIGNIFICANT, count_runs, format_p, minus, or_nan, plus_minus, signed
from cler.report.published import AGREES, MARKS, NOT_RUN, OFF, Glance, Mark
from cler.report.sheets import NAMES, Column, Sheet
from cler.runs.series import Estimate, Series

Told: TypeAlias = tuple[PaperTable, list[Line]]
"""A table of the paper and its lines."""
Place: TypeAlias = tuple[Series, str]
"""Runs of ours and a scenario, which a row is about."""


def state_of(line: Line) -> str:
    """How our accuracy compares with the paper's: one of `MARKS`."""
    return NOT_RUN if line.agrees is None else AGREES if line.agrees else OFF


def count_marks(told: Sequence[Line]) -> dict[str, int]:
    """How many of these numbers of the paper ours agree with, differ from, and are not there for."""
    states = [state_of(line) for line in told]
    return {state: states.count(state) for state in MARKS}


def anchor_of(table: PaperTable, line: Line) -> str:
    """What a link to the line's row says."""
    cell = line.cell
    return f"{table.name}-{line.scenario}-{cell.method}+{cell.regularizer}-{cell.dataset}-{cell.buffer}-{cell.epochs}"


def glances(tables: Sequence[Told], sheets: Sequence[Sheet]) -> Iterator[Glance]:
    """Each table of the paper that prints numbers of its own, with links to the rows of these sheets.

    A table that is not among the sheets, because it would only repeat others, has links to those.
    """
    shown = {row.anchor for sheet in sheets for row in sheet.rows}
    elsewhere: dict[Place, str] = {}
    for table, told in tables:
        places = {(line.ours, line.scenario): anchor_of(table, line) for line in told if line.ours}
        own = {place: anchor for place, anchor in places.items() if anchor in shown}
        if table.name == "significance":
            yield _glance(table, [line for line in told if line.paper_gain], _gain_mark, own)
            continue
        if table.pretext != "both" and any(line.paper for line in told):
            yield _glance(table, [line for line in told if line.paper], _accuracy_mark, elsewhere | own)
        elsewhere = own | elsewhere


def _glance(table: PaperTable, told: Sequence[Line], mark: Callable[[Line], Mark], places: dict[Place, str]) -> Glance:
    columns = {_column(table, line): None for name in table.scenarios for line in told if line.scenario == name}
    rows: dict[str, dict[Column, Mark]] = {}
    for line in told:
        anchor = places.get((line.ours, line.scenario), "") if line.ours else ""
        made = mark(line)
        placed = Mark(made.state, made.text, f"{_name(line.cell, table)}: {made.told}", anchor)
        rows.setdefault(_name(line.cell, table), {})[_column(table, line)] = placed
    shown = tuple((name, tuple(marks.get(column) for column in columns)) for name, marks in rows.items())
    sizes = any(column.heading for column in columns)
    return Glance(table.title, (Column("buffer" if sizes else "", numeric=False), *columns), shown)


def _column(table: PaperTable, line: Line) -> Column:
    several = len(table.scenarios) > 1
    dataset = "" if several and len({cell.dataset for cell in table.cells}) == 1 else line.cell.dataset
    above = ", ".join(filter(None, [NAMES[line.scenario] if several else "", dataset]))
    buffers = any(cell.buffer for cell in table.cells)
    return Column(str(line.cell.buffer or "–") if buffers else "", above)


def _name(cell: PaperCell, table: PaperTable) -> str:
    """The row that the cell stands in: whichever pretext task it is of, and however many several epochs are."""
    label = label_of(cell.method, cell.regularizer)
    label = label.partition(" (")[0] if cell.equivariant else label
    epochs = {one.epochs for one in table.cells if one.dataset == cell.dataset}
    if cell.epochs == 1 or len(epochs) == 1:
        return label
    return f"{label}, {cell.epochs} epochs" if len(epochs) > 2 else f"{label}, several epochs"


def _accuracy_mark(line: Line) -> Mark:
    assert line.paper is not None
    paper = f"{_estimate(line.paper.mean, line.paper.std)} in the paper"
    if line.beside is None:
        return Mark(NOT_RUN, "", f"not run, {paper}")
    ours = f"{_estimate(line.beside.ours, line.beside.ours_std)} in {count_runs(range(line.runs))}"
    return Mark(state_of(line), minus(signed(line.beside.difference, 1)), f"{ours}, {paper}")


def _gain_mark(line: Line) -> Mark:
    """Off where the gain differs from the paper's, is not positive, or is significant in one of them alone."""
    assert line.paper_gain is not None
    paper = f"{minus(signed(line.paper_gain.points, 2))} ({format_p(line.paper_gain.p_value)}) in the paper"
    if line.gain is None or math.isnan(line.gain.p_value):
        return Mark(NOT_RUN, "", f"gain not tested, {paper}")
    alike = (line.gain.p_value < SIGNIFICANT) == (line.paper_gain.p_value < SIGNIFICANT)
    ours = f"gain of {minus(signed(line.gain.points, 2))} ({format_p(line.gain.p_value)})"
    return Mark(
        AGREES if line.gain_agrees and alike else OFF,
        minus(signed(line.gain.points - line.paper_gain.points, 1)),
        f"{ours}, {paper}",
    )


def _estimate(mean: float, std: float | None) -> str:
    return plus_minus(Estimate(mean, or_nan(std)), " ± ")
