"""`cler compare`: finished runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cler.cli.app import AsJson, Folders, Imports, app, read_comparison, show_comparison
from cler.cli.options import command
from cler.config.machine import Machine
from cler.errors import UsageError

Against = Annotated[
    str | None,
    typer.Option(
        metavar="PARTS",
        help="Measure gains against these runs, such as er-ace or er-ace+jigsaw+ema, instead of against each method "
        "without its regularizer.",
        show_default=False,
    ),
]


@command(app)
def compare(
    folders: Folders = None,
    against: Against = None,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as in a report.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX, as in a report.")] = False,
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
    chosen = [name for name, given in {"json": as_json, "markdown": markdown, "latex": latex}.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in chosen)}: choose one")
    comparison = read_comparison(given_or_usual(folders), until_task, against)
    if figure:
        from cler.report.figures import accuracy_after_each_task

        accuracy_after_each_task(comparison.groups, figure)
    if latex:
        from cler.report.terminal import latex_table

        print(latex_table(comparison.groups))
    else:
        show_comparison(comparison, as_json, markdown)


def given_or_usual(folders: list[Path] | None, *, wait: bool = False) -> list[Path]:
    """The folders to read, by default that of `cler run`; where it is absent, says what to do unless it can wait."""
    folders = folders or [Machine.out]
    if Machine.out in folders and not (wait or Machine.out.exists()):
        raise UsageError(f"no such file or folder: {Machine.out}; train first with `cler run`, or give another folder")
    return folders
