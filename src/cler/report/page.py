"""A report as one HTML page that loads nothing. Its script sorts and filters; without it everything is still there."""

from __future__ import annotations

import base64
import hashlib
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.resources import files
from typing import Any

from cler.config.comparing import of_a_row
from cler.config.labels import title_of
from cler.errors import printable
from cler.files import frozen
from cler.methods import METHODS
from cler.metrics import SCENARIOS
from cler.report import charts
from cler.report.charts import ChartLine
from cler.report.content import Report
from cler.report.details import Detail, details, details_so_far, settings_told
from cler.report.evidence import Evidence
from cler.report.numbers import SIGNIFICANT, minus, signed
from cler.report.prose import pieces
from cler.report.published import DIFFERENCES, LEGEND, MARKS, Published
from cler.report.sections import Section, buffer_size, note
from cler.report.sheets import NAMES, shared_headings
from cler.report.summary import summary
from cler.runs.compare import without_teacher
from cler.runs.scan import Unfinished
from cler.runs.series import Series

FEW = 12
"""Rows of a section up to which what it draws is unfolded from the beginning."""


@dataclass(frozen=True)
class ChartPanel:
    """Charts of a method with and without regularizers, one for each scenario, and their common legend."""

    title: str
    method: str
    charts: tuple[str, ...]
    legend: tuple[ChartLine, ...]


@dataclass(frozen=True)
class Bar:
    """A gain in a forest plot; places are in percent of its width, None where there is nothing to draw."""

    label: str
    method: str
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
class Part:
    """A section as the page shows it."""

    section: Section
    panels: tuple[ChartPanel, ...]
    forests: tuple[Forest, ...]
    unfolded: bool


def page(report: Report, *, live: float | None = None) -> str:
    """The whole report as HTML; with `live`, as it is now, to be loaded again every so many seconds."""
    groups = [group for section in report.sections for group in section.groups]
    script = _text("page.js") + ("" if live is None else _text("live.js").replace("SECONDS", f"{live:g}"))
    colored = charts.colors(groups)
    return _template().render(
        report=report,
        summary=summary(report),
        parts=[_part(section, report.beside, colored) for section in report.sections],
        details=_details(report),
        anchors={group: f"runs-{number}" for number, group in enumerate(groups, 1)},
        methods=_methods(groups, report.unfinished),
        under_way=_under_way(report.unfinished),
        style=_text("page.css"),
        script=script,
        allowed=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        live=live,
        now=datetime.now(UTC).strftime("%H:%M:%S UTC") if live is not None else "",
    )


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined  # takes a while to import

    environment = Environment(
        autoescape=True, finalize=_printable, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {"names": list(NAMES.values()), "zip": zip, "shades": charts.SHADES, "moment": _moment}
    environment.globals |= {"headings": shared_headings, "settings": settings_told, "pieces": pieces}
    environment.globals |= {"marks": MARKS, "legend": LEGEND, "differences": DIFFERENCES, "so_far": details_so_far}
    return environment.from_string(_text("page.html.jinja"))


def _text(name: str) -> str:
    return files("cler.report").joinpath(name).read_text("utf-8").strip("\n")


def _printable(value: Any) -> Any:
    """What a page shows of a value; what has been made harmless before is of another class."""
    return printable(value) if type(value) is str else value


def _methods(groups: Sequence[Series], unfinished: Sequence[Unfinished]) -> dict[str, str]:
    """The methods that there are rows of, and what readers call them."""
    names = [group.settings["method"] for group in groups] + [one.settings["method"] for one in unfinished]
    return {name: title_of(METHODS, name) for name in dict.fromkeys(names)}


def _under_way(unfinished: Sequence[Unfinished]) -> list[tuple[Unfinished, Series, str]]:
    """Runs that are not finished, the row that each belongs to, and what distinguishes it from other such rows."""
    rows: dict[Any, Series] = {}
    for one in unfinished:
        settings = of_a_row(one.settings)
        rows.setdefault(frozen(settings), Series(settings, ()))
    notes = {row: note(row, list(rows.values())) for row in rows.values()}
    own = [rows[frozen(of_a_row(one.settings))] for one in unfinished]
    return [(one, row, notes[row]) for one, row in zip(unfinished, own, strict=True)]


def _moment(time: str) -> str:
    """The time of day of a time as logs write it."""
    try:
        return datetime.fromisoformat(time).astimezone(UTC).strftime("%H:%M:%S")
    except (ValueError, OverflowError):
        return ""


def _details(report: Report) -> dict[Series, list[Detail]]:
    """What there is to see of each row beyond its numbers."""
    found: dict[Series, list[Detail]] = {}
    for section in report.sections:
        tops = {name: charts.highest_accuracy(section.groups, name) for name in SCENARIOS}
        found |= {group: list(details(group, report.attachments, tops)) for group in section.groups}
    return found


def _part(section: Section, beside: Published, colored: Mapping[str, int]) -> Part:
    forests, panels = _forests(section, beside), _panels(section, colored)
    return Part(section, tuple(panels), tuple(forests), len(section.groups) <= FEW)


def _panels(section: Section, colored: Mapping[str, int]) -> list[ChartPanel]:
    tops = {name: charts.top_of_scale(section.groups, name) for name in SCENARIOS}
    panels = []
    for family in _families(section.groups):
        references = _references(family[0], section.groups)
        labels = [_label(group, family) for group in family]
        lines = charts.chart_lines(family, labels, [one for one in references if one not in family], colored)
        title = _joined(*_title(family[0], section.groups))
        drawn = [
            charts.curve_chart(lines, name, top=tops[name], title=f"{title}: {NAMES[name]} accuracy")
            for name in SCENARIOS
        ]
        panels.append(ChartPanel(title, family[0].settings["method"], tuple(drawn), tuple(lines)))
    return panels


def _families(groups: Sequence[Series]) -> list[list[Series]]:
    """Groups to draw in one panel: a method, its regularized twins, and all of these with a teacher.

    References, and regularized groups without the method alone, get a panel only if there is nothing else.
    """
    families: dict[Series, list[Series]] = {}
    for group in groups:
        plain = group.twin or group
        alone = without_teacher(plain, groups) or plain
        families.setdefault(alone.twin or alone, []).append(group)
    found = [sorted(family, key=partial(operator.is_not, plain)) for plain, family in families.items()]
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
    name = group.label.removeprefix(f"{family[0].label} ")
    return _joined(name, note(group, family))


def _joined(name: str, detail: str) -> str:
    return f"{name}, {detail}" if detail else name


def _forests(section: Section, beside: Published) -> list[Forest]:
    forests = []
    for name in SCENARIOS:
        found = [one for one in section.evidence if one.scenario == name]
        published = [beside.gains.get((one.runs, name)) for one in found]
        forests += [_forest(NAMES[name], found, published, section.groups)] if found else []
    return forests


def _forest(
    title: str, found: Sequence[Evidence], published: Sequence[float | None], groups: Sequence[Series]
) -> Forest:
    bounds = [bound for one in found for bound in (one.points, *one.welch_interval)]
    shown = [number for number in (*bounds, *published) if number is not None and not math.isnan(number)]
    ticks = charts.round_ticks(min(0.0, *shown), max(0.0, *shown))

    def place(number: float) -> float:
        return round(100 * (number - ticks[0]) / (ticks[-1] - ticks[0]), 2)

    bars = [
        Bar(
            label=_joined(*_title(one.runs, groups)),
            method=one.runs.settings["method"],
            text=minus(signed(one.points, 2)),
            significant=one.holm < SIGNIFICANT,
            point=place(one.points),
            span=None if math.isnan(one.welch) else (place(one.welch_interval[0]), place(one.welch_interval[1])),
            published=None if other is None else place(other),
        )
        for one, other in zip(found, published, strict=True)
    ]
    return Forest(title, tuple(bars), tuple((minus(f"{tick:g}"), place(tick)) for tick in ticks), place(0))
