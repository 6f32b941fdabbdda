"""`cler compare`: finished runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cler.cli.app import AsJson, Folders, Imports, app, read_comparison, show_comparison
from cler.cli.options import command
from cler.config.machine import Machine
from cler.errors import UsageError


@command(app)
def compare(
    folders: Folders = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PARTS",
            help="Measure gains against these runs, such as er-ace or er-ace+jigsaw+ema, instead of against each "
            "method without its regularizer.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as in a report.")] = False,
    until_task: Annotated[
        int | None,
        typer.Option(min=1, help="Compare runs as of the end of this task.", show_default="all"),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw the accuracy after each task, as FILE.png, FILE.pdf or FILE.svg."),
    ] = None,
    imports: Imports = None,
) -> None:
    """Compare finished runs: mean ± std over seeds, and each regularizer's gain over the method without it."""
    if as_json and markdown:
        raise UsageError("--json and --markdown: choose one")
    comparison = read_comparison(folders or [Machine.out], until_task, against)
    if figure:
        from cler.report.figures import accuracy_after_each_task

        accuracy_after_each_task(comparison.groups, figure)
    show_comparison(comparison, as_json, markdown)
