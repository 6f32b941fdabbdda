"""Runs compared: as a table for the terminal, as Markdown, and as one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cler.config.registry import METHODS
from cler.metrics import SCENARIOS
from cler.report.console import TABLE_WIDTH
from cler.report.latex import latex_sections
from cler.report.markdown import markdown_sections
from cler.report.numbers import SIGNIFICANT, format_p, plus_minus, signed
from cler.report.sections import BEST, buffer_size, make_sections, note
from cler.report.sheets import adjusted_forgetting
from cler.runs.compare import best_by_validation, measured_against
from cler.runs.distinguishing import distinguishing_settings
from cler.runs.series import Gain, Series

FOOTNOTE = (
    "accuracy: final average accuracy in %, mean ± std over runs. adj. forg.: adjusted forgetting, how much of their "
    "best accuracy earlier tasks had lost at the end, in %."
)
NAME_WIDTH = len("+ CLER (jigsaw)")
"""Columns of the terminal that names have at least."""
GAIN_FOOTNOTE = " gain: accuracy minus that of {against}, in points, with the p-value of Student's two-sided t-test."
HELD_OUT_FOOTNOTE = " held-out: class-incremental accuracy on held-out training images in %."
BEST_FOOTNOTE = f" {BEST}: the settings that do best there for this method."


def comparison_table(groups: Sequence[Series]) -> Table:
    """A table for the terminal, narrow: a single dataset is the title, several are headings between the rows."""
    datasets = list(dict.fromkeys(group.settings["dataset"] for group in groups))
    table = Table(
        title=Text(datasets[0]) if len(datasets) == 1 else None,
        caption="".join(_footnotes(groups)),
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    table.add_column("method", min_width=NAME_WIDTH)
    columns = _columns(groups)
    if NAME_WIDTH + sum(1 + _width(*column, groups) for column in columns) > TABLE_WIDTH:
        columns[0] = ("buf-\nfer", columns[0][1])
    for heading, cell in columns:
        # Numbers stay whole: a narrow terminal folds the names instead.
        table.add_column(heading, justify="right", no_wrap=True, min_width=_width(heading, cell, groups))
    for dataset in datasets:
        if len(datasets) > 1:
            table.add_section()
            table.add_row(Text(dataset, style="bold"))
        for group in groups:
            if group.settings["dataset"] == dataset:
                table.add_row(_stacked_name(group, groups), *(cell(group) for _, cell in columns))
    return table


def _columns(groups: Sequence[Series]) -> list[tuple[str, Callable[[Series], str]]]:
    """The numbers of a row, each with its heading: those that some of the groups have."""
    columns: list[tuple[str, Callable[[Series], str]]] = [
        ("buffer", buffer_size),
        ("runs", lambda group: str(len(group.results))),
    ]
    if any(group.validation for group in groups):
        columns.append(("held-\nout", lambda group: plus_minus(group.validation) if group.validation else ""))
    for name, kind in zip(SCENARIOS, ("class-inc.", "task-inc."), strict=True):
        columns.append((f"{kind}\naccuracy", partial(_accuracy, name)))
        columns.append(("adj.\nforg.", partial(_forgetting, name)))
        if any(group.gain for group in groups):
            columns.append(("gain", partial(_gain, name)))
    return columns


def _width(heading: str, cell: Callable[[Series], str], groups: Sequence[Series]) -> int:
    return max(len(line) for text in (heading, *map(cell, groups)) for line in text.splitlines())


def _accuracy(name: str, group: Series) -> str:
    return plus_minus(group.final_accuracy[name])


def _forgetting(name: str, group: Series) -> str:
    return adjusted_forgetting(group, name).text


def _gain(name: str, group: Series) -> str:
    return gain_text(group.gain[name]) if group.gain else ""


def _footnotes(groups: Sequence[Series]) -> Iterator[str]:
    """What a reader of the table has to know."""
    yield _as_of(groups)
    yield FOOTNOTE
    if any(group.gain for group in groups):
        yield GAIN_FOOTNOTE.format(against=measured_against(groups))
    if any(group.validation for group in groups):
        yield HELD_OUT_FOOTNOTE
    if best_by_validation(groups):
        yield BEST_FOOTNOTE


def _as_of(groups: Sequence[Series]) -> str:
    """After which task runs are compared that are shown as they were before their end; empty where none are."""
    merged = {name for name, method in METHODS.items() if method.merged}
    one_by_one = [group for group in groups if group.settings["method"] not in merged]
    learned = {(len(group.results[0].accuracy["class_il"]), group.tasks) for group in one_by_one}
    early = [f"task {task} of {tasks}" for task, tasks in sorted(learned) if task < tasks]
    return f"All numbers are as of the end of {', '.join(early)}. " if early else ""


def markdown_table(groups: Sequence[Series]) -> str:
    """The tables of a report as Markdown: a section for each dataset."""
    return markdown_sections(make_sections(groups))


def latex_table(groups: Sequence[Series]) -> str:
    """The same tables as LaTeX."""
    return latex_sections(make_sections(groups))


def one_sentence(groups: Sequence[Series]) -> str:
    """What runs on one benchmark show, class-incremental, in plain words: forgetting, replay, regularizers.

    Groups that differ from the first in dataset or number of tasks are left out.
    """
    if not groups:
        return "No run is complete yet."
    groups = [group for group in groups if _benchmark(group) == _benchmark(groups[0])]
    tasks = groups[0].tasks
    clauses = [_clause(group, groups) for group in groups]
    start = f"After {tasks} task{'s' * (tasks != 1)} "
    return start + (", ".join(clauses[:-1]) + ", and " if len(clauses) > 1 else "") + clauses[-1] + "."


def _stacked_name(group: Series, groups: Sequence[Series]) -> Text:
    name = Text(group.label.replace(" + ", "\n+ "))
    detail = note(group, groups)
    if group in best_by_validation(groups):
        name.append(f" {BEST}")
    return name.append(f"\n{detail}", style="dim") if detail else name


def gain_text(gain: Gain) -> str:
    """A gain with its p-value below it: '+2.30' and 'p < 0.001'; no p-value where there is none."""
    return "\n".join(filter(None, [signed(gain.points, 2), format_p(gain.p_value)]))


def _benchmark(group: Series) -> tuple[Any, ...]:
    return group.settings["dataset"], group.settings["tasks"]


def _clause(group: Series, groups: Sequence[Series]) -> str:
    if group.gain:
        return _gain_clause(group, groups)
    first = group is groups[0]
    label = _with_note(group.label, group, groups)
    accuracy = f"{group.final_accuracy['class_il'].mean:.1f} %{' accuracy' if first else ''}"
    if group.regularized:
        return f"{label} keeps {accuracy}"
    if group.settings["method"] == "joint":
        return f"{label} training on all tasks at once reaches {accuracy}"
    if group.settings["method"] == "finetune":
        lost = group.adjusted_forgetting["class_il"].mean
        return f"{label} has lost {lost:.1f} % of its best accuracy on earlier tasks and keeps {accuracy}"
    return f"{f'replay ({label})' if group.settings['buffer'] else label} keeps {accuracy}"


def _gain_clause(group: Series, groups: Sequence[Series]) -> str:
    assert group.twin is not None
    gain = group.gain["class_il"]
    name = _with_note(group.regularizer_label, group, groups)
    plain = [one.settings for one in groups if not (one.regularized or one.reference)]
    if plain != [group.twin.settings]:  # where there is only one method, it need not be named
        name += f" on {group.twin.label}"
    seeds = _seeds(len(group.results), len(group.twin.results))
    if math.isnan(gain.p_value):
        return f"{name} changes accuracy by {signed(gain.points, 1)} points ({seeds}: too few to test)"
    evidence = f"({format_p(gain.p_value)}; {seeds})"
    if gain.p_value >= SIGNIFICANT:
        return f"{name} changes accuracy by {signed(gain.points, 1)} points, which is not significant {evidence}"
    return f"{name} {'adds' if gain.points > 0 else 'costs'} {abs(gain.points):.1f} points {evidence}"


def _with_note(label: str, group: Series, groups: Sequence[Series]) -> str:
    told = distinguishing_settings(group, groups)
    return f"{label} with {told}" if told else label


def _seeds(count: int, twin_count: int) -> str:
    if count != twin_count:
        return f"{count} against {twin_count} seeds"
    return "one seed" if count == 1 else f"{count} seeds"
