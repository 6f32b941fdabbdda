"""What `cler reproduce` says: what is missing and what it will take, and in the end all numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from cler.paper.glance import Told
from cler.paper.lines import Line, lines, notes
from cler.paper.report_section import claim, lines_of_all_tables, summary
from cler.paper.reproduce import Inventory, Work, cheapest_first, jobs_of, lacking
from cler.paper.tables import WHOLE, PaperCell, PaperTable
from cler.paper.terminal_table import agreement_table, paper_table
from cler.report.numbers import count_runs, duration


def missing_lines(
    missing: Sequence[Work], seconds: Mapping[PaperCell, float], hardware: str, *, measurable: bool
) -> Iterator[str]:
    """A line for each cell, those first whose time is known, and one for all.

    `hardware` is what the times are of, empty where it is this machine for certain; `measurable` is whether --time
    could tell more.
    """
    known = cheapest_first([work for work in missing if work.cell in seconds], seconds)
    costs = [seconds[work.cell] * len(work.jobs) for work in known]
    unknown = [work for work in missing if work.cell not in seconds]
    for work, cost in zip(known, costs, strict=True):
        yield f"{_missing(work)}, about {duration(cost)}"
    for work in unknown:
        yield f"{_missing(work)}, time not known"
    told = [count_runs(jobs_of(missing))]
    if known:
        some = f" for {len(jobs_of(known))} of them" if unknown else ""
        told.append(f"about {duration(sum(costs))}{f' on {hardware}' if hardware else ''}{some}")
    if unknown:
        hints = ["--time measures it"] if measurable else []
        hints += [] if known else ["--out FOLDER reads it from results elsewhere"]
        hint = f": {', or '.join(hints)}" if hints else ""
        told.append(f"time not known for {len(unknown)} of {len(missing)} cells{hint}")
    yield f"in all: {', '.join(told)}"


def _missing(work: Work) -> str:
    name = ", ".join([work.cell.label, *(f"{name} {value:g}" for name, value in work.cell.changes)])
    return f"missing: {work.cell.where}: {name}, {count_runs(work.jobs)}"


@dataclass(frozen=True)
class Outcome:
    """Our numbers beside the paper's, for a terminal and for programs."""

    table: Table
    sentences: list[str]
    content: dict[str, Any]
    """Plain values for JSON."""


def outcome(
    table: PaperTable, cells: Sequence[PaperCell], state: Inventory, seconds: Mapping[PaperCell, float], precision: str
) -> Outcome:
    """The numbers of these cells, computed from the whole table and its runs; of all tables, how many agree in each."""
    keys = {cell.key for cell in cells}

    def chosen(told: Sequence[Line]) -> list[Line]:
        return [line for line in told if line.cell.key in keys]

    to_do = [
        work.cell.to_json() | {"seeds": [job.seed for job in work.jobs], "seconds_per_run": seconds.get(work.cell)}
        for work in state.missing
    ]
    if table.name == WHOLE:
        tables = [(each, chosen(told)) for each, told in lines_of_all_tables(state.groups, precision)]
        return _of_all(tables, to_do)
    return _of_one(table, chosen(lines(table, state.groups, precision)), lacking(cells), to_do)


def _of_one(table: PaperTable, told: list[Line], absent: list[str], to_do: list[dict[str, Any]]) -> Outcome:
    unavailable = f"not in this version: {', '.join(absent)}" if absent else ""
    sentences = [*filter(None, [unavailable, claim(told)]), *notes(table, told)]
    return Outcome(paper_table(table, told), sentences, _plain((table, told)) | {"missing": to_do})


def _of_all(tables: list[Told], to_do: list[dict[str, Any]]) -> Outcome:
    said = summary(tables)
    content = {"tables": [_plain(each) for each in tables], "verdict": said, "missing": to_do}
    return Outcome(agreement_table(tables), said if to_do else [*said, "nothing is missing"], content)


def _plain(told: Told) -> dict[str, Any]:
    table, own = told
    return {
        "table": table.name,
        "lines": [line.to_json() for line in own],
        "verdict": claim(own) or None,
        "notes": notes(table, own),
    }
