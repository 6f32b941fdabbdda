"""`cler reproduce`: a table of the paper, from our own runs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cler.cli.app import AsJson, Imports, Redo, Restart, app, console, errors, say, show
from cler.cli.options import Given, command, takes
from cler.config.machine import Machine
from cler.config.schema import settings_of
from cler.config.settings import Settings
from cler.errors import UsageError
from cler.signals import stopped_at

if TYPE_CHECKING:
    import torch

    from cler.paper.reproduce import Work
    from cler.paper.tables import PaperCell
    from cler.runs.jobs import Job
    from cler.runs.series import Series

MOST_SEEDS = 1000


@command(
    app,
    takes(
        Settings,
        Machine,
        only=("dataset", "buffer", "epochs", *(settings_of(Machine).keys() - {"save_network", "until_task"})),
        defaults={"out": Path("reproduction")},
        helps={
            "dataset": "Only cells of these datasets, with commas (default: all of the table).",
            "buffer": "Only cells with buffers of these sizes, with commas (default: all of the table).",
            "epochs": "Only cells with so many passes over each task, with commas (default: all of the table).",
        },
    ),
)
def reproduce(
    given: Given,
    table: Annotated[
        str,
        typer.Argument(help="table1, table2, significance, figure4, cssl, epochs, joint, data-free, finetune, or all."),
    ],
    only: Annotated[
        str | None, typer.Option(help="Only these methods or method+regularizer pairs, with commas: er-ace+none,xder.")
    ] = None,
    pretext: Annotated[
        str | None,
        typer.Option(
            help="paper: only the pretext task that the paper prints; both: the other one too.",
            show_default="paper, and both for figure4",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Runs for each cell.", show_default="10, and fewer where they take long (paper.toml)"
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Stop after this time, as with Ctrl-C, and show the table.", show_default="no limit"),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Train nothing: list the missing runs and how long they will take, and show the table.",
        ),
    ] = False,
    timed: Annotated[
        bool,
        typer.Option(
            "--time",
            help="With --dry-run: time a few steps of runs unlike any earlier one; takes minutes on a CPU.",
        ),
    ] = False,
    restart: Restart = False,
    redo: Redo = False,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table of the paper, or all: train the missing runs and show our numbers beside the paper's.

    --dataset, --buffer, --epochs and --only restrict it to some cells; give several values with commas. You can stop it
    at any moment; the same command resumes.
    """
    from cler.paper import cost
    from cler.paper import reproduce as steps
    from cler.paper.reproduce_output import outcome
    from cler.paper.tables import table_with_pretexts
    from cler.report.progress import download_bar
    from cler.runs import jobs as work
    from cler.runs.backends import find_backend
    from cler.runs.machine import default_precision

    deadline = time.monotonic() + (math.inf if seconds is None else seconds)
    if seconds is not None and not seconds > 0:
        raise UsageError(f"must be above zero, not {seconds}", "seconds")
    for name, asked in {"redo": redo, "restart": restart}.items():
        if asked and dry_run:
            raise UsageError("has no effect with --dry-run, which trains nothing: leave one of them out", name)
    if timed and not dry_run:
        raise UsageError("has no effect without --dry-run: runs are timed before they are trained", "time")
    count = None if seeds is None else _how_many(seeds)
    whole, machine = table_with_pretexts(table, pretext), given.machine
    cells = steps.select(
        whole,
        only=only.split(",") if only else (),
        datasets=given.several("dataset"),
        buffers=given.several("buffer"),
        epochs=given.several("epochs"),
    )
    if timed and machine.on != "local":
        raise UsageError(f"times steps on this machine, not on {machine.on}: leave one of them out", "time")
    backend = find_backend(machine)
    device = backend.device(machine.device)
    precision, at_once = default_precision(device), cost.runs_at_once(device, machine.workers)
    take_inventory = partial(steps.take_inventory, whole, machine.out, seeds=count, precision=precision, cells=cells)
    state = take_inventory(again=redo)
    missing, failed = state.missing, False
    costs: dict[PaperCell, float] = {}
    if missing and not dry_run:
        backend.check()
    for line in [*state.complaints, *steps.outdated_lines(state.done, machine.data_dir)]:
        say(line)
    timer = device if machine.on == "local" else None
    if missing and dry_run:
        costs = _tell_costs(missing, state.groups, timer, at_once, measured=timed)
        for line in steps.to_download(missing, machine.data_dir):
            say(line)
    elif missing:
        cost.check_disk(machine.out, missing, at_once)
        todo = steps.download(missing, machine, partial(download_bar, errors), say)
        failed = len(todo) < len(missing)
        if todo:
            costs = _tell_costs(todo, state.groups, timer, at_once, measured=True)
            if redo or restart:  # not before it is certain that they can be trained
                (work.redo if redo else work.restart)(steps.jobs_of(todo))
            say("stop with Ctrl-C at any time; --only and --seeds train fewer runs")
            failed |= _train(steps.in_turns(todo, costs, machine, device, at_once), deadline, machine)
        state = take_inventory()
    found = outcome(whole, cells, state, costs, precision)
    if as_json:
        print(json.dumps(found.content, indent=1))
    else:
        show(found.table)
        for sentence in found.sentences:
            console.print(sentence)
    if failed:
        raise typer.Exit(1)


def _how_many(seeds: str) -> int:
    """The number of runs of each cell."""
    if not (seeds.isdecimal() and len(seeds) <= len(str(MOST_SEEDS)) and 1 <= int(seeds) <= MOST_SEEDS):
        told = f"is the number of runs of each cell, from 1 to {MOST_SEEDS}, as in --seeds 10, not '{seeds}'"
        raise UsageError(told, "seeds")
    return int(seeds)


def _tell_costs(
    missing: Sequence[Work], groups: Sequence[Series], device: torch.device | None, at_once: int, *, measured: bool
) -> dict[PaperCell, float]:
    """Print what the missing runs will take; returns the seconds of one run, by cell of which they are known.

    Without a device, as runs will be trained elsewhere, nothing is measured.
    """
    from cler.paper.cost import known_seconds, seconds_per_run
    from cler.paper.reproduce_output import missing_lines

    if measured and device:
        with errors.status("estimating the time of the missing runs") as line:
            tell = line.update if errors.is_terminal else say
            seconds = seconds_per_run(missing, device, at_once, groups, lambda what: tell(f"timing steps of {what}"))
        hardware = ""
    else:
        seconds, hardware = known_seconds(missing, device, at_once, groups)
    for told in missing_lines(missing, seconds, hardware, measurable=device is not None):
        say(told)
    return seconds


def _train(turns: Sequence[Sequence[Job]], deadline: float, machine: Machine) -> bool:
    """Train the runs of one turn after the other until the deadline; returns whether any failed."""
    from cler.api import train_jobs
    from cler.report.numbers import count_runs
    from cler.runs.jobs import remaining

    failures: list[str] = []
    try:
        with stopped_at(deadline):
            for jobs in turns:
                failures += train_jobs(jobs, machine, errors)
    except KeyboardInterrupt:
        if time.monotonic() < deadline:
            raise
        left = remaining([job for jobs in turns for job in jobs])
        say(f"out of time, {count_runs(left)} still to do: the same command resumes")
    return bool(failures)
