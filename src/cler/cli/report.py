"""`cler report`: a report on finished runs, as a page and as documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cler.cli.app import app, console, read_comparison
from cler.cli.options import OnceEach


@app.command(cls=OnceEach)
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of results; sub-folders are searched.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that the report goes to.")] = Path("report"),
    preface: Annotated[
        Path | None,
        typer.Option(
            help="Text of your own to put before the tables: paragraphs, headings (##) and tables in Markdown; what "
            "follows a line of --- comes at the end."
        ),
    ] = None,
) -> None:
    """Report on finished runs: a page to look at, Markdown, LaTeX and CSV, with the paper's numbers beside ours.

    The page, index.html, is one file that needs no network. The paper's numbers are shown for runs with its settings.
    """
    from cler.files import read_text
    from cler.paper.report_section import beside_paper
    from cler.report.content import make_report, readable
    from cler.report.write import write_report

    text = read_text(preface) if preface else ""
    comparison, complaints = read_comparison(folders)
    made = make_report(comparison, complaints, preface=text, beside=beside_paper(comparison.groups))
    for path in write_report(made, out):
        console.print(readable(str(path)), soft_wrap=True)
