"""A table of the paper for the terminal, with our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cler.metrics import SCENARIOS
from cler.paper.glance import Told, count_marks
from cler.paper.lines import CHOSEN, GAIN_TOLERANCE, Line
from cler.paper.report_section import P_VALUES, PROBABILITIES, printed_numbers, probabilities
from cler.paper.tables import BesidePaper, PaperTable
from cler.report.numbers import or_nan, plus_minus, signed, tenths
from cler.report.published import MARKS
from cler.report.sheets import NAMES
from cler.report.terminal import gain_text
from cler.runs.series import Estimate, Gain

FOOTNOTE = (
    "accuracy: final average accuracy in %, mean ± std over runs; below it, in parentheses, adjusted forgetting in %. "
    "diff.: ours minus the paper's, in points. p: of differences, Welch's t-test; of gains over the method alone, "
    "Student's. ! marks accuracies that differ by more than one point, unless the difference is not significant at "
    f"1 %; gains that differ by more than {GAIN_TOLERANCE} points; and gains of CLER that are not positive."
)

COUNTED = "Accuracies agree if they are within one point, or the difference is not significant at 1 %."


def paper_table(table: PaperTable, lines: Sequence[Line]) -> Table:
    """A row for each line of a table whose method and dataset this version has."""
    told = sorted((line for line in lines if line.cell.available), key=lambda one: SCENARIOS.index(one.scenario))
    if table.name == "significance":
        return _significance_table(table, told)
    headings = (
        *("runs", "our\naccuracy", "paper's\naccuracy", "diff."),
        *("our\ngain", "paper's\ngain", "diff."),
    )
    return _by_section(table, told, FOOTNOTE, headings, map(_beside_paper, told))


def agreement_table(tables: Sequence[Told]) -> Table:
    """A row for each table of the paper that prints accuracies: how many of them ours agree with; then one for all."""
    shown = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, caption=COUNTED, caption_justify="left")
    shown.add_column("table of the paper")
    for state, mark in MARKS.items():
        shown.add_column(f"{mark} {state}", justify="right")
    for table, told in tables:
        printed = [line for line in told if line.paper]
        if printed and table.name != "significance" and table.pretext != "both":
            shown.add_row(table.title, *(str(count) for count in count_marks(printed).values()))
    shown.add_section()
    shown.add_row("each number once", *(str(count) for count in count_marks(printed_numbers(tables)).values()))
    return shown


def _significance_table(table: PaperTable, told: Sequence[Line]) -> Table:
    """A row for each gain, with its p-values to five decimals."""
    gains = [line for line in told if line.gain or line.paper_gain]
    rows = [
        [
            Text(str(line.runs or "")),
            Text(signed(line.gain.points, 2) if line.gain else "–"),
            *(Text(cell.text, style="bold" if cell.strong else "") for cell in probabilities(line)),
        ]
        for line in gains
    ]
    headings = "runs", "gain", *(f"{column.above}\n{column.heading}" for column in P_VALUES)
    return _by_section(table, gains, PROBABILITIES, headings, rows)


def _by_section(
    table: PaperTable,
    told: Sequence[Line],
    note: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
) -> Table:
    """A row for each line, under a heading for the column of the paper's table that it is from."""
    shown = Table(title=table.title, caption=note, caption_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    shown.add_column("method")
    for heading in headings:
        shown.add_column(heading, justify="right", no_wrap=True)
    section = ""
    for line, cells in zip(told, rows, strict=True):
        scenario = f"{NAMES[line.scenario]}, " if len(table.scenarios) > 1 else ""
        if section != f"{scenario}{line.cell.where}":
            section = f"{scenario}{line.cell.where}"
            shown.add_section()
            shown.add_row(Text(section, style="bold"))
        chosen = f" {CHOSEN}" if line.cell.chosen else ""
        shown.add_row(line.cell.label.replace(" + ", "\n+ ") + chosen, *cells)
    return shown


def _beside_paper(line: Line) -> list[str]:
    return [
        str(line.runs or ""),
        "–" if line.mean is None else _stacked(line.mean, line.std, line.adjusted_forgetting),
        _stacked(line.paper.mean, line.paper.std, line.paper.adjusted_forgetting) if line.paper else "",
        _mark(line.agrees) + _difference(line.beside) if line.beside else "",
        gain_text(line.gain) if line.gain else "",
        gain_text(line.paper_gain) if line.paper_gain else "",
        "" if line.gain_difference is None else _mark(line.gain_agrees) + signed(line.gain_difference, 2),
    ]


def _mark(agrees: bool | None) -> str:
    return "!" if agrees is False else ""


def _difference(beside: BesidePaper) -> str:
    return gain_text(Gain(beside.difference, or_nan(beside.p_value)))


def _stacked(mean: float, std: float | None, forgetting: float | None) -> str:
    number = plus_minus(Estimate(mean, or_nan(std)))
    return number if forgetting is None else f"{number}\n({tenths(forgetting)})"
