"""What a report says; the formats only render it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cler.config.comparing import default_settings
from cler.metrics import SCENARIOS
from cler.report.evidence import Evidence, evidence
from cler.report.numbers import SIGNIFICANT, bare_p, count_runs, duration, interval, minus
from cler.report.prose import Block, split
from cler.report.sheets import NAMES, Cell, Column, Row, Sheet, adjusted_forgetting, estimate, gained
from cler.runs.compare import (
    SHOWN_ANYWAY,
    Comparison,
    Series,
    best_by_validation,
    distinguishing_settings,
    measured_against,
)
from cler.runs.results import Result
from cler.runs.survey import Trace, Unfinished

MEASURES = (
    "Accuracy: final average accuracy in %, mean ± standard deviation over the runs. Adjusted forgetting: how much of "
    "their best accuracy earlier tasks had lost at the end, in %."
)
GAIN = (
    " Gain: accuracy minus that of {against}, in points; bold where p < 0.05 in Student's t-test, not corrected for "
    "the number of tests."
)
BEST = "★"
HELD_OUT = (
    f" Held-out images: class-incremental accuracy on training images that were held out; {BEST}: the settings that do "
    "best there for this method."
)
TESTS = (
    "Gain: accuracy minus that of {against}, in points, with two 95 % confidence "
    "intervals: Welch's, and the percentile bootstrap's, which is too narrow for a handful of runs. p-values, all "
    "two-sided: of Student's t-test with pooled variance, of Welch's, of Student's on pairs of runs with the same seed "
    "(number of pairs in parentheses), and of Student's after Holm's correction for the {count} tests in this table, "
    "bold where below 0.05."
)


@dataclass(frozen=True)
class Section:
    """Everything about the runs on one dataset."""

    title: str
    groups: tuple[Series, ...]
    summary: str
    results: Sheet
    gains: Sheet
    """Without rows where no row of the results has a gain."""
    evidence: tuple[Evidence, ...]

    @property
    def sheets(self) -> list[Sheet]:
        """The tables that have something to say."""
        return [sheet for sheet in (self.results, self.gains) if sheet.rows]


AGREES, OFF, NOT_RUN = "agrees", "off", "not run"
MARKS = {AGREES: "✓", OFF: "≠", NOT_RUN: "·"}
"""The signs of a published number that ours agrees with, one that it does not agree with, and one that we lack."""
LEGEND = (
    f"{MARKS[AGREES]} ours agrees: within one point, or the difference is not significant at 1 %. {MARKS[OFF]} ours is "
    f"off. {MARKS[NOT_RUN]} not run. The numbers are ours minus the published ones, in points."
)


@dataclass(frozen=True)
class Mark:
    """How a published number compares with ours."""

    state: str
    """One of `MARKS`."""
    text: str = ""
    """How much ours differs."""
    told: str = ""
    """Both numbers, in words."""
    anchor: str = ""
    """The row of a sheet that has them."""


@dataclass(frozen=True)
class Glance:
    """A published table with a mark for each of its numbers."""

    title: str
    columns: tuple[Column, ...]
    """The first is that of the rows' names, and its heading says what the other headings are."""
    rows: tuple[tuple[str, tuple[Mark | None, ...]], ...]
    """The name of each row, and a mark for each other column; None where nothing is published."""


@dataclass(frozen=True)
class Published:
    """Numbers that somebody has published, beside those of our runs; without sheets there are none."""

    source: str = ""
    """Where they were published, as it reads within a sentence: 'the paper'."""
    title: str = ""
    """The full title of the source."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many of the published numbers have each of `MARKS`."""
    verdict: tuple[str, ...] = ()
    """Whether what the source claims holds for our runs, in sentences."""
    agreement: str = ""
    """How close our accuracies are to the published ones."""
    glances: tuple[Glance, ...] = ()
    reading: str = ""
    """How to read the tables."""
    sheets: tuple[Sheet, ...] = ()
    gains: Mapping[tuple[Series, str], float] = field(default_factory=dict)
    """Published gains in points, by our runs and the scenario."""
    caution: str = ""
    """What to know when these gains are drawn beside ours."""
    columns: Mapping[tuple[Series, str], Mapping[str, Any]] = field(default_factory=dict)
    """Further columns of the spreadsheet, by our runs and the scenario."""


@dataclass(frozen=True)
class Report:
    """What a report is made of; each complaint is a line about something that was left out."""

    title: str
    preface: tuple[Block, ...]
    """What a person says before the tables."""
    notes: tuple[Block, ...]
    """What a person says after them."""
    facts: tuple[tuple[str, str], ...]
    beside: Published
    sections: tuple[Section, ...]
    complaints: tuple[str, ...]
    unfinished: tuple[Unfinished, ...] = ()
    """Runs that have begun and not ended, those that are being trained first."""
    traces: Mapping[Path, Trace] = field(default_factory=dict)
    """What lies beside the results of finished runs, by their folders."""


def make_report(
    comparison: Comparison,
    complaints: Sequence[str] = (),
    *,
    preface: str = "",
    beside: Published | None = None,
    unfinished: Sequence[Unfinished] = (),
    traces: Mapping[Path, Trace] = MappingProxyType({}),
) -> Report:
    """The report on a comparison, `beside` published numbers; `complaints` are from reading the results.

    `unfinished` runs and the `traces` of finished ones are told of in the page.
    """
    groups, beside = comparison.groups, beside or Published()
    sections = make_sections(groups)
    first, last = split(preface)
    about = f"{count_runs([run for group in groups for run in group.results])} on {_listed(sections)}"
    title = f"{beside.title}: our {about}" if beside.sheets else f"Results of {about}"
    begun = f"{count_runs(unfinished)} under way" if unfinished else "No run is complete yet"
    return Report(
        title=title if groups else begun,
        preface=first,
        notes=last,
        facts=tuple(_facts(groups)) if groups else (),
        beside=beside,
        sections=sections,
        complaints=tuple(map(readable, (*complaints, *comparison.complaints))),
        unfinished=tuple(sorted(unfinished, key=lambda one: (not one.running, str(one.folder)))),
        traces=traces,
    )


def _listed(sections: Sequence[Section]) -> str:
    return ", ".join(one.title for one in sections)


def possessive(source: str) -> str:
    """A source at the beginning of a heading: "The paper's"."""
    return f"{source[0].upper()}{source[1:]}'s"


def counts_in_words(beside: Published) -> str:
    """How many of the published numbers ours agree with, in a sentence."""
    agree, off, absent = (beside.counts.get(state, 0) for state in MARKS)
    whole = agree + off + absent
    return (
        f"Of {whole} accuracies in {beside.source}, {agree} agree with ours, {off} are off, {absent} have not been run."
    )


def make_sections(groups: Sequence[Series]) -> tuple[Section, ...]:
    """A section for each dataset."""
    datasets = dict.fromkeys(group.settings["dataset"] for group in groups)
    return tuple(_section(name, [one for one in groups if one.settings["dataset"] == name]) for name in datasets)


def readable(text: str) -> str:
    """The string with undecodable bytes of file names written as escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def buffer_size(group: Series) -> str:
    """The size of the replay buffer as tables show it: a dash without one."""
    return str(group.settings["buffer"] or "–")


def under_buffer(group: Series) -> str:
    """The heading that rows with this size of the buffer share."""
    return f"buffer {group.settings['buffer']}" if group.settings["buffer"] else "without a buffer"


def by_buffer(groups: Iterable[Series]) -> list[Series]:
    """The groups with those of the same size of the buffer beside each other."""
    return sorted(groups, key=lambda group: group.settings["buffer"])


def note(group: Series, groups: Sequence[Series]) -> str:
    """The settings that distinguish a row from others with the same method and buffer size."""
    return distinguishing_settings(group, groups, shown=("dataset", "buffer"))


def time_taken(runs: Sequence[Result]) -> str:
    """The device time of runs; those that were trained side by side shared a device."""
    shares = [run.seconds / run.at_once for run in runs if run.at_once]
    whole = [run.seconds for run in runs if not run.at_once]
    known = f"{duration(sum(shares))} of device time for {count_runs(shares)}"
    most = f"at most {duration(sum(whole))}{'' if shares else ' of device time'}"
    unknown = f"{most} for {count_runs(whole)} (how many runs shared the device was not recorded)"
    return ", and ".join([known] * bool(shares) + [unknown] * bool(whole))


def _section(dataset: str, groups: Sequence[Series]) -> Section:
    found = evidence(by_buffer(groups))
    return Section(
        title=dataset,
        groups=tuple(groups),
        summary=" ".join(_gains_in_words(found)),
        results=_results_sheet(groups),
        gains=_gains_sheet(found, groups),
        evidence=tuple(found),
    )


def _results_sheet(groups: Sequence[Series]) -> Sheet:
    scores = ["accuracy", "adjusted forgetting", *(["gain"] if any(group.gain for group in groups) else [])]
    columns = [Column(score, above) for above in NAMES.values() for score in scores]
    held_out = any(group.validation for group in groups)
    columns = [Column("accuracy", "held-out images")] * held_out + columns
    best = best_by_validation(groups)
    rows = []
    for group in by_buffer(groups):
        cells = [_name(group, groups), Cell(str(len(group.results)))]
        if held_out:
            found = estimate(group.validation) if group.validation else Cell("")
            cells.append(replace(found, note=BEST if group in best else ""))
        for name in SCENARIOS:
            cells += [estimate(group.final_accuracy[name]), adjusted_forgetting(group, name)]
            cells += [_gain(group, name)] if "gain" in scores else []
        rows.append(Row(group, tuple(cells), under_buffer(group)))
    told = MEASURES + (GAIN.format(against=measured_against(groups)) if "gain" in scores else "")
    return Sheet("Results", (_NAME, Column("runs"), *columns), tuple(rows), told + (HELD_OUT if held_out else ""))


def _gains_sheet(found: Sequence[Evidence], groups: Sequence[Series]) -> Sheet:
    tested = sum(not math.isnan(one.student) for one in found)
    intervals = [Column(heading, "95 % interval") for heading in ("Welch", "bootstrap")]
    tests = [Column(heading, "p") for heading in ("Student", "Welch", "paired", "Holm")]
    columns = (Column("scenario", numeric=False), Column("gain"), *intervals, *tests)
    rows = []
    for one in found:
        cells = (
            Cell(NAMES[one.scenario]),
            gained(one.points),
            Cell(minus(interval(one.welch_interval))),
            Cell(minus(interval(one.bootstrap_interval))),
            *map(Cell, map(bare_p, (one.student, one.welch))),
            Cell(bare_p(one.paired), note=f"({one.pairs})" if bare_p(one.paired) else ""),
            Cell(bare_p(one.holm), strong=one.holm < SIGNIFICANT),
        )
        rows.append(Row(one.runs, (_name(one.runs, groups), *cells), under_buffer(one.runs)))
    return Sheet("Gains", (_NAME, *columns), tuple(rows), TESTS.format(count=tested, against=measured_against(groups)))


_NAME = Column("method", numeric=False)


def _name(group: Series, groups: Sequence[Series]) -> Cell:
    return Cell(group.label, note=note(group, groups))


def _gain(group: Series, name: str) -> Cell:
    if not group.gain:
        return Cell("")
    gain = group.gain[name]
    return gained(gain.points, strong=gain.p_value < SIGNIFICANT)


def _gains_in_words(found: Sequence[Evidence]) -> Iterator[str]:
    for name in SCENARIOS:
        gains = [one for one in found if one.scenario == name]
        if gains:
            better = sum(one.points > 0 for one in gains)
            significant = sum(one.points > 0 and one.holm < SIGNIFICANT for one in gains)
            how = f", significantly (p < {SIGNIFICANT} after Holm's correction) in {significant}" if better else ""
            yield f"{NAMES[name].capitalize()}: a regularizer raises accuracy in {better} of {_count_rows(gains)}{how}."


def _count_rows(rows: Sequence[object]) -> str:
    return "1 row" if len(rows) == 1 else f"{len(rows)} rows"


def _facts(groups: Sequence[Series]) -> Iterator[tuple[str, str]]:
    runs = [run for group in groups for run in group.results]

    def distinct(values: Iterable[object]) -> str:
        return ", ".join(sorted({str(value) for value in values if value is not None}))

    yield "Runs", f"{len(runs)} in {_count_rows(groups)}, seeds {distinct(_seeds(group) for group in groups)}"
    for heading, value in {
        "Hardware": distinct(run.environment.get("hardware") for run in runs),
        "Precision": distinct(run.settings.get("precision") for run in runs),
        "Shared settings": ", ".join(_shared_settings(groups)),
        "Software": distinct(
            f"{name} {run.environment[name]}" for run in runs for name in ("cler", "torch") if name in run.environment
        ),
    }.items():
        if value:
            yield heading, value
    yield "Time", time_taken(runs)


def _shared_settings(groups: Sequence[Series]) -> Iterator[str]:
    """Settings that all rows have in common and no table shows, where they are not the default."""
    defaults = default_settings(groups[0].settings)
    for name, value in groups[0].settings.items():
        told = name not in SHOWN_ANYWAY and (name not in defaults or value != defaults[name])
        if told and all(one.settings.get(name) == value for one in groups):
            yield f"{name} {value}"


def _seeds(group: Series) -> str:
    first, last = group.seeds[0], group.seeds[-1]
    if last - first == len(group.seeds) - 1 > 0:
        return f"{first}..{last}"
    return ",".join(map(str, group.seeds))
