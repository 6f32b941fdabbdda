"""What a report says of the runs on one dataset: their numbers, and the gains with their evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cler.metrics import SCENARIOS
from cler.report.evidence import Evidence, evidence
from cler.report.numbers import SIGNIFICANT, bare_p, count_rows, interval, minus
from cler.report.sheets import NAMES, Cell, Column, Row, Sheet, adjusted_forgetting, estimate, gained
from cler.runs.compare import best_by_validation, measured_against
from cler.runs.distinguishing import distinguishing_settings
from cler.runs.series import Series

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
ALONE = measured_against(())
"""What gains are measured against, in words, unless something else was asked for."""
UNTESTED = "Gain: accuracy minus that of {against}, in points. Intervals and tests take more runs than one of each row."


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


def make_sections(groups: Sequence[Series]) -> tuple[Section, ...]:
    """A section for each dataset."""
    datasets = dict.fromkeys(group.settings["dataset"] for group in groups)
    return tuple(_section(name, [one for one in groups if one.settings["dataset"] == name]) for name in datasets)


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


def _section(dataset: str, groups: Sequence[Series]) -> Section:
    found = evidence(by_buffer(groups))
    return Section(
        title=dataset,
        groups=tuple(groups),
        summary=" ".join(_gains_in_words(found, measured_against(groups))),
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
    tested, against = sum(one.tested for one in found), measured_against(groups)
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
    how = TESTS.format(count=tested, against=against) if tested else UNTESTED.format(against=against)
    return Sheet("Gains", (_NAME, *columns), tuple(rows), how)


_NAME = Column("method", numeric=False)


def _name(group: Series, groups: Sequence[Series]) -> Cell:
    return Cell(group.label, note=note(group, groups))


def _gain(group: Series, name: str) -> Cell:
    if not group.gain:
        return Cell("")
    gain = group.gain[name]
    return gained(gain.points, strong=gain.p_value < SIGNIFICANT)


def _gains_in_words(found: Sequence[Evidence], against: str) -> Iterator[str]:
    what = "a regularizer raises accuracy" if against == ALONE else f"accuracy is higher than that of {against}"
    for name in SCENARIOS:
        gains = [one for one in found if one.scenario == name]
        if gains:
            better = sum(one.points > 0 for one in gains)
            significant = sum(one.points > 0 and one.holm < SIGNIFICANT for one in gains)
            how = f", significantly (p < {SIGNIFICANT} after Holm's correction) in {significant}" if better else ""
            if better and not any(one.tested for one in gains):
                how = ", not tested, which takes more runs"
            yield f"{NAMES[name].capitalize()}: {what} in {better} of {count_rows(gains)}{how}."
