"""An analysis of trained networks as a figure, a table, Markdown, JSON, and sentences beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cler import stats
from cler.config.making import make_settings
from cler.config.settings import Settings
from cler.files import without_non_finite
from cler.paper.analysis import Analysis, Measure, Panel, Subject, Tested, difference, of_each_buffer, tested
from cler.report.escaping import in_markdown
from cler.report.figures import COLORS, INK, MARKERS, draw_curve, finish_panel, new_figure, write_figure
from cler.report.numbers import SIGNIFICANT, count_runs, format_p, minus

ABREAST = 3
"""Panels in a row of a figure; more would be too small to read."""
MOST_MARKS = 20
"""Markers on a curve; more would hide it."""
VERDICTS = {"holds": "It holds:", "contradicted": "The opposite:", "undecided": "No significant difference:"}
SURE = "*"
FOOTNOTE = "Mean ± std over runs. p: Student's t-test of the difference from the first column."


def analysis_figure(analysis: Analysis, subjects: Sequence[Subject], path: Path) -> None:
    """Write a PNG with the panels of an analysis; those of each buffer size begin a new row."""
    rows = of_each_buffer(subjects)
    columns = min(ABREAST, len(analysis.panels))
    lines = math.ceil(len(analysis.panels) / columns)
    figure = new_figure(1.2 + 3.1 * columns, 1.2 + 2.6 * lines * len(rows))
    grid = figure.subplots(lines * len(rows), columns, squeeze=False)
    for place, row in enumerate(rows):
        axes = grid[place * lines : (place + 1) * lines].flat
        buffer = f", buffer {row[0].settings.buffer}" if len(rows) > 1 else ""
        for axis, panel in zip(axes, analysis.panels, strict=False):
            _draw(axis, panel, row)
            finish_panel(axis, panel.title + buffer, panel.across)
            if axis.get_ylim()[0] < 0 < axis.get_ylim()[1]:
                axis.axhline(0, color=INK, linewidth=0.8, zorder=0)
            axis.set_ylabel(panel.up, fontsize=9, color=INK)
        for axis in axes[len(analysis.panels) :]:
            axis.remove()
    write_figure(figure, grid[0][0], path, analysis.title)


def _draw(axis: Any, panel: Panel, subjects: Sequence[Subject]) -> None:
    for subject, color, marker in zip(subjects, COLORS, MARKERS, strict=False):
        curves = zip(*(panel.curve(findings) for findings in subject.runs.values()), strict=False)  # some were longer
        means, deviations = zip(*(stats.mean_std(values) for values in curves), strict=True)
        places = range(panel.first, panel.first + len(means))
        style = {"color": color, "marker": "" if len(means) > MOST_MARKS else marker, "label": subject.label}
        draw_curve(axis, places, means, deviations, style)


def analysis_table(analysis: Analysis, subjects: Sequence[Subject]) -> Table:
    """A table for the terminal: a row for each measure, a column for each subject."""
    analysis = analysis.found_in(subjects)
    rows = of_each_buffer(subjects)
    table = Table(
        title=analysis.title,
        caption=f"{FOOTNOTE} {analysis.note}",
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
    )
    table.add_column("")
    for subject in rows[0]:
        table.add_column(f"{subject.label}\n{count_runs(subject.runs)}", justify="right")
    for row in rows:
        if len(rows) > 1:
            table.add_section()
            table.add_row(Text(f"buffer {row[0].settings.buffer}", style="bold"))
        for measure in analysis.measures:
            table.add_row(measure.name, *(_cell(measure, subject, row[0]) for subject in row))
    return table


def _cell(measure: Measure, subject: Subject, alone: Subject) -> str:
    mean, std = stats.mean_std(subject.values(measure))
    text = minus(f"{mean:.{measure.digits}f}") + ("" if std != std else f" ± {std:.{measure.digits}f}")
    p = "" if subject is alone else format_p(difference(measure, subject, alone).p_value)
    return f"{text}\n{p}" if p else text


def analysis_markdown(analysis: Analysis, subjects: Sequence[Subject], picture: str) -> str:
    """A section of Markdown: the figure, what the paper says about it, and the table of measures."""
    sentences = "\n".join(f"- {in_markdown(each)}" for each in analysis_sentences(analysis, subjects))
    table = "\n".join(_markdown_rows(analysis.found_in(subjects), subjects))
    picture = f"![{analysis.title}]({picture})"
    return "\n\n".join([f"## {analysis.title}", picture, sentences, table, f"{FOOTNOTE} {analysis.note}"])


def _markdown_rows(analysis: Analysis, subjects: Sequence[Subject]) -> Iterator[str]:
    rows = of_each_buffer(subjects)
    yield "| | " + " | ".join(f"{subject.label}, {count_runs(subject.runs)}" for subject in rows[0]) + " |"
    yield "|---|" + "---:|" * len(rows[0])
    for row in rows:
        if len(rows) > 1:
            yield f"| **buffer {row[0].settings.buffer}** |" + " |" * len(row)
        for measure in analysis.measures:
            cells = (_cell(measure, subject, row[0]).replace("\n", ", ") for subject in row)
            yield f"| {measure.name} | {' | '.join(cells)} |"


def analysis_sentences(analysis: Analysis, subjects: Sequence[Subject]) -> list[str]:
    """A sentence for each statement of the paper about the figure: by which definitions it holds for our runs."""
    if min(len(subject.runs) for subject in subjects) < 2:
        return ["One run of each is too few to test what the paper says: train more seeds."]
    known = analysis.found_in(subjects)
    found = tested(known, subjects)
    sentences = [*_other_runs(subjects[0].settings), *_statements(found), _sure(found)]
    if absent := len(analysis.measures) - len(known.measures):
        sentences.append(
            f"Left out: {absent} measures that not all of these runs have, because an older version analyzed them "
            "(--redo repeats them) or their tasks are too short."
        )
    return sentences


def _statements(found: Sequence[Tested]) -> Iterator[str]:
    for (who, statement), some in _grouped(found).items():
        names = {verdict: [_definition(one) for one in some if one.verdict == verdict] for verdict in VERDICTS}
        told = [f"{words} {'; '.join(names[verdict])}" for verdict, words in VERDICTS.items() if names[verdict]]
        told = told if len(names["undecided"]) < len(some) else ["No significant difference under any"]
        count = f"holds under {len(names['holds'])} of {len(some)} definitions"
        yield f"{who}: {statement}: {count}. {'. '.join(told)}."


def _grouped(found: Sequence[Tested]) -> dict[tuple[str, str], list[Tested]]:
    """The tests by learner and statement."""
    grouped: dict[tuple[str, str], list[Tested]] = {}
    for one in found:
        grouped.setdefault((_who(one.subject), one.measure.statement), []).append(one)
    return grouped


def _definition(one: Tested) -> str:
    return f"{one.measure.definition or one.measure.name}{SURE if one.holm < SIGNIFICANT else ''}"


def _who(subject: Subject) -> str:
    buffer = f" with buffer {subject.settings.buffer}" if subject.settings.buffer else ""
    return f"{subject.label}{buffer}"


def _sure(found: Sequence[Tested]) -> str:
    """What remains when all tests are taken together."""
    tests = [one for one in found if not math.isnan(one.difference.p_value)]  # as without any spread
    count = sum(one.holm < SIGNIFICANT for one in tests)
    return f"Of these {len(tests)} tests, {count} are significant after Holm's correction, marked by {SURE}."


def _other_runs(settings: Settings) -> Iterator[str]:
    """A sentence where the settings of these runs differ from the paper's."""
    usual = make_settings(method=settings.method, dataset="cifar100")
    names = [name for name in ("dataset", "width") if getattr(settings, name) != getattr(usual, name)]
    if names:
        theirs = ", ".join(f"{name} {getattr(usual, name)}" for name in names)
        yield f"The paper's runs have {theirs}: what it says about them need not hold for these."


def analysis_json(analysis: Analysis, subjects: Sequence[Subject]) -> dict[str, Any]:
    """Plain values for JSON."""
    known = analysis.found_in(subjects)
    return {
        "analysis": analysis.name,
        "learners": [
            {
                "label": subject.label,
                "settings": subject.settings.to_dict(),
                "seeds": list(subject.runs),
                "measures": {measure.name: subject.values(measure) for measure in known.measures},
            }
            for subject in subjects
        ],
        "statements": [
            {
                "learner": _who(one.subject),
                "statement": one.measure.statement,
                "measure": one.measure.name,
                "verdict": one.verdict,
                **without_non_finite({"p_value": one.difference.p_value, "p_holm": one.holm}),
            }
            for one in tested(known, subjects)
        ],
        "paper": analysis_sentences(analysis, subjects),
    }
