"""A report as one HTML page that loads nothing: no network, no script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from typing import Any

from cler.errors import printable
from cler.report import charts
from cler.report.charts import ChartLine
from cler.report.content import (
    LEGEND,
    MARKS,
    Glance,
    Published,
    Report,
    Section,
    buffer_size,
    note,
    possessive,
    time_taken,
)
from cler.report.evidence import Evidence
from cler.report.numbers import SIGNIFICANT, minus, signed
from cler.report.prose import pieces
from cler.report.sheets import NAMES, Row, Sheet
from cler.runs.compare import Series
from cler.runs.results import SCENARIOS


@dataclass(frozen=True)
class ChartPanel:
    """Charts of a method with and without regularizers, one for each scenario, and their common legend."""

    title: str
    charts: tuple[str, ...]
    legend: tuple[ChartLine, ...]


@dataclass(frozen=True)
class Bar:
    """A gain in a forest plot; places are in percent of its width, None where there is nothing to draw."""

    label: str
    text: str
    significant: bool
    point: float
    span: tuple[float, float] | None
    published: float | None


@dataclass(frozen=True)
class Forest:
    """The gains in one scenario with their intervals, and the ticks of the axis."""

    title: str
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[str, float], ...]
    zero: float

    @property
    def has_published(self) -> bool:
        """Whether any of the gains has a published one beside it."""
        return any(bar.published is not None for bar in self.bars)


@dataclass(frozen=True)
class HeatMaps:
    """The accuracy matrices of one group of runs, drawn: one for each scenario."""

    label: str
    note: str
    maps: tuple[str, ...]


def page(report: Report) -> str:
    """The whole report as HTML."""
    from jinja2 import Environment, StrictUndefined  # takes a while to import

    environment = Environment(
        autoescape=True, finalize=_printable, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {"names": list(NAMES.values()), "zip": zip}
    environment.globals |= {"headings": _headings, "blocks": _blocks, "settings": _settings, "pieces": pieces}
    environment.globals |= {"marks": MARKS, "legend": LEGEND, "possessive": possessive}
    template = environment.from_string(files("cler.report").joinpath("page.html.jinja").read_text("utf-8"))
    forests = [forest for section in report.sections for forest in _forests(section, report.beside)]
    colored = charts.colors(group for section in report.sections for group in section.groups)
    drawn = [(section, _panels(section, colored), *_heat_maps(section)) for section in report.sections]
    return template.render(report=report, forests=forests, drawn=drawn)


def _printable(value: Any) -> Any:
    """What a page shows of a value; what has been made harmless before is of another class."""
    return printable(value) if type(value) is str else value


def _headings(sheet: Sheet | Glance) -> list[tuple[str, int]]:
    """The headings that columns share, and how many columns share each; empty where none do."""
    if not any(column.above for column in sheet.columns):
        return []
    return [(above, len(list(shared))) for above, shared in groupby(sheet.columns, key=lambda column: column.above)]


def _blocks(sheet: Sheet) -> list[tuple[str, list[Row]]]:
    """The headings that rows share, and the rows under each."""
    return [(heading, list(rows)) for heading, rows in groupby(sheet.rows, key=lambda row: row.heading)]


def _settings(group: Series) -> list[tuple[str, str]]:
    """The settings of runs, their seeds, accuracies and time, to be shown under their row."""
    shown = {name.replace("_", " "): value for name, value in group.settings.items() if value is not None}
    seeds = ", ".join(map(str, group.seeds))
    accuracies = {
        f"{NAMES[name]} by seed": ", ".join(f"{accuracy:.2f}" for accuracy in group.accuracies(name))
        for name in SCENARIOS
    }
    rows = shown | {"seeds": seeds} | accuracies | {"time": time_taken(group.results)}
    return [(name, str(value)) for name, value in rows.items()]


def _panels(section: Section, colored: Mapping[str, int]) -> list[ChartPanel]:
    tops = {name: charts.top_of_scale(section.groups, name) for name in SCENARIOS}
    panels = []
    for family in _families(section.groups):
        references = _references(family[0], section.groups)
        labels = [_label(group, family) for group in family]
        lines = charts.chart_lines(family, labels, [one for one in references if one not in family], colored)
        title = _joined(*_title(family[0], section.groups))
        drawn = [
            charts.curve_chart(lines, name, top=tops[name], title=f"{title}: {NAMES[name]} accuracy after each task")
            for name in SCENARIOS
        ]
        panels.append(ChartPanel(title, tuple(drawn), tuple(lines)))
    return panels


def _families(groups: Sequence[Series]) -> list[list[Series]]:
    """Groups to draw in one panel: a method and its regularized twins.

    References, and regularized groups without the method alone, get a panel only if there is nothing else.
    """
    families: dict[Series, list[Series]] = {}
    for group in groups:
        families.setdefault(group.twin or group, []).append(group)
    found = list(families.values())
    return [one for one in found if len(one) > 1 or not (one[0].reference or one[0].regularized)] or found


def _references(group: Series, groups: Sequence[Series]) -> list[Series]:
    """One group of each method that is a bound for others, with the same numbers of tasks and epochs."""
    alike = [
        one
        for one in groups
        if one.reference and all(one.settings[key] == group.settings[key] for key in ("tasks", "epochs"))
    ]
    return list({one.settings["method"]: one for one in reversed(alike)}.values())[::-1]


def _title(group: Series, groups: Sequence[Series]) -> tuple[str, str]:
    """The method, and the settings that distinguish the group from others."""
    size = f"buffer {buffer_size(group)}" if group.settings["buffer"] else ""
    return group.label, ", ".join(filter(None, [size, note(group, groups)]))


def _label(group: Series, family: Sequence[Series]) -> str:
    name = f"+ {group.regularizer_label}" if group.twin else group.label
    return _joined(name, note(group, family))


def _joined(name: str, detail: str) -> str:
    return f"{name}, {detail}" if detail else name


def _forests(section: Section, beside: Published) -> list[Forest]:
    forests = []
    for name in SCENARIOS:
        found = [one for one in section.evidence if one.scenario == name]
        published = [beside.gains.get((one.runs, name)) for one in found]
        title = f"{section.title}, {NAMES[name]}"
        forests += [_forest(title, found, published, section.groups)] if found else []
    return forests


def _forest(
    title: str, found: Sequence[Evidence], published: Sequence[float | None], groups: Sequence[Series]
) -> Forest:
    bounds = [bound for one in found for bound in (one.points, *one.welch_interval)]
    shown = [number for number in (*bounds, *published) if number is not None and not math.isnan(number)]
    ticks = _ticks([0.0, *shown])

    def place(number: float) -> float:
        return round(100 * (number - ticks[0]) / (ticks[-1] - ticks[0]), 2)

    bars = [
        Bar(
            label=_joined(*_title(one.runs, groups)),
            text=minus(signed(one.points, 2)),
            significant=one.holm < SIGNIFICANT,
            point=place(one.points),
            span=None if math.isnan(one.welch) else (place(one.welch_interval[0]), place(one.welch_interval[1])),
            published=None if other is None else place(other),
        )
        for one, other in zip(found, published, strict=True)
    ]
    return Forest(title, tuple(bars), tuple((minus(f"{tick:g}"), place(tick)) for tick in ticks), place(0))


def _ticks(shown: Sequence[float]) -> list[float]:
    """At most eight round numbers, from below everything that is shown to above it."""
    low, high = min(shown), max(shown)
    step = next((step for step in (0.5, 1, 2, 5, 10, 20) if high - low <= 6 * step), 50)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * index for index in range(first, max(last, first + 1) + 1)]


def _heat_maps(section: Section) -> tuple[list[HeatMaps], list[float]]:
    tops = {name: charts.highest_accuracy(section.groups, name) for name in SCENARIOS}
    found = []
    for group in section.groups:
        maps = [
            charts.heat_map(group, name, top=tops[name], title=f"{group.label}: {NAMES[name]} accuracy matrix")
            for name in SCENARIOS
        ]
        found.append(HeatMaps(*_title(group, section.groups), tuple(maps)))
    return found, list(tops.values())
