"""`cler data`: datasets."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cler.cli.app import AsJson, DataDir, Imports, app, console, errors
from cler.cli.options import Commands, command

if TYPE_CHECKING:
    from cler.data.images import Status

data_app = typer.Typer(cls=Commands, help="Datasets: list them, download them, check them.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@command(data_app, name="list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False, imports: Imports = None) -> None:
    """List the datasets, and say which are on this machine."""
    from cler import data

    states = {name: data.check(name, data_dir) for name in data.names()}
    if as_json:
        print(json.dumps({n: {"state": s.state, "reason": s.reason, "path": str(s.path)} for n, s in states.items()}))
        return
    table = Table("dataset", "state", "what it is", box=None, pad_edge=False)
    for name, status in states.items():
        table.add_row(name, status.state, data.describe(name))
    for form, about in data.forms().items():
        table.add_row(form, "your own", about)
    console.print(table)


@command(data_app, name="check")
def data_check(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets (default: all).", show_default=False)] = None,
    data_dir: DataDir = None,
    imports: Imports = None,
) -> None:
    """Check that datasets are complete and unaltered.

    The exit code is 1 if one is damaged, or if one that you name is missing.
    """
    from cler import data

    damaged = False
    for name in names or data.names():
        status = data.check(name, data_dir)
        _print(name, status)
        damaged |= status.state == "damaged" or (bool(names) and status.state == "missing")
    if damaged:
        raise typer.Exit(1)


@command(data_app, name="get")
def data_get(
    name: Annotated[str, typer.Argument(help="A dataset; `cler data list` lists them.")],
    data_dir: DataDir = None,
    imports: Imports = None,
) -> None:
    """Download a dataset, check it and unpack it; an interrupted download resumes.

    Of your own data, only check it. The exit code is 1 if it is damaged or missing.
    """
    from cler import data
    from cler.report.progress import download_bar

    with download_bar(errors, name) as advance:
        status = data.get(name, data_dir, advance)
    _print(name, status)
    if status.state != "present":
        raise typer.Exit(1)


def _print(name: str, status: Status) -> None:
    """A line for a dataset; one of a user's own that is there, but that cannot be read, is not missing."""
    there = status.state == "missing" and os.path.exists(name.partition(":")[2])
    console.print(f"{name}: {'unusable' if there else status.state} - {status.reason}", soft_wrap=True)
