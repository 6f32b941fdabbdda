"""The paper's tables from our runs, each number beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cler.paper.reproduce import GAIN_TOLERANCE, Line, lines, notes, verdict
from cler.paper.tables import PAPER_RUNS, PaperTable, find_table, table_names
from cler.report.numbers import SIGNIFICANT, bare_p, fine_p, minus, signed, tenths
from cler.report.sheets import NAMES, Cell, Column, Row, Sheet, estimate, forgetting
from cler.runs.compare import Estimate, Group
from cler.runs.results import SCENARIOS

PAPER = "On the Effectiveness of Equivariant Regularization for Robust Online Continual Learning"
READING = (
    "Accuracy is final average accuracy in %, forgetting is adjusted forgetting in %, gains are in points over the "
    "same method without the regularizer. Difference: ours over the paper's, for accuracies with the p-value of "
    "Welch's test where the paper prints a deviation. ≠: accuracies more than one point apart, and told apart at 1 % "
    f"or not testable; gains more than {GAIN_TOLERANCE} points apart, and of CLER those that are not positive. The "
    "p-values of gains are of Student's test, like the paper's."
)
FLATTERED = "Picking the better pretext task by the accuracy that is reported flatters it, the paper's and ours."
PROBABILITIES = (
    "Gain in points, class-incremental. p-values of Student's test, two-sided: ours, the paper's, and ours after "
    "Holm's correction for all tests of the whole table, bold where it is below 0.05."
)
P_VALUES = tuple(Column(heading, "p") for heading in ("ours", "paper", "Holm"))


@dataclass(frozen=True)
class Beside:
    """What the paper's tables say about our runs; without sheets where none has their settings."""

    verdict: str
    """Whether the paper's claim holds."""
    agreement: str
    """How near our accuracies are."""
    reading: str
    """How to read the tables."""
    sheets: tuple[Sheet, ...]
    lines: Mapping[tuple[Group, str], Line]
    """What the paper has about a group and a scenario."""


def beside_paper(groups: Sequence[Group]) -> Beside:
    """Every table of the paper that there are runs for; one that would only repeat those above it is named."""
    tables = [
        (table, lines(table, groups)) for table in (find_table(one).with_both_pretexts() for one in table_names())
    ]
    known = {
        (line.group, line.scenario): line for _, told in reversed(tables) for line in told if line.group and line.beside
    }
    sheets, repeated, seen = [], [], set[tuple[Group, str]]()
    for table, told in tables:
        shown = {(line.group, line.scenario) for line in told if line.group}
        if table.name == "significance":
            sheets += _significance_sheets(table, told)
        elif shown - seen:
            sheets.append(_sheet(table, told))
            seen |= shown
        elif shown:
            repeated.append(table.title)
    unshown = f"Not shown, since all their numbers that have runs stand in other tables: {'; '.join(repeated)}."
    return Beside(
        verdict=claim(list(known.values())),
        agreement=" ".join(_agreement(list(known.values()))),
        reading=f"{READING} {unshown}" if repeated else READING,
        sheets=tuple(sheets),
        lines=known,
    )


def claim(told: Sequence[Line]) -> str:
    """The paper's claim, that CLER gains, a sentence for each scenario; nothing without gains to tell of."""
    said = {name: verdict(told, name) for name in SCENARIOS}
    return " ".join(f"{NAMES[name].capitalize()}: {sentence}" for name, sentence in said.items() if sentence)


def _agreement(told: Sequence[Line]) -> Iterator[str]:
    if not told:
        return
    near = sum(abs(line.difference) <= 1 for line in told if line.difference is not None)
    yield f"{near} of {len(told)} accuracies are within one point of the paper's."
    tested = [line.p_value for line in told if line.p_value is not None and not math.isnan(line.p_value)]
    if tested:
        alike = sum(p_value >= 0.01 for p_value in tested)
        yield f"Of the {len(tested)} that can be tested, {alike} are not told apart from the paper's at 1 %."
    fewest = min(line.runs for line in told)
    if fewest < PAPER_RUNS:
        yield f"Few runs tell little apart: the fewest behind one of ours are {fewest}, the paper's are {PAPER_RUNS}."


def _sheet(table: PaperTable, told: Sequence[Line]) -> Sheet:
    columns = [Column("method", numeric=False)]
    columns += [Column(heading, "accuracy") for heading in ("ours", "paper", "difference", "p")]
    columns += [Column("runs"), *(Column(heading, "forgetting") for heading in ("ours", "paper"))]
    columns += [Column(heading, "gain") for heading in ("ours", "p", "paper", "difference")]
    rows = [
        Row(group, (_name(line, table), *_numbers(line, group)), _heading(line, table))
        for name in SCENARIOS
        for line in told
        if line.scenario == name and (group := line.group)
    ]
    return _without_empty_columns(Sheet(table.title, tuple(columns), tuple(rows), " ".join(_notes(table, told))))


def _notes(table: PaperTable, told: Sequence[Line]) -> Iterator[str]:
    printed = [line for line in told if line.paper]
    made = sum(line.group is not None for line in printed)
    if made < len(printed):
        yield f"{made} of the table's {len(printed)} numbers have runs."
    yield from notes(table, told)
    if any(line.better_of_two is not None for line in told):
        yield FLATTERED


def _heading(line: Line, table: PaperTable) -> str:
    return f"{NAMES[line.scenario]}, {line.cell.where}" if len(table.scenarios) > 1 else line.cell.where


def _name(line: Line, table: PaperTable) -> Cell:
    cell = line.cell
    repeated = any(one.method == cell.method and one.epochs > 1 for one in table.cells)
    return Cell(f"{cell.label}, online" if repeated and cell.epochs == 1 else cell.label)


def _numbers(line: Line, group: Group) -> list[Cell]:
    ours = Estimate(_or_nan(line.mean), _or_nan(line.std))
    paper = estimate(Estimate(line.paper.mean, _or_nan(line.paper.std))) if line.paper else Cell("")
    return [
        *(estimate(ours), paper, _difference(line.difference, line.agrees), Cell(bare_p(_or_nan(line.p_value)))),
        *(Cell(str(line.runs)), forgetting(group, line.scenario)),
        Cell(tenths(line.paper.forgetting) if line.paper and line.paper.forgetting is not None else ""),
        *([_points(line.gain.points), Cell(bare_p(line.gain.p_value))] if line.gain else [Cell(""), Cell("")]),
        _points(line.paper_gain.points) if line.paper_gain else Cell(""),
        _difference(line.gain_difference, line.gain_agrees),
    ]


def _difference(points: float | None, agrees: bool | None) -> Cell:
    if points is None:
        return Cell("")
    return _points(points) if agrees else Cell(f"{_points(points).text} ≠", strong=True)


def _points(points: float) -> Cell:
    return Cell(minus(signed(points, 2)))


def _without_empty_columns(sheet: Sheet) -> Sheet:
    kept = [index for index in range(len(sheet.columns)) if any(row.cells[index].text for row in sheet.rows)]
    rows = tuple(Row(row.group, tuple(row.cells[index] for index in kept), row.heading) for row in sheet.rows)
    return Sheet(sheet.title, tuple(sheet.columns[index] for index in kept), rows, sheet.note)


def _significance_sheets(table: PaperTable, told: Sequence[Line]) -> list[Sheet]:
    """A row for each gain; no sheet without any."""
    rows = []
    for line in told:
        if line.group and line.gain:
            cells = _name(line, table), Cell(str(line.runs)), _points(line.gain.points), *probabilities(line)
            rows.append(Row(line.group, cells, _heading(line, table)))
    columns = Column("method", numeric=False), Column("runs"), Column("gain"), *P_VALUES
    note = " ".join([PROBABILITIES, *(one.sentence for one in table.contradictions)])
    return [Sheet(table.title, columns, tuple(rows), note)] if rows else []


def probabilities(line: Line) -> list[Cell]:
    """The p-values of a gain, below `P_VALUES`."""
    ours, paper = (gain.p_value if gain else math.nan for gain in (line.gain, line.paper_gain))
    return [Cell(fine_p(ours)), Cell(fine_p(paper)), Cell(fine_p(line.holm), strong=line.holm < SIGNIFICANT)]


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number
