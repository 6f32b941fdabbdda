"""`cler frontier`: accuracy and the arithmetic that it took, beside what others have published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cler.cli.app import Imports, app, console, read_comparison, say
from cler.cli.options import command
from cler.errors import UsageError
from cler.files import read_text

BETWEEN = ("<!-- frontier -->", "<!-- /frontier -->")
"""Lines of a file between which the short table stands."""

COUNTS = "arithmetic.json"
"""The name of a file with counts that is used where it lies in a folder with results."""


@command(app)
def frontier(
    folders: Annotated[list[Path], typer.Argument(help="Folders with results; subfolders are searched too.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="File for the page, in Markdown; its figure goes beside it.")
    ] = Path("frontier.md"),
    notes: Annotated[
        Path | None,
        typer.Option(help="Your own Markdown to put before the tables; what follows a line of --- goes after them."),
    ] = None,
    arithmetic: Annotated[
        Path | None,
        typer.Option(
            help="JSON file to keep the counts in, so that they are not counted again.",
            show_default=f"{COUNTS} in one of the folders, if it is there",
        ),
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help=f"Also put the short table into this file, between {' and '.join(BETWEEN)}.")
    ] = None,
    imports: Imports = None,
) -> None:
    """Compare online learners on Seq. CIFAR-100: accuracy, arithmetic, and published results.

    It uses the results that were trained like the published ones: ten tasks, one pass, batches of ten images from the
    stream, none held out, ResNet-18 with 64 filters, the class order of the protocol. Arithmetic is counted on the CPU.
    """
    from cler.files import write_text, writing
    from cler.frontier.arithmetic import Counts
    from cler.frontier.entries import make_frontier
    from cler.frontier.figure import draw_frontier
    from cler.frontier.page import best_table, page
    from cler.paper.frontier_numbers import in_the_paper
    from cler.runs.folders import check_writable

    said = read_text(notes) if notes else "# Accuracy and arithmetic"
    head, tail = around_table(into) if into else ("", "")
    if out.exists() and not out.is_file():
        what = "Is a directory" if out.is_dir() else "is not a plain file"
        raise UsageError(f"{out}: {what}; give a file for the page", "out")
    check_writable(out.parent)
    arithmetic = arithmetic or next((folder / COUNTS for folder in folders if (folder / COUNTS).is_file()), None)
    found = make_frontier(read_comparison(folders).groups, Counts(arithmetic, say), in_the_paper)
    if not found.entries:
        raise UsageError("none of these runs is comparable with what is published: see `cler frontier --help`")
    figure = out.with_suffix(".png")
    draw_frontier(found, figure)
    with writing(out):
        write_text(out, page(found, said, figure.name))
    if into:
        with writing(into):
            write_text(into, f"{head}{best_table(found)}{tail}")
    for path in (out, figure, *([into] if into else [])):
        console.print(str(path), soft_wrap=True)


def around_table(path: Path) -> tuple[str, str]:
    """What a file has before the place of the table, and after it."""
    first, last = BETWEEN
    head, begin, rest = read_text(path).partition(f"{first}\n")
    _, end, tail = rest.partition(last)
    if not begin or not end:
        raise UsageError(f"{path} needs the lines {first} and {last}; the table goes between them", "into")
    return head + begin, f"\n{end}{tail}"
