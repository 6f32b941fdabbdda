"""Groups of runs as a table for the terminal, as Markdown, and as one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cler.experiments.compare import Estimate, Gain, Group, distinguishing_settings
from cler.experiments.paper import beside_paper
from cler.experiments.results import SETTINGS

SCORES = ("class-IL FAA", "F*", "gain", "task-IL FAA", "F*", "gain")
FOOTNOTE = (
    "FAA: final average accuracy in %, mean ± std over runs. F*: adjusted forgetting in %. "
    "gain: FAA over the same method without regulariser, in points, with the p-value of a two-sided t-test."
)
SIGNIFICANT = 0.05
REFERENCES = ("finetune", "joint")


def comparison_table(groups: Sequence[Group]) -> Table:
    """A table for the terminal, narrow: data sets are the title or lines of their own, settings go below the method."""
    datasets = list(dict.fromkeys(group.settings["dataset"] for group in groups))
    table = Table(
        title=datasets[0] if len(datasets) == 1 else None,
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
                table.add_row(_stacked_name(group, groups), str(group.settings["buffer"]), *_numbers(group, "\n"))
    return table


def markdown_table(groups: Sequence[Group]) -> str:
    """The same as Markdown, with a column for the settings where rows would look the same."""
    notes = [_note(group, groups) for group in groups]
    names = ["method", "data set", *(["settings"] if any(notes) else []), "buffer"]
    lines = [
        [*names, "runs", *SCORES],
        ["---"] * (len(names) - 1) + ["---:"] * (2 + len(SCORES)),
    ]
    for group, note in zip(groups, notes, strict=True):
        settings = [group.label, group.settings["dataset"], *([note] if any(notes) else []), group.settings["buffer"]]
        lines.append([str(cell).replace("|", "\\|") for cell in (*settings, *_numbers(group, ", "))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{FOOTNOTE}\n"


def one_sentence(groups: Sequence[Group]) -> str:
    """What the groups of one benchmark show, class-incremental, in plain words: forgetting, replay, regularisers.

    Groups on another data set, or with another number of tasks, than the first are left out.
    """
    if not groups:
        return "There is no complete run to tell about."
    groups = [group for group in groups if _benchmark(group) == _benchmark(groups[0])]
    tasks = groups[0].settings["tasks"]
    clauses = [_clause(group, groups) for group in groups]
    start = f"After {tasks} task{'s' * (tasks != 1)} "
    return start + (", ".join(clauses[:-1]) + ", and " if len(clauses) > 1 else "") + clauses[-1] + "."


def format_p(p_value: float) -> str:
    """'p < 0.001', 'p = 0.027', 'p = 0.41'; empty for NaN."""
    if math.isnan(p_value):
        return ""
    if p_value < 0.001:
        return "p < 0.001"
    return f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def _stacked_name(group: Group, groups: Sequence[Group]) -> Text:
    name = Text(group.label.replace(" + ", "\n+ "))
    note = _note(group, groups)
    return name.append(f"\n{note}", style="dim") if note else name


def _note(group: Group, groups: Sequence[Group]) -> str:
    return distinguishing_settings(group, groups, shown=("dataset", "buffer"))


def _numbers(group: Group, separator: str) -> list[str]:
    """Number of runs, then `SCORES`; gain and p-value in one cell, with the separator between."""
    cells = [str(len(group.runs))]
    for name in SETTINGS:
        cells += [_plus_minus(group.faa[name]), f"{group.adjusted_forgetting[name].mean:.1f}"]
        cells.append(_gain(group.gain[name], separator) if group.gain else "")
    return cells


def _plus_minus(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f}" + ("" if math.isnan(estimate.std) else f"±{estimate.std:.2f}")


def _gain(gain: Gain, separator: str) -> str:
    return separator.join(filter(None, [_signed(gain.points, 2), format_p(gain.p_value)]))


def _signed(number: float, digits: int) -> str:
    return f"{round(number, digits) + 0.0:+.{digits}f}"  # + 0.0: minus zero is not shown as a loss


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
    plain = [one.settings for one in groups if not one.regularized and one.settings["method"] not in REFERENCES]
    if plain != [group.twin.settings]:  # else there is only one method it could be said of
        name += f" on {group.twin.label}"
    seeds = _seeds(len(group.runs), len(group.twin.runs))
    if math.isnan(gain.p_value):
        return f"{name} makes a difference of {_signed(gain.points, 1)} points ({seeds}: too few to test)"
    evidence = f"({format_p(gain.p_value)}; {seeds})"
    if gain.p_value >= SIGNIFICANT:
        return f"{name} makes a difference of {_signed(gain.points, 1)} points that may be chance {evidence}"
    return f"{name} {'adds' if gain.points > 0 else 'costs'} {abs(gain.points):.1f} points {evidence}"


def _with_note(label: str, group: Group, groups: Sequence[Group]) -> str:
    note = distinguishing_settings(group, groups)
    return f"{label} with {note}" if note else label


def _seeds(count: int, twin_count: int) -> str:
    if count != twin_count:
        return f"{count} against {twin_count} seeds"
    return "one seed" if count == 1 else f"{count} seeds"


def paper_table(groups: Sequence[Group]) -> Table:
    """Final average accuracies beside the paper's, for the groups that the paper has; a mark where they disagree."""
    headings = ("method", "buffer", "setting", "ours", "paper", "difference", "p", "")
    table = Table(title="beside the paper", box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("method", "setting", "") else "right")
    for group in groups:
        note = distinguishing_settings(group, groups, shown=("dataset", "buffer"))
        for name, pair in beside_paper(group).items():
            paper = f"{pair.paper:.2f}" + ("" if pair.paper_std is None else f"±{pair.paper_std:.2f}")
            table.add_row(
                f"{group.label}, {note}" if note else group.label,
                str(group.settings["buffer"]),
                name.replace("_il", "-IL"),
                f"{pair.ours:.2f}±{pair.ours_std:.2f}",
                paper,
                f"{pair.difference:+.2f}",
                "" if pair.p_value is None else format_p(pair.p_value),
                "" if pair.agrees else "!",
            )
    return table
