"""What a report says; the formats only render it. What it says beside the paper is in `beside`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cler.paper.beside import PAPER, Beside, beside_paper
from cler.report.evidence import Evidence, evidence
from cler.report.numbers import SIGNIFICANT, bare_p, count_runs, duration, interval, minus, signed
from cler.report.sheets import NAMES, Cell, Column, Row, Sheet, estimate, forgetting
from cler.runs.compare import SHOWN_ANYWAY, Comparison, Group, distinguishing_settings
from cler.runs.results import SCENARIOS, Result

MEASURES = (
    "Accuracy: final average accuracy in %, mean ± standard deviation over the runs. Forgetting: adjusted forgetting, "
    "the share in % that earlier tasks lost of their best accuracy. Gain: accuracy over the same method without the "
    "regularizer, in points; bold where p < 0.05 in Student's test, the paper's, for that gain alone."
)
TESTS = (
    "Gain in points over the same method without the regularizer, with 95 % intervals: Welch's, and of the percentile "
    "bootstrap, which is too narrow for a handful of runs. p-values, two-sided: Student's with pooled variance (the "
    "paper's), Welch's, Student's on pairs of runs with the same seed (how many), and Student's after Holm's "
    "correction for the {count} tests of this table, bold where it is below 0.05."
)


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
    beside: Beside
    sections: tuple[Section, ...]
    complaints: tuple[str, ...]


def make_report(comparison: Comparison, complaints: Sequence[str] = (), *, preface: str = "") -> Report:
    """The report on a comparison; complaints from reading the results come first."""
    groups = comparison.groups
    beside, sections = beside_paper(groups), make_sections(groups)
    about = f"{sum(len(group.runs) for group in groups)} runs on {', '.join(one.title for one in sections)}"
    return Report(
        title=f"{PAPER}: our {about}" if beside.sheets else f"Results of {about}",
        preface=tuple(" ".join(paragraph.split()) for paragraph in preface.split("\n\n") if paragraph.strip()),
        facts=tuple(_facts(groups)),
        beside=beside,
        sections=sections,
        complaints=tuple(map(readable, (*complaints, *comparison.complaints))),
    )


def make_sections(groups: Sequence[Group]) -> tuple[Section, ...]:
    """What there is to say of the groups themselves."""
    datasets = dict.fromkeys(group.settings["dataset"] for group in groups)
    return tuple(_section(name, [one for one in groups if one.settings["dataset"] == name]) for name in datasets)


def readable(text: str) -> str:
    """The same with the bytes of a file's name that are not UTF-8 written out."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def memory(group: Group) -> str:
    """The size of the replay memory, as a table shows it."""
    return str(group.settings["buffer"] or "–")


def note(group: Group, groups: Sequence[Group]) -> str:
    """What tells a row from others with the same method and memory."""
    return distinguishing_settings(group, groups, shown=("dataset", "buffer"))


def time_taken(runs: Sequence[Result]) -> str:
    """What runs took of a device, which those that were trained at once shared."""
    shares = [run.seconds / run.at_once for run in runs if run.at_once]
    whole = [run.seconds for run in runs if not run.at_once]
    known = f"{duration(sum(shares))} of the device for {count_runs(shares)}"
    most = f"at most {duration(sum(whole))}{'' if shares else ' of the device'}"
    unknown = f"{most} for {count_runs(whole)} whose results do not tell how many shared it"
    return ", and ".join([known] * bool(shares) + [unknown] * bool(whole))


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
        for name in SCENARIOS:
            cells += [estimate(group.faa[name]), forgetting(group, name)]
            cells += [_gain(group, name)] if "gain" in scores else []
        rows.append(Row(group, tuple(cells)))
    return Sheet("Results", (*_NAME, Column("runs"), *columns), tuple(rows), MEASURES)


def _gains_sheet(found: Sequence[Evidence], groups: Sequence[Group]) -> Sheet:
    tested = sum(not math.isnan(one.student) for one in found)
    tests = [Column(heading, "p") for heading in ("Student", "Welch", "paired", "Holm")]
    columns = (Column("scenario", numeric=False), Column("gain"), Column("95 %"), Column("bootstrap"), *tests)
    rows = []
    for one in found:
        cells = (
            Cell(NAMES[one.scenario]),
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


def _gain(group: Group, name: str) -> Cell:
    if not group.gain:
        return Cell("")
    gain = group.gain[name]
    return Cell(minus(signed(gain.points, 2)), strong=gain.p_value < SIGNIFICANT)


def _gains_in_words(found: Sequence[Evidence]) -> Iterator[str]:
    for name in SCENARIOS:
        gains = [one for one in found if one.scenario == name]
        if gains:
            better = sum(one.points > 0 for one in gains)
            sure = sum(one.points > 0 and one.holm < SIGNIFICANT for one in gains)
            yield (
                f"{NAMES[name].capitalize()}, {better} of {len(gains)} regularized rows gain, "
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
        "In every row": ", ".join(_shared_settings(groups)),
        "Software": distinct(
            f"{name} {run.environment[name]}" for run in runs for name in ("cler", "torch") if name in run.environment
        ),
    }.items():
        if value:
            yield heading, value
    yield "Time", time_taken(runs)


def _shared_settings(groups: Sequence[Group]) -> Iterator[str]:
    """What no table tells, since all rows agree in it."""
    for name, value in groups[0].settings.items():
        if name not in SHOWN_ANYWAY and value is not None and all(one.settings.get(name) == value for one in groups):
            yield f"{name} {value}"


def _seeds(group: Group) -> str:
    first, last = group.seeds[0], group.seeds[-1]
    if last - first == len(group.seeds) - 1 > 0:
        return f"{first}..{last}"
    return ",".join(map(str, group.seeds))
