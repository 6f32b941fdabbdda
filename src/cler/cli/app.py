"""What all commands share: the application, options, the two consoles, progress and the table of results."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.measure import Measurement
from rich.table import Table

from cler import __version__
from cler.cli.options import Commands
from cler.config.machine import Machine
from cler.config.schema import settings_of
from cler.errors import UsageError
from cler.report.console import TABLE_WIDTH, Terminal

if TYPE_CHECKING:
    from cler.runs.compare import Comparison

app = typer.Typer(
    help="Online continual learning with CLER (equivariant regularization) and the methods it is compared with.",
    cls=Commands,
    context_settings={"help_option_names": ["--help", "-h"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Terminal()
errors = Terminal(stderr=True)
HERE = MappingProxyType({"workers": "Worker processes on a CPU (default: as many as its cores allow)."})
"""Help of settings that mean less to a command that trains on this machine alone."""
DataDir = Annotated[Path | None, typer.Option(help=settings_of(Machine)["data_dir"].help, show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
OwnSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting that only this method or another part has; can be repeated."
    ),
]
Folders = Annotated[
    list[Path] | None,
    typer.Argument(help="Folders with results (default: runs); subfolders are searched too.", show_default=False),
]
Restart = Annotated[bool, typer.Option("--restart", help="Start stopped runs over; keep finished ones.")]
Redo = Annotated[bool, typer.Option("--redo", help="Train everything again, including finished runs.")]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE", help="A file (mine.py) or module with your own parts; can be repeated."),
]


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"cler {__version__}")
        raise typer.Exit


def show(table: Table) -> None:
    """Print a table of numbers in full; a terminal that is too narrow wraps its lines."""
    needed = Measurement.get(console, console.options.update(max_width=1000), table).minimum
    Terminal(width=max(console.width, TABLE_WIDTH, needed)).print(table)


def say(line: str) -> None:
    """Print a line for people, on stderr, apart from the command's output."""
    errors.say(line)


def read_comparison(folders: list[Path], until_task: int | None = None, against: str | None = None) -> Comparison:
    """The comparison of the runs in these folders; prints a line for each file that was skipped.

    With `until_task`, of those that got as far, as they were then. `against` names what gains are measured against.
    """
    from cler.runs.compare import compare
    from cler.runs.results import find_results

    results, complaints = find_results(folders)
    if until_task is not None:
        results = [cut for run in results if (cut := run.until(until_task))]
    comparison = compare(results, against)
    for line in [*complaints, *comparison.complaints]:
        say(line)
    if not comparison.groups:
        which = "complete run" if until_task is None else f"run that got as far as task {until_task}"
        raise UsageError(f"there is no {which} in " + ", ".join(map(str, folders)))
    return comparison


def show_comparison(comparison: Comparison, as_json: bool, markdown: bool = False) -> None:
    """Print a comparison of runs."""
    from cler.report.terminal import comparison_table, markdown_table
    from cler.tune.selection import tuning_lines

    if as_json:
        print(json.dumps(comparison.to_json(), indent=1))
    elif markdown:
        print(markdown_table(comparison.groups))
    else:
        show(comparison_table(comparison.groups))
        for line in tuning_lines(comparison.groups):
            console.print(line, soft_wrap=True)
