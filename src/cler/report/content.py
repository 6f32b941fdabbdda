"""What a report says. This is the one place that decides; the formats only render it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cler.experiments.compare import Comparison, Estimate, Gain, Group, distinguishing_settings
from cler.experiments.paper import PaperTable, find_table, table_names
from cler.experiments.reproduce import Line, lines, notes
from cler.experiments.results import SETTINGS
from cler.report.evidence import Evidence, evidence
from cler.report.numbers import SIGNIFICANT, bare_p, duration, interval, minus, plus_minus, signed

NAMES = {"class_il": "class-incremental", "task_il": "task-incremental"}
MEASURES = (
    "Accuracy: final average accuracy in %, mean ± standard deviation over the runs. Forgetting: adjusted forgetting, "
    "the share in % that earlier tasks lost of their best accuracy. Gain: accuracy over the same method without the "
    "regulariser, in points; bold where p < 0.05 in Student's test, the paper's, for that gain alone."
)
BESIDE = (
    "Accuracy is final average accuracy in %, forgetting is adjusted forgetting in %, gains are in points. Difference: "
    "ours over the paper's, with the p-value of Welch's test where the paper prints a deviation; ≠ where they are more "
    "than one point apart, and told apart at 1 % or not testable. The p-values of gains are of Student's test, like "
    "the paper's."
)
TESTS = (
    "Gain in points over the same method without the regulariser, with 95 % intervals: Welch's, and of the percentile "
    "bootstrap, which is too narrow for a handful of runs. p-values, two-sided: Student's with pooled variance (the "
    "paper's), Welch's, Student's on pairs of runs with the same seed (how many), and Student's after Holm's "
    "correction for the {count} tests of this table, bold where it is below 0.05."
)


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table; the note is less important than the text."""

    text: str
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Column:
    """A heading, and the one above it that several columns share."""

    heading: str
    above: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Row:
    """The cells of one row, and the runs that it is about."""

    group: Group
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Sheet:
    """A table."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str


@dataclass(frozen=True)
class Section:
    """Everything about the runs on one data set."""

    title: str
    groups: tuple[Group, ...]
    summary: str
    results: Sheet
    gains: Sheet
    """Without rows where no row of the results has a gain."""
    evidence: tuple[Evidence, ...]

    @property
    def sheets(self) -> list[Sheet]:
        """The tables that have something to say."""
        return [sheet for sheet in (self.results, self.gains) if sheet.rows]


@dataclass(frozen=True)
class Report:
    """What a report is made of; complaints are about what was left out, a line each."""

    title: str
    preface: tuple[str, ...]
    """Paragraphs."""
    facts: tuple[tuple[str, str], ...]
    beside: str
    """How far ours agree with the paper's numbers, and how to read them; empty without any."""
    paper: tuple[Sheet, ...]
    """The paper's tables that there are runs for."""
    lines: Mapping[tuple[int, str], Line]
    """What the paper has about a group, by its identity, and a setting."""
    sections: tuple[Section, ...]
    complaints: tuple[str, ...]


def make_report(comparison: Comparison, complaints: Sequence[str] = (), *, preface: str = "") -> Report:
    """The report on a comparison; complaints from reading the results come first."""
    groups = comparison.groups
    datasets = dict.fromkeys(group.settings["dataset"] for group in groups)
    tables = [(table, lines(table, groups)) for table in map(_table, table_names())]
    known = {(id(line.group), line.setting): line for _, told in reversed(tables) for line in told if line.beside}
    return Report(
        title=f"Results of {sum(len(group.runs) for group in groups)} runs",
        preface=tuple(" ".join(paragraph.split()) for paragraph in preface.split("\n\n") if paragraph.strip()),
        facts=tuple(_facts(groups)),
        beside=_beside(list(known.values())),
        paper=tuple(_paper_sheet(table, told) for table, told in tables if any(line.group for line in told)),
        lines=known,
        sections=tuple(_section(name, [one for one in groups if one.settings["dataset"] == name]) for name in datasets),
        complaints=(*complaints, *comparison.complaints),
    )


def memory(group: Group) -> str:
    """The size of the replay memory, as a table shows it."""
    return str(group.settings["buffer"] or "–")


def note(group: Group, groups: Sequence[Group]) -> str:
    """What tells a row from others with the same method and memory."""
    return distinguishing_settings(group, groups, shown=("dataset", "buffer"))


def _table(name: str) -> PaperTable:
    table = find_table(name)
    return table.with_both_pretexts() if table.pretext == "both" else table


def _section(dataset: str, groups: Sequence[Group]) -> Section:
    found = evidence(groups)
    return Section(
        title=dataset,
        groups=tuple(groups),
        summary=" ".join(_gains_in_words(found)),
        results=_results_sheet(groups),
        gains=_gains_sheet(found, groups),
        evidence=tuple(found),
    )


def _results_sheet(groups: Sequence[Group]) -> Sheet:
    scores = ["accuracy", "forgetting", *(["gain"] if any(group.gain for group in groups) else [])]
    columns = [Column(score, above) for above in NAMES.values() for score in scores]
    rows = []
    for group in groups:
        cells = [*_name(group, groups), Cell(str(len(group.runs)))]
        for name in SETTINGS:
            cells += [_estimate(group.faa[name]), _forgetting(group, name)]
            cells += [_gain(group, name)] if "gain" in scores else []
        rows.append(Row(group, tuple(cells)))
    return Sheet("Results", (*_NAME, Column("runs"), *columns), tuple(rows), MEASURES)


def _paper_sheet(table: PaperTable, told: Sequence[Line]) -> Sheet:
    shown = [(line, line.group) for name in SETTINGS for line in told if line.setting == name and line.group]
    columns = [*_NAME, Column("data set", numeric=False), Column("setting", numeric=False), Column("runs")]
    columns += [Column(heading, "accuracy") for heading in ("ours", "paper", "difference", "p")]
    columns += [Column(heading, "forgetting") for heading in ("ours", "paper")]
    columns += [Column(heading, "gain") for heading in ("ours", "p", "paper", "paper's p")]
    rows = [Row(group, (*_paper_name(line), *_numbers(line, group))) for line, group in shown]
    about = "" if len(shown) == len(told) else f"{len(shown)} of the table's {len(told)} numbers have runs."
    return _without_idle_columns(
        Sheet(table.title, tuple(columns), tuple(rows), " ".join(filter(None, [about, *notes(table, told)])))
    )


def _paper_name(line: Line) -> list[Cell]:
    cell = line.cell
    return [Cell(cell.label), Cell(str(cell.buffer or "–")), Cell(cell.dataset), Cell(NAMES[line.setting])]


def _numbers(line: Line, group: Group) -> list[Cell]:
    ours = Estimate(_or_nan(line.mean), _or_nan(line.std))
    paper = _estimate(Estimate(line.paper.mean, _or_nan(line.paper.std))) if line.paper else Cell("")
    difference = Cell("")
    if line.beside:
        mark = "" if line.agrees else " ≠"
        difference = Cell(minus(signed(line.beside.difference, 2)) + mark, strong=not line.agrees)
    return [
        *(Cell(str(line.runs)), _estimate(ours), paper, difference, Cell(bare_p(_or_nan(line.p_value)))),
        _forgetting(group, line.setting),
        Cell(f"{line.paper.forgetting:.1f}" if line.paper and line.paper.forgetting is not None else ""),
        *(cell for gain in (line.gain, line.paper_gain) for cell in _gain_and_p(gain)),
    ]


def _gain_and_p(gain: Gain | None) -> list[Cell]:
    return [Cell(minus(signed(gain.points, 2))), Cell(bare_p(gain.p_value))] if gain else [Cell(""), Cell("")]


def _without_idle_columns(sheet: Sheet) -> Sheet:
    """The same without columns that are empty, and without names that are the same in every row."""

    def tells(index: int) -> bool:
        texts = {row.cells[index].text for row in sheet.rows}
        return len(texts) > 1 if sheet.columns[index].heading in ("data set", "setting") else texts != {""}

    kept = [index for index in range(len(sheet.columns)) if tells(index)]
    rows = tuple(Row(row.group, tuple(row.cells[index] for index in kept)) for row in sheet.rows)
    return Sheet(sheet.title, tuple(sheet.columns[index] for index in kept), rows, sheet.note)


def _gains_sheet(found: Sequence[Evidence], groups: Sequence[Group]) -> Sheet:
    tested = sum(not math.isnan(one.student) for one in found)
    tests = [Column(heading, "p") for heading in ("Student", "Welch", "paired", "Holm")]
    columns = (Column("setting", numeric=False), Column("gain"), Column("95 %"), Column("bootstrap"), *tests)
    rows = []
    for one in found:
        cells = (
            Cell(NAMES[one.setting]),
            Cell(minus(signed(one.points, 2))),
            Cell(minus(interval(one.welch_interval))),
            Cell(minus(interval(one.bootstrap_interval))),
            *map(Cell, map(bare_p, (one.student, one.welch))),
            Cell(bare_p(one.paired), note=f"({one.pairs})" if bare_p(one.paired) else ""),
            Cell(bare_p(one.holm), strong=one.holm < SIGNIFICANT),
        )
        rows.append(Row(one.group, (*_name(one.group, groups), *cells)))
    return Sheet("Gains", (*_NAME, *columns), tuple(rows), TESTS.format(count=tested))


_NAME = (Column("method", numeric=False), Column("memory"))


def _name(group: Group, groups: Sequence[Group]) -> tuple[Cell, Cell]:
    return Cell(group.label, note=note(group, groups)), Cell(memory(group))


def _estimate(estimate: Estimate) -> Cell:
    return Cell(plus_minus(estimate, " ± "))


def _forgetting(group: Group, name: str) -> Cell:
    """Nothing for Joint, which has no earlier task to forget."""
    alone = len(group.runs[0].accuracy[name]) == 1
    return Cell("" if alone else f"{group.adjusted_forgetting[name].mean:.1f}")


def _gain(group: Group, name: str) -> Cell:
    if not group.gain:
        return Cell("")
    gain = group.gain[name]
    return Cell(minus(signed(gain.points, 2)), strong=gain.p_value < SIGNIFICANT)


def _beside(told: Sequence[Line]) -> str:
    if not told:
        return ""
    agreeing = sum(bool(line.agrees) for line in told)
    return f"{agreeing} of {len(told)} accuracies agree: within one point, or not told apart at 1 %. {BESIDE}"


def _gains_in_words(found: Sequence[Evidence]) -> Iterator[str]:
    for name in SETTINGS:
        gains = [one for one in found if one.setting == name]
        if gains:
            better = sum(one.points > 0 for one in gains)
            sure = sum(one.points > 0 and one.holm < SIGNIFICANT for one in gains)
            yield (
                f"{NAMES[name].capitalize()}, {better} of {len(gains)} regularised rows gain, "
                f"{sure} of them with p < 0.05 after Holm's correction."
            )


def _facts(groups: Sequence[Group]) -> Iterator[tuple[str, str]]:
    runs = [run for group in groups for run in group.runs]

    def distinct(values: Iterable[object]) -> str:
        return ", ".join(sorted({str(value) for value in values if value is not None}))

    yield "Runs", f"{len(runs)} in {len(groups)} rows, seeds {distinct(_seeds(group) for group in groups)}"
    for heading, value in {
        "Hardware": distinct(run.environment.get("hardware") for run in runs),
        "Precision": distinct(run.settings.get("precision") for run in runs),
        "Software": distinct(
            f"{name} {run.environment[name]}" for run in runs for name in ("cler", "torch") if name in run.environment
        ),
    }.items():
        if value:
            yield heading, value
    seconds = sum(run.seconds for run in runs)
    yield "Time", f"{duration(seconds)} summed over the runs; runs trained side by side count in full"


def _seeds(group: Group) -> str:
    first, last = group.seeds[0], group.seeds[-1]
    if last - first == len(group.seeds) - 1 > 0:
        return f"{first}..{last}"
    return ",".join(map(str, group.seeds))


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number
