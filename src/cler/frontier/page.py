"""The page of a frontier, as Markdown: every row with its cost, the best of each contest, and what CLER adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cler import stats
from cler.frontier.entries import PICKED_ON, Entry, Frontier
from cler.frontier.published import Contest, Number, sources
from cler.report.escaping import in_markdown
from cler.report.markdown import markdown_sheet, table_lines
from cler.report.numbers import SIGNIFICANT, bare_p, minus, signed
from cler.report.prose import LATER
from cler.report.sheets import Cell, Column, Row, Sheet, estimate
from cler.runs.distinguishing import distinguishing_settings
from cler.runs.series import Estimate, Series, gain

READING = (
    "Accuracy: final average accuracy in %, class-incremental, mean ± standard deviation over the seeds. Averaged over "
    "the stream: the mean, over the tasks as they come, of the accuracy on those seen so far. Forgetting: mean drop of "
    "earlier tasks from their best accuracy, in points. Arithmetic: that of training, per image of the stream, in a "
    "step of the second task, in multiples of what ER takes with ten images from the buffer per step. Published: what "
    "others print for the same method in the same protocol, the highest first. CLER is the jigsaw."
)
GAINS = (
    "What CLER adds to the same method with the same teacher, in points: to the final accuracy, with the p-value of "
    "Student's two-sided t-test and that after Holm's correction for this table, bold where below 0.05; and to the "
    "accuracy averaged over the stream."
)
PICKED = (
    f"Best row: the one with the highest mean over seeds {PICKED_ON[0]} to {PICKED_ON[-1]}, a mean that the choice "
    "flatters. Other seeds: the same row on seeds that did not decide, with their number in parentheses."
)
FRONTS = "The most accurate rows for their arithmetic (accuracy in %, means over all seeds):"


def page(frontier: Frontier, notes: str, figure: str) -> str:
    """The whole page: what a person says first, the tables, the figure, and what a person says after them."""
    first, _, last = notes.partition(f"\n{LATER}\n")
    return "\n\n".join(filter(None, [first.strip(), *_tables(frontier, figure), last.strip()])) + "\n"


def _tables(frontier: Frontier, figure: str) -> Iterator[str]:
    yield "## The best row for each protocol and buffer"
    if frontier.best():
        yield best_table(frontier)
        yield PICKED
    else:
        yield f"No row has all of the seeds {PICKED_ON[0]} to {PICKED_ON[-1]}, which decide."
    yield "## Accuracy against arithmetic"
    yield f"![Accuracy against arithmetic, a panel for each protocol and buffer; the best methods are named]({figure})"
    yield FRONTS
    yield fronts_table(frontier)
    yield "## Every row"
    yield READING
    used = {number.source for number in frontier.numbers if number.contest in frontier.contests}
    yield "\n".join(f"- {name}: {told}" for name, told in sources().items() if name in used)
    for contest in frontier.contests:
        yield markdown_sheet(contest_sheet(frontier, contest))
    yield "## What CLER adds"
    sheet = gains_sheet(frontier)
    yield from _gains_in_words(sheet)
    if sheet.rows:
        yield markdown_sheet(sheet)


def best_table(frontier: Frontier) -> str:
    """The best row of each contest beside the best published number, short enough for a README."""
    lines = [
        ["protocol", "buffer", "best row", "seeds 0–4", "other seeds", "arithmetic", "best published"],
        ["---", "---:", "---", "---:", "---:", "---:", "---"],
    ]
    for entry in frontier.best():
        assert entry.picked_by
        fresh, top = entry.fresh, frontier.best_published(entry.contest)
        told = f"{estimate(Estimate(*stats.mean_std(fresh))).text} ({len(fresh)})" if fresh else "not run"
        numbers = [estimate(entry.picked_by).text, told, f"{entry.arithmetic:.1f} ×"]
        beside = f"{top}, {in_markdown(top.name)}" if top else "–"
        lines.append([*_place(entry, frontier), *numbers, beside])
    return table_lines(lines)


def fronts_table(frontier: Frontier) -> str:
    """What is most accurate at each cost, in each contest from the cheapest on."""
    lines = [["protocol", "buffer", "method", "accuracy", "arithmetic"], ["---", "---:", "---", "---:", "---:"]]
    for contest in frontier.contests:
        for entry in frontier.cheapest(contest):
            lines.append([*_place(entry, frontier), f"{entry.accuracy.mean:.2f}", f"{entry.arithmetic:.1f} ×"])
    return table_lines(lines)


def _place(entry: Entry, frontier: Frontier) -> list[str]:
    """The first cells of a row in a table of several contests: protocol, buffer and name."""
    name = ", ".join(filter(None, [entry.name, _note(entry, frontier.entries)]))
    return [entry.contest.protocol, str(entry.contest.buffer), in_markdown(name)]


def contest_sheet(frontier: Frontier, contest: Contest) -> Sheet:
    """All rows of a contest, the most accurate first, and what was published there and not run."""
    entries = frontier.of(contest)
    picked = set(map(id, frontier.best()))
    rows = [_row(entry, entries, id(entry) in picked) for entry in entries]
    headings = ("seeds", "accuracy", "averaged over the stream", "forgetting", "arithmetic", "published")
    columns = (Column("method", numeric=False), *map(Column, headings))
    missing = ", ".join(f"{number.name} {number} ({number.source})" for number in frontier.not_run(contest))
    note = f"Published and not run here: {in_markdown(missing)}." if missing else ""
    return Sheet(str(contest).capitalize(), columns, tuple(rows), note)


def _note(entry: Entry, entries: Sequence[Entry]) -> str:
    """What distinguishes a row from others in its contest that have the same parts."""
    beside = [one.row for one in entries if one.contest == entry.contest and one.row.label == entry.row.label]
    return distinguishing_settings(entry.row, beside)


def _row(entry: Entry, entries: Sequence[Entry], picked: bool) -> Row:
    note = ", ".join(filter(None, [_note(entry, entries), "picked on seeds 0–4" if picked else ""]))
    metrics = entry.row.metrics
    cells = [
        Cell(entry.name, note=note, strong=picked),
        Cell(str(len(entry.row.results))),
        replace(estimate(entry.accuracy), strong=picked),
        estimate(metrics["incremental_accuracy"]["class_il"]),
        estimate(metrics["forgetting"]["class_il"]),
        Cell(f"{entry.arithmetic:.1f} ×"),
        _published(entry.published),
    ]
    return Row(entry.row, tuple(cells))


def _published(numbers: Sequence[Number]) -> Cell:
    note = f"({', '.join(number.source for number in numbers)})" if numbers else ""
    return Cell(", ".join(map(str, numbers)), note=note)


def gains_sheet(frontier: Frontier) -> Sheet:
    """What CLER adds to each row that has a twin without it, also where it adds nothing."""
    known = [entry for contest in frontier.contests for entry in frontier.of(contest) if entry.row.twin]
    corrected = stats.holm([entry.row.gain["class_il"].p_value for entry in known])
    rows = [_gain(entry, holm, _note(entry, known)) for entry, holm in zip(known, corrected, strict=True)]
    headings = ("buffer", "alone", "+ CLER", "gain", "p", "Holm", "averaged over the stream", "p (averaged)")
    columns = (Column("method", numeric=False), Column("protocol"), *map(Column, headings))
    return Sheet("Gains of CLER", columns, tuple(rows), GAINS)


def _gain(entry: Entry, holm: float, note: str) -> Row:
    twin, final = entry.row.twin, entry.row.gain["class_il"]
    assert twin is not None
    stream = gain(*(_incremental(one) for one in (twin, entry.row)))
    cells = [
        Cell(twin.label, note=note),
        Cell(entry.contest.protocol),
        Cell(str(entry.contest.buffer)),
        estimate(twin.final_accuracy["class_il"]),
        estimate(entry.accuracy),
        Cell(minus(signed(final.points, 2)), strong=holm < SIGNIFICANT),
        Cell(bare_p(final.p_value)),
        Cell(bare_p(holm), strong=holm < SIGNIFICANT),
        Cell(minus(signed(stream.points, 2))),
        Cell(bare_p(stream.p_value)),
    ]
    return Row(entry.row, tuple(cells))


def _incremental(row: Series) -> list[float]:
    return [run.metrics["incremental_accuracy"]["class_il"] for run in row.results]


def _gains_in_words(sheet: Sheet) -> Iterator[str]:
    if not sheet.rows:
        yield "For no row with CLER is there one without it."
        return
    significant = [row for row in sheet.rows if row.cells[7].strong]
    others = [row for row in sheet.rows if not row.cells[7].strong]
    yield (
        f"CLER changes the final accuracy significantly (after Holm's correction) in {len(significant)} of "
        f"{len(sheet.rows)} pairs."
    )
    if others:
        named = [
            f"{in_markdown(row.cells[0].text)} ({row.cells[1].text}, buffer {row.cells[2].text})" for row in others
        ]
        yield f"Not significantly: {', '.join(named)}."
