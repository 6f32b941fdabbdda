"""What a report says beside the paper: the paper's tables from our runs, each number beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from cler.config.settings import Settings
from cler.metrics import SCENARIOS
from cler.paper.glance import Told, anchor_of, count_marks, glances
from cler.paper.lines import CHOSEN, GAIN_TOLERANCE, Line, lines, notes, verdict
from cler.paper.tables import PAPER_RUNS, PaperTable, find_table, table_names
from cler.report.numbers import SIGNIFICANT, bare_p, count_runs, minus, or_nan, signed, tenths
from cler.report.published import Published
from cler.report.sheets import NAMES, Cell, Column, Row, Sheet, adjusted_forgetting, estimate, gained
from cler.runs.series import Estimate, Series

TITLE = "On the Effectiveness of Equivariant Regularization for Robust Online Continual Learning"
READING = (
    "Accuracy: final average accuracy in %. Adjusted forgetting is in %, gains are in points over the same method "
    "without the regularizer. Difference: ours minus the paper's, for accuracies with the p-value of Welch's t-test "
    "on means and deviations, for ten runs of the paper's and, in parentheses where that is uncertain, for three. "
    "≠ marks accuracies that differ by more than one point, unless the difference "
    f"is not significant at 1 %; gains that differ by more than {GAIN_TOLERANCE} points; and gains of CLER that are "
    "not positive. The p-values of gains are those of Student's t-test, as in the paper."
)
FLATTERED = (
    "Choosing the better pretext task by the very accuracy that is reported makes that accuracy look too good, in the "
    "paper and here."
)
PROBABILITIES = (
    "Gains are in points, class-incremental. p-values of Student's two-sided t-test: ours, the paper's, and ours after "
    "Holm's correction for all tests in the whole table, bold where below 0.05."
)
CAUTION = "Joint's gains are by our evaluation here, by that of the authors in the paper and in its tables."
MAIN = {"table1": "Table 1", "table2": "Table 2"}
"""The tables of the paper's main claim."""
P_VALUES = tuple(Column(heading, "p") for heading in ("ours", "paper", "Holm"))


def beside_paper(groups: Sequence[Series]) -> Published:
    """The tables of the paper that there are runs for; those that would only repeat others are named, not shown."""
    tables = lines_of_all_tables(groups)
    known = lines_by_runs(tables)
    sheets, repeated, seen = [], [], set[tuple[Series, str]]()
    for table, told in tables:
        shown = {(line.ours, line.scenario) for line in told if line.ours}
        if table.name == "significance":
            sheets += _significance_sheets(table, told)
        elif shown - seen:
            sheets.append(_sheet(table, told))
            seen |= shown
        elif shown:
            repeated.append(table.title)
    if not sheets:
        return Published(source="the paper", title=TITLE)
    unshown = f"Not shown, since other tables have all of their numbers: {'; '.join(repeated)}."
    return Published(
        source="the paper",
        title=TITLE,
        counts=count_marks(printed_numbers(tables)),
        verdict=tuple(summary(tables)),
        agreement=" ".join(_agreement(list(known.values()))),
        glances=tuple(glances(tables, sheets)),
        reading=f"{READING} {unshown}" if repeated else READING,
        sheets=tuple(sheets),
        gains={key: line.paper_gain.points for key, line in known.items() if line.paper_gain},
        caution=CAUTION if any(line.paper_gain and line.paper and line.paper.slip for line in known.values()) else "",
        columns={key: _columns(line) for key, line in known.items()},
    )


def lines_of_all_tables(groups: Sequence[Series], precision: str = Settings.precision) -> list[Told]:
    """Every table of the paper, with both pretext tasks, and its lines."""
    tables = [find_table(name).with_both_pretexts() for name in table_names()]
    return [(table, lines(table, groups, precision)) for table in tables]


def lines_by_runs(tables: Sequence[Told]) -> dict[tuple[Series, str], Line]:
    """The lines that have both our number and the paper's, by our runs and the scenario; the first table wins."""
    return {
        (line.ours, line.scenario): line for _, told in reversed(tables) for line in told if line.ours and line.beside
    }


def printed_numbers(tables: Sequence[Told]) -> list[Line]:
    """A line for each accuracy that the paper prints; of those that it prints in several tables, that of the first."""
    found = {(line.cell.key, line.scenario): line for _, told in reversed(tables) for line in told if line.paper}
    return list(found.values())


def claim(told: Sequence[Line]) -> str:
    """Whether our runs confirm the paper's claim that CLER gains, a sentence for each scenario that has such runs."""
    said = {name: verdict(told, name) for name in SCENARIOS}
    return " ".join(f"{NAMES[name].capitalize()}: {sentence}" for name, sentence in said.items() if sentence)


def summary(tables: Sequence[Told]) -> list[str]:
    """On which datasets accuracies agree; what CLER gains in tables 1 and 2, and then in the paper's other tables."""
    main = {MAIN[table.name]: printed_numbers([(table, told)]) for table, told in tables if table.name in MAIN}
    keys = {(line.cell.key, line.scenario) for told in main.values() for line in told}
    others = [line for line in printed_numbers(tables) if (line.cell.key, line.scenario) not in keys]
    gains = [
        f"{which}, {NAMES[name]}: {sentence}"
        for which, told in {**main, "Other tables": others}.items()
        for name in SCENARIOS
        if (sentence := verdict(told, name))
    ]
    return [*_by_dataset(printed_numbers(tables)), *gains]


def _by_dataset(told: Sequence[Line]) -> Iterator[str]:
    """How many accuracies agree on each dataset, if there are several with runs."""
    known = [line for line in told if line.ours]
    datasets = dict.fromkeys(line.cell.dataset for line in known)
    if len(datasets) > 1:
        states = {name: [bool(line.agrees) for line in known if line.cell.dataset == name] for name in datasets}
        counts = [f"{sum(agree)} of {len(agree)} on {name}" for name, agree in states.items()]
        yield f"Accuracies that agree with the paper's: {', '.join(counts)}."


def _agreement(told: Sequence[Line]) -> Iterator[str]:
    if not told:
        return
    near = sum(abs(line.difference) <= 1 for line in told if line.difference is not None)
    yield f"{near} of {len(told)} accuracies are within one point of the paper's."
    tested = [line.p_value for line in told if line.p_value is not None and not math.isnan(line.p_value)]
    if tested:
        alike = sum(p_value >= 0.01 for p_value in tested)
        yield (
            f"Of the {len(tested)} differences that can be tested, because the paper prints a deviation, "
            f"{alike} are not significant at 1 %."
        )
    fewest = min(line.runs for line in told)
    if fewest < PAPER_RUNS:
        yield (
            f"Some of our numbers are from only {count_runs(range(fewest))}, the paper's from {PAPER_RUNS} each: with "
            "few runs, even a large difference may not be significant."
        )


def _sheet(table: PaperTable, told: Sequence[Line]) -> Sheet:
    columns = [Column("method", numeric=False)]
    columns += [Column(heading, "accuracy") for heading in ("ours", "paper", "difference", "p")]
    columns += [Column("runs"), *(Column(heading, "adjusted forgetting") for heading in ("ours", "paper"))]
    columns += [Column(heading, "gain") for heading in ("ours", "p", "paper", "difference")]
    rows = [
        Row(group, (_name(line, table), *_numbers(line, group)), _heading(line, table), anchor_of(table, line))
        for name in SCENARIOS
        for line in told
        if line.scenario == name and (group := line.ours)
    ]
    note = " ".join(_notes(table, told))
    return _without_empty_columns(Sheet(table.title, tuple(columns), tuple(rows), note, table.name))


def _notes(table: PaperTable, told: Sequence[Line]) -> Iterator[str]:
    printed = [line for line in told if line.paper]
    made = sum(line.ours is not None for line in printed)
    if made < len(printed):
        yield f"We have runs for {made} of the {len(printed)} numbers in the paper's table."
    yield from notes(table, told)
    if any(line.better_of_two is not None for line in told):
        yield FLATTERED


def _heading(line: Line, table: PaperTable) -> str:
    return f"{NAMES[line.scenario]}, {line.cell.where}" if len(table.scenarios) > 1 else line.cell.where


def _name(line: Line, table: PaperTable) -> Cell:
    cell = line.cell
    repeated = any(one.method == cell.method and one.epochs > 1 for one in table.cells)
    name = f"{cell.label}, online" if repeated and cell.epochs == 1 else cell.label
    return Cell(f"{name} {CHOSEN}" if cell.chosen else name)


def _numbers(line: Line, group: Series) -> list[Cell]:
    ours = Estimate(or_nan(line.mean), or_nan(line.std))
    paper = estimate(Estimate(line.paper.mean, or_nan(line.paper.std))) if line.paper else Cell("")
    return [
        *(estimate(ours), paper, _difference(line.difference, line.agrees), _p_value(line)),
        *(Cell(str(line.runs)), adjusted_forgetting(group, line.scenario)),
        Cell(
            ""
            if line.paper is None or line.paper.adjusted_forgetting is None
            else tenths(line.paper.adjusted_forgetting)
        ),
        *([gained(line.gain.points), Cell(bare_p(line.gain.p_value))] if line.gain else [Cell(""), Cell("")]),
        gained(line.paper_gain.points) if line.paper_gain else Cell(""),
        _difference(line.gain_difference, line.gain_agrees),
    ]


def _p_value(line: Line) -> Cell:
    """The p-value of the difference from the paper: for ten runs of the paper's and, where that is uncertain, three."""
    fewer = line.beside.p_value_of_three if line.beside else None
    note = f"({bare_p(fewer)})" if fewer is not None and not math.isnan(fewer) else ""
    return Cell(bare_p(or_nan(line.p_value)), note=note)


def _difference(points: float | None, agrees: bool | None) -> Cell:
    if points is None:
        return Cell("")
    return _points(points) if agrees else Cell(f"{_points(points).text} ≠", strong=True)


def _points(points: float) -> Cell:
    return Cell(minus(signed(points, 2)))


def _without_empty_columns(sheet: Sheet) -> Sheet:
    kept = [index for index in range(len(sheet.columns)) if any(row.cells[index].text for row in sheet.rows)]
    rows = tuple(replace(row, cells=tuple(row.cells[index] for index in kept)) for row in sheet.rows)
    return replace(sheet, columns=tuple(sheet.columns[index] for index in kept), rows=rows)


def _significance_sheets(table: PaperTable, told: Sequence[Line]) -> list[Sheet]:
    """A sheet with a row for each gain; none without gains."""
    rows = []
    for line in told:
        if line.ours and line.gain:
            cells = _name(line, table), Cell(str(line.runs)), gained(line.gain.points), *probabilities(line)
            rows.append(Row(line.ours, cells, _heading(line, table), anchor_of(table, line)))
    columns = Column("method", numeric=False), Column("runs"), Column("gain"), *P_VALUES
    note = " ".join([PROBABILITIES, *(one.sentence for one in table.contradictions)])
    return [Sheet(table.title, columns, tuple(rows), note, table.name)] if rows else []


def probabilities(line: Line) -> list[Cell]:
    """The p-values of a gain, in the columns `P_VALUES`."""
    ours, paper = (gain.p_value if gain else math.nan for gain in (line.gain, line.paper_gain))
    return [Cell(fine_p(ours)), Cell(fine_p(paper)), Cell(fine_p(line.holm), strong=line.holm < SIGNIFICANT)]


def fine_p(p_value: float) -> str:
    """A p-value to five decimals, as in the paper's table of significance; empty for NaN."""
    if math.isnan(p_value):
        return ""
    return "< 0.00001" if p_value < 0.00001 else f"{p_value:.5f}"


def _columns(line: Line) -> dict[str, Any]:
    """The columns of the spreadsheet."""
    if line.paper is None:
        return {}
    return {
        "accuracy_as_paper": line.mean,  # evaluated as the paper did
        "accuracy_as_paper_std": line.std,
        "paper_accuracy": line.paper.mean,
        "paper_accuracy_std": line.paper.std,
        "paper_adjusted_forgetting": line.paper.adjusted_forgetting,
        "paper_gain": line.paper_gain.points if line.paper_gain else None,
        "gain_minus_paper": line.gain_difference,
        "accuracy_minus_paper": line.difference,
        "p_against_paper": line.p_value,
    }
