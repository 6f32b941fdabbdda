"""`cler reproduce`: a table of the paper, from our own runs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cler.cli.app import (
    AsJson,
    app,
    console,
    errors,
    say,
    show,
    stopped_at,
    train_with_progress,
)
from cler.cli.options import Given, OnceEach, takes
from cler.config.schema import settings_of
from cler.config.settings import Machine, Settings
from cler.errors import UsageError, unknown

if TYPE_CHECKING:
    import torch

    from cler.paper.reproduce import Inventory, Line, Work
    from cler.paper.tables import PaperCell, PaperTable
    from cler.runs.compare import Series

MOST_SEEDS = 1000


@app.command(cls=OnceEach)
@takes(
    Settings,
    Machine,
    only=("dataset", "buffer", "epochs", *(settings_of(Machine).keys() - {"save_network", "until_task"})),
    defaults={"out": Path("reproduction")},
    helps={
        "dataset": "Only cells of these datasets, with commas (default: all of the table).",
        "buffer": "Only cells with buffers of these sizes, with commas (default: all of the table).",
        "epochs": "Only cells with so many passes over each task, with commas (default: all of the table).",
    },
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
    restart: Annotated[bool, typer.Option("--restart", help="Start stopped runs over; keep finished ones.")] = False,
    redo: Annotated[bool, typer.Option("--redo", help="Train everything again, including finished runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table of the paper, or all: train the missing runs and show our numbers beside the paper's.

    --dataset, --buffer, --epochs and --only restrict it to some cells; give several values with commas. You can stop it
    at any moment; the same command resumes.
    """
    from cler.paper import cost
    from cler.paper import reproduce as steps
    from cler.runs import jobs as work
    from cler.runs.backends import find_backend
    from cler.runs.folders import check_writable
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
    whole = _table(table, pretext)
    machine, data_dir, out = given.machine, given.machine.data_dir, given.machine.out
    cells = steps.select(
        whole,
        only=only.split(",") if only else (),
        datasets=given.several("dataset"),
        buffers=given.several("buffer"),
        epochs=given.several("epochs"),
    )
    elsewhere = machine.on != "local"
    if timed and elsewhere:
        raise UsageError(f"times steps on this machine, not on {machine.on}: leave one of them out", "time")
    backend = find_backend(machine)
    target = backend.device(machine.device)
    precision, at_once = default_precision(target), cost.runs_at_once(target, machine.workers)
    state = steps.look(whole, out, seeds=count, precision=precision, cells=cells, again=redo)
    if state.missing and not dry_run:
        backend.check()
    for line in [
        *state.complaints,
        *work.outdated(state.done, lambda settings: _fingerprint(settings.dataset, data_dir)),
    ]:
        say(line)
    todo, failures = state.missing, []
    if todo and not dry_run:
        check_writable(out)
        cost.check_disk(out, todo, at_once)
        failures = _fetch(todo, data_dir, elsewhere=elsewhere)
        todo = [some for some in todo if some.cell.dataset not in failures]
    timer = None if elsewhere else target
    costs = _tell_costs(todo, state.groups, timer, at_once, measured=timed or not dry_run)
    if dry_run:
        _tell_absent(todo, data_dir)
    elif todo:
        if redo or restart:  # not before it is certain that they can be trained
            (work.redo if redo else work.restart)([job for some in todo for job in some.jobs])
        say("stop with Ctrl-C at any time; --only and --seeds train fewer runs")
        order = cost.cheapest_first(todo, costs)  # to see most soon; on several machines all ends sooner the other way
        failures += _train(order[::-1] if elsewhere else order, deadline, target, at_once, machine)
    if redo or (todo and not dry_run):
        state = steps.look(whole, out, seeds=count, precision=precision, cells=cells)
    _show(whole, cells, state, costs, precision, as_json)
    if failures:
        raise typer.Exit(1)


def _how_many(seeds: str) -> int:
    """The number of runs of each cell."""
    if not (seeds.isdecimal() and len(seeds) <= len(str(MOST_SEEDS)) and 1 <= int(seeds) <= MOST_SEEDS):
        raise UsageError(
            f"is the number of runs of each cell, from 1 to {MOST_SEEDS}, as in --seeds 10, not '{seeds}'",
            "seeds",
        )
    return int(seeds)


def _table(name: str, pretext: str | None) -> PaperTable:
    from cler.paper.tables import find_table

    if pretext not in (None, "paper", "both"):
        raise unknown("pretext", pretext, ("paper", "both"))
    table = find_table(name)
    return table.with_both_pretexts() if (pretext or table.pretext) == "both" else table


def _tell_costs(
    missing: Sequence[Work], groups: Sequence[Series], device: torch.device | None, at_once: int, *, measured: bool
) -> dict[PaperCell, float]:
    """Print what the missing runs will take; returns the seconds of one run, by cell of which they are known.

    Without a device, as runs will be trained elsewhere, nothing is measured.
    """
    from cler.paper.cost import cheapest_first, known_seconds, seconds_per_run
    from cler.report.numbers import count_runs, duration

    if not missing:
        return {}
    if measured and device:
        with errors.status("estimating the time of the missing runs") as line:
            tell = line.update if errors.is_terminal else say
            costs = seconds_per_run(missing, device, at_once, groups, lambda what: tell(f"timing steps of {what}"))
        where = ""
    else:
        costs, where = known_seconds(missing, device, at_once, groups)
    known = [work for work in missing if work.cell in costs]
    untimed = len(missing) - len(known)
    for work in cheapest_first(known, costs):
        cost = duration(costs[work.cell] * len(work.jobs))
        say(f"missing: {work.cell.where}: {work.cell.label}, {count_runs(work.jobs)}, about {cost}")
    unknown: dict[str, list[str]] = {}
    for work in missing:
        if work.cell not in costs:
            unknown.setdefault(work.cell.where, []).append(f"{work.cell.label} ({count_runs(work.jobs)})")
    for where_missing, cells in unknown.items():
        say(f"missing, time not known: {where_missing}: {', '.join(cells)}")
    told = [count_runs([job for work in missing for job in work.jobs])]
    if known:
        total = duration(sum(costs[work.cell] * len(work.jobs) for work in known))
        some = f" for {sum(len(work.jobs) for work in known)} of them" if untimed else ""
        told.append(f"about {total}{f' on {where}' if where else ''}{some}")
    if untimed:
        told.append(f"time not known for {untimed} of {len(missing)} cells{': --time measures it' if device else ''}")
    say(f"in all: {', '.join(told)}")
    return costs


@cache
def _fingerprint(dataset: str, data_dir: Path | None) -> str | None:
    """That of a dataset; None if it is not here."""
    from cler import data

    try:
        return data.load(dataset, data_dir).fingerprint()
    except UsageError:
        return None


def _tell_absent(missing: Sequence[Work], data_dir: Path | None) -> None:
    """Print a line for each dataset that would have to be downloaded first."""
    from cler import data

    for name in dict.fromkeys(work.cell.dataset for work in missing):
        status = data.check(name, data_dir)
        if status.state != "present":
            say(f"{name} is {status.state} here: without --dry-run it is downloaded first")


def _fetch(missing: Sequence[Work], data_dir: Path | None, *, elsewhere: bool) -> list[str]:
    """Download the datasets; returns those that cannot be downloaded, whose runs are left out.

    None is left out where runs are trained elsewhere: the machines there may have it in folders of their own.
    """
    from cler import data
    from cler.report.progress import download_bar

    absent = []
    for name in dict.fromkeys(work.cell.dataset for work in missing):
        try:
            with download_bar(errors, name) as advance:
                data.get(name, data_dir, advance)
        except UsageError as error:
            if elsewhere:
                say(f"not here, and needed where runs are trained: {error}")
            else:
                say(f"left out: all runs on {name} ({error})")
                absent.append(name)
    return absent


def _train(
    missing: Sequence[Work],
    deadline: float,
    device: torch.device,
    at_once: int,
    machine: Machine,
) -> list[str]:
    """Train the runs until the deadline; returns a line for each failure.

    On GPUs of this machine a bundle of runs for each is trained after the other; on its CPU, and on other machines, all
    runs are in one queue.
    """
    from cler.report.numbers import count_runs
    from cler.runs.jobs import remaining
    from cler.runs.machine import gpus

    jobs = [job for work in missing for job in work.jobs]
    here = device.type == "cuda" and machine.on == "local"
    size = at_once * max(1, len(gpus())) if here else max(1, len(jobs))
    failures: list[str] = []
    try:
        with stopped_at(deadline):
            for first in range(0, len(jobs), size):
                failures += train_with_progress(jobs[first : first + size], machine)
    except KeyboardInterrupt:
        if time.monotonic() < deadline:
            raise
        say(f"out of time, {count_runs(remaining(jobs))} still to do: the same command resumes")
    return failures


def _show(
    table: PaperTable,
    cells: Sequence[PaperCell],
    state: Inventory,
    costs: dict[PaperCell, float],
    precision: str,
    as_json: bool,
) -> None:
    """Print the lines of these cells, computed from the whole table and its runs."""
    from cler.paper.report_section import claim
    from cler.paper.reproduce import lacking, lines, notes
    from cler.paper.tables import WHOLE
    from cler.paper.terminal_table import paper_table

    if table.name == WHOLE:
        _show_whole(cells, state, costs, precision, as_json)
        return
    told = [line for line in lines(table, state.groups, precision) if line.cell in cells]
    if as_json:
        print(json.dumps(_plain(table, told) | {"missing": _to_do(state.missing, costs)}, indent=1))
        return
    show(paper_table(table, told))
    sentences = [claim(told), *notes(table, told)]
    if absent := lacking(cells):
        sentences.insert(0, f"not in this version: {', '.join(absent)}")
    for sentence in filter(None, sentences):
        console.print(sentence)


def _show_whole(
    cells: Sequence[PaperCell], state: Inventory, costs: dict[PaperCell, float], precision: str, as_json: bool
) -> None:
    """Print how many accuracies of each table agree with the paper's, of those of these cells."""
    from cler.paper.report_section import lines_of_all_tables, summary
    from cler.paper.terminal_table import agreement_table

    keys = {cell.key for cell in cells}
    tables = [
        (table, [line for line in told if line.cell.key in keys])
        for table, told in lines_of_all_tables(state.groups, precision)
    ]
    if as_json:
        whole = {"tables": [_plain(*each) for each in tables], "verdict": summary(tables)}
        print(json.dumps(whole | {"missing": _to_do(state.missing, costs)}, indent=1))
        return
    show(agreement_table(tables))
    for sentence in summary(tables):
        console.print(sentence)
    if not state.missing:
        console.print("nothing is missing")


def _plain(table: PaperTable, told: Sequence[Line]) -> dict[str, object]:
    from cler.paper.report_section import claim
    from cler.paper.reproduce import notes

    return {
        "table": table.name,
        "lines": [line.to_json() for line in told],
        "verdict": claim(told) or None,
        "notes": notes(table, told),
    }


def _to_do(missing: Sequence[Work], costs: dict[PaperCell, float]) -> list[dict[str, object]]:
    return [
        work.cell.to_json() | {"seeds": [job.seed for job in work.jobs], "seconds_per_run": costs.get(work.cell)}
        for work in missing
    ]
