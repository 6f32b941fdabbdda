"""Groups of runs as a table for the terminal, as Markdown, and as one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cler.paper.beside import P_VALUES, PROBABILITIES, probabilities
from cler.paper.reproduce import GAIN_TOLERANCE, Line
from cler.paper.tables import BesidePaper, PaperTable
from cler.report.content import make_sections, note
from cler.report.markdown import markdown_sections
from cler.report.numbers import SIGNIFICANT, format_p, plus_minus, signed, tenths
from cler.report.sheets import forgetting
from cler.runs.compare import Estimate, Gain, Group, distinguishing_settings
from cler.runs.results import SCENARIOS

SCORES = ("class-IL FAA", "F*", "gain", "task-IL FAA", "F*", "gain")
FOOTNOTE = (
    "FAA: final average accuracy in %, mean ± std over runs. F*: adjusted forgetting in %. "
    "gain: FAA over the same method without regularizer, in points, with the p-value of a two-sided t-test."
)
PAPER_FOOTNOTE = (
    "Mean ± std of the final average accuracy in %, adjusted forgetting (F*) in brackets. p: of a difference, Welch's "
    "test; of a gain over the method alone, Student's. Gains apart: ours minus the paper's, in points. !: accuracies "
    "more than a point apart, where chance is unlikely (p < 0.01) or cannot be tested; gains more than "
    f"{GAIN_TOLERANCE} points apart, and of CLER those that are not positive."
)


def comparison_table(groups: Sequence[Group]) -> Table:
    """A table for the terminal, narrow: data sets are the title or lines of their own, settings go below the method."""
    datasets = list(dict.fromkeys(group.settings["dataset"] for group in groups))
    table = Table(
        title=escape(datasets[0]) if len(datasets) == 1 else None,
        caption=FOOTNOTE,
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    table.add_column("method")
    for name in ("buffer", "runs", *SCORES):
        # Numbers stay whole: a narrow terminal folds the names instead.
        table.add_column(name.replace(" FAA", "\nFAA"), justify="right", no_wrap=True)
    for dataset in datasets:
        if len(datasets) > 1:
            table.add_section()
            table.add_row(Text(dataset, style="bold"))
        for group in groups:
            if group.settings["dataset"] == dataset:
                table.add_row(_stacked_name(group, groups), str(group.settings["buffer"]), *_numbers(group))
    return table


def markdown_table(groups: Sequence[Group]) -> str:
    """The same as Markdown, as a report has it: a section for each data set."""
    return markdown_sections(make_sections(groups))


def one_sentence(groups: Sequence[Group]) -> str:
    """What the groups of one benchmark show, class-incremental, in plain words: forgetting, replay, regularizers.

    Groups on another data set, or with another number of tasks, than the first are left out.
    """
    if not groups:
        return "There is no complete run to tell about."
    groups = [group for group in groups if _benchmark(group) == _benchmark(groups[0])]
    tasks = groups[0].settings["tasks"]
    clauses = [_clause(group, groups) for group in groups]
    start = f"After {tasks} task{'s' * (tasks != 1)} "
    return start + (", ".join(clauses[:-1]) + ", and " if len(clauses) > 1 else "") + clauses[-1] + "."


def _stacked_name(group: Group, groups: Sequence[Group]) -> Text:
    name = Text(group.label.replace(" + ", "\n+ "))
    detail = note(group, groups)
    return name.append(f"\n{detail}", style="dim") if detail else name


def _numbers(group: Group) -> list[str]:
    """Number of runs, then `SCORES`; gain and p-value in one cell."""
    cells = [str(len(group.runs))]
    for name in SCENARIOS:
        cells += [plus_minus(group.faa[name]), forgetting(group, name).text]
        cells.append(_gain(group.gain[name]) if group.gain else "")
    return cells


def _gain(gain: Gain) -> str:
    return "\n".join(filter(None, [signed(gain.points, 2), format_p(gain.p_value)]))


def _benchmark(group: Group) -> tuple[Any, ...]:
    return group.settings["dataset"], group.settings["tasks"]


def _clause(group: Group, groups: Sequence[Group]) -> str:
    if group.gain:
        return _gain_clause(group, groups)
    first = group is groups[0]
    label = _with_note(group.label, group, groups)
    accuracy = f"{group.faa['class_il'].mean:.1f} %{' accuracy' if first else ''}"
    if group.regularized:
        return f"{label} keeps {accuracy}"
    if group.settings["method"] == "joint":
        return f"{label} training on all tasks at once reaches {accuracy}"
    if group.settings["method"] == "finetune":
        lost = group.adjusted_forgetting["class_il"].mean
        return f"{label} has lost {lost:.1f} % of its best accuracy on earlier tasks and keeps {accuracy}"
    return f"{f'replay ({label})' if group.settings['buffer'] else label} keeps {accuracy}"


def _gain_clause(group: Group, groups: Sequence[Group]) -> str:
    assert group.twin is not None
    gain = group.gain["class_il"]
    name = _with_note(group.regularizer_label, group, groups)
    plain = [one.settings for one in groups if not (one.regularized or one.reference)]
    if plain != [group.twin.settings]:  # else there is only one method it could be said of
        name += f" on {group.twin.label}"
    seeds = _seeds(len(group.runs), len(group.twin.runs))
    if math.isnan(gain.p_value):
        return f"{name} makes a difference of {signed(gain.points, 1)} points ({seeds}: too few to test)"
    evidence = f"({format_p(gain.p_value)}; {seeds})"
    if gain.p_value >= SIGNIFICANT:
        return f"{name} makes a difference of {signed(gain.points, 1)} points that may be chance {evidence}"
    return f"{name} {'adds' if gain.points > 0 else 'costs'} {abs(gain.points):.1f} points {evidence}"


def _with_note(label: str, group: Group, groups: Sequence[Group]) -> str:
    told = distinguishing_settings(group, groups)
    return f"{label} with {told}" if told else label


def _seeds(count: int, twin_count: int) -> str:
    if count != twin_count:
        return f"{count} against {twin_count} seeds"
    return "one seed" if count == 1 else f"{count} seeds"


def paper_table(table: PaperTable, lines: Sequence[Line]) -> Table:
    """A table of the paper for the terminal, ours beside the paper's, of the cells that this version has."""
    told = sorted((line for line in lines if line.cell.available), key=lambda one: SCENARIOS.index(one.scenario))
    if table.name == "significance":
        return _significance_table(table, told)
    headings = ("runs", "ours\n(F*)", "paper\n(F*)", "differ-\nence", "our\ngain", "paper's\ngain", "gains\napart")
    return _by_section(table, told, PAPER_FOOTNOTE, headings, map(_beside_paper, told))


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
    """A row for each line, under the column of the paper's table that it is from."""
    shown = Table(title=table.title, caption=note, caption_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    shown.add_column("method")
    for heading in headings:
        shown.add_column(heading, justify="right", no_wrap=True)
    section = ""
    for line, cells in zip(told, rows, strict=True):
        scenario = f"{line.scenario.replace('_il', '-IL')}, " if len(table.scenarios) > 1 else ""
        if section != f"{scenario}{line.cell.where}":
            section = f"{scenario}{line.cell.where}"
            shown.add_section()
            shown.add_row(Text(section, style="bold"))
        shown.add_row(line.cell.label.replace(" + ", "\n+ "), *cells)
    return shown


def _beside_paper(line: Line) -> list[str]:
    return [
        str(line.runs or ""),
        "–" if line.mean is None else _stacked(line.mean, line.std, line.forgetting),
        _stacked(line.paper.mean, line.paper.std, line.paper.forgetting) if line.paper else "",
        _mark(line.agrees) + _difference(line.beside) if line.beside else "",
        _gain(line.gain) if line.gain else "",
        _gain(line.paper_gain) if line.paper_gain else "",
        "" if line.gain_difference is None else _mark(line.gain_agrees) + signed(line.gain_difference, 2),
    ]


def _mark(agrees: bool | None) -> str:
    return "!" if agrees is False else ""


def _difference(beside: BesidePaper) -> str:
    return _gain(Gain(beside.difference, math.nan if beside.p_value is None else beside.p_value))


def _stacked(mean: float, std: float | None, forgetting: float | None) -> str:
    number = plus_minus(Estimate(mean, math.nan if std is None else std))
    return number if forgetting is None else f"{number}\n({tenths(forgetting)})"
