"""What a report says; the formats only render it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from cler.config.comparing import default_settings
from cler.report.numbers import count_rows, count_runs, duration
from cler.report.prose import Block, split
from cler.report.published import Published
from cler.report.sections import Section, make_sections
from cler.runs.compare import Comparison
from cler.runs.distinguishing import SHOWN_ANYWAY
from cler.runs.results import Result
from cler.runs.scan import Attachments, Unfinished
from cler.runs.series import Series


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
    attachments: Mapping[Path, Attachments] = field(default_factory=dict)
    """What lies beside the results of finished runs, by their folders."""


def make_report(
    comparison: Comparison,
    complaints: Sequence[str] = (),
    *,
    preface: str = "",
    beside: Published | None = None,
    unfinished: Sequence[Unfinished] = (),
    attachments: Mapping[Path, Attachments] = MappingProxyType({}),
) -> Report:
    """The report on a comparison, `beside` published numbers; `complaints` are from reading the results.

    `unfinished` runs and the `attachments` of finished ones are told of in the page.
    """
    groups, beside = comparison.groups, beside or Published()
    sections = make_sections(groups)
    first, last = split(preface)
    datasets = ", ".join(section.title for section in sections)
    about = f"{count_runs([run for group in groups for run in group.results])} on {datasets}"
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
        attachments=attachments,
    )


def readable(text: str) -> str:
    """The string with undecodable bytes of file names written as escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def time_taken(runs: Sequence[Result]) -> str:
    """The device time of runs, for each kind of hardware; those that were trained side by side shared a device."""
    by_hardware: dict[str, list[Result]] = defaultdict(list)
    for run in runs:
        by_hardware[str(run.environment.get("hardware", "other"))].append(run)
    if len(by_hardware) == 1:
        return _time_taken(runs)
    most_used_first = sorted(by_hardware.items(), key=lambda each: -len(each[1]))
    return "; ".join(f"{name}: {_time_taken(some)}" for name, some in most_used_first)


def _time_taken(runs: Sequence[Result]) -> str:
    shares = [run.seconds / run.at_once for run in runs if run.at_once]
    whole = [run.seconds for run in runs if not run.at_once]
    known = f"{duration(sum(shares))} of device time for {count_runs(shares)}"
    most = f"at most {duration(sum(whole))}{'' if shares else ' of device time'}"
    unknown = f"{most} for {count_runs(whole)} (how many runs shared the device was not recorded)"
    return ", and ".join([known] * bool(shares) + [unknown] * bool(whole))


def _facts(groups: Sequence[Series]) -> Iterator[tuple[str, str]]:
    runs = [run for group in groups for run in group.results]

    def distinct(values: Iterable[object]) -> str:
        return ", ".join(sorted({str(value) for value in values if value is not None}))

    seeds = distinct(_seeds(group) for group in groups)
    yield "Runs", f"{len(runs)} in {count_rows(groups)}, {'seed' if seeds.isdecimal() else 'seeds'} {seeds}"
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
