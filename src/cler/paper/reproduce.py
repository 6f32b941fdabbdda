"""From a table of the paper to the runs to train: chosen, looked for on disk, their datasets downloaded, in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from cler import data
from cler.config.machine import Machine
from cler.errors import UsageError, unknown
from cler.methods import METHODS
from cler.paper.lines import find_group, usual_precision
from cler.paper.tables import PaperCell, PaperTable
from cler.runs.compare import compare
from cler.runs.jobs import Index, Job, make_jobs, outdated, past_failures, remaining
from cler.runs.machine import gpus
from cler.runs.prepare import Bar
from cler.runs.results import find_results
from cler.runs.series import Series


def select(
    table: PaperTable,
    *,
    only: Sequence[str] = (),
    datasets: Sequence[str] = (),
    buffers: Sequence[int] = (),
    epochs: Sequence[int] = (),
) -> tuple[PaperCell, ...]:
    """The cells of a table with these methods (or pairs), datasets, buffer sizes and epochs; none given means all."""
    cells = table.cells
    for kind, wanted, names_of in (
        ("method", only, lambda cell: (cell.method, f"{cell.method}+{cell.regularizer}")),
        ("dataset", datasets, lambda cell: (cell.dataset,)),
        ("buffer size", buffers, lambda cell: (cell.buffer,)),
        ("number of epochs", epochs, lambda cell: (cell.epochs,)),
    ):
        known = list(dict.fromkeys(str(name) for cell in table.cells for name in names_of(cell)))
        for name in map(str, wanted):
            if name not in known:
                raise unknown(f"{kind} in {table.name}", name, known)
        cells = tuple(cell for cell in cells if not wanted or any(name in wanted for name in names_of(cell)))
    if not cells:
        raise UsageError(
            f"{table.name} has no cell with this method, dataset, buffer and epochs together: leave one of them out"
        )
    if not any(cell.available for cell in cells):
        raise UsageError(f"this version of cler does not have {', '.join(lacking(cells))}, which these cells need")
    return cells


def lacking(cells: Sequence[PaperCell]) -> list[str]:
    """The methods and datasets of the cells that this version does not have."""
    missing = {cell.dataset if cell.method in METHODS else cell.method for cell in cells if not cell.available}
    return sorted(missing)


@dataclass(frozen=True)
class Work:
    """The runs of a cell that are still missing."""

    cell: PaperCell
    jobs: tuple[Job, ...]


def jobs_of(works: Iterable[Work]) -> list[Job]:
    """The runs of several cells."""
    return [job for work in works for job in work.jobs]


@dataclass(frozen=True)
class Inventory:
    """The runs of a table that a folder holds, those that are missing, and a line for each file that is unusable."""

    groups: tuple[Series, ...]
    missing: list[Work]
    done: list[Job]
    """The runs that were asked for and have ended."""
    complaints: list[str]


def take_inventory(
    table: PaperTable,
    out: Path,
    *,
    seeds: int | None,
    precision: str,
    cells: Sequence[PaperCell] | None = None,
    again: bool = False,
) -> Inventory:
    """Which runs a folder has of a table, and which are missing for this many seeds of each cell, or of `cells`.

    Without `seeds`, each cell has as many as it wants. Missing runs are to be made in the precision of most runs that
    are there, and in `precision` without any. With `again`, those that have ended are missing too.
    """
    results, skipped = find_results([out]) if out.exists() else ([], [])
    # Runs that were stopped or have failed are reported below, where they are missing.
    comparison = compare(run for run in results if run.complete and run.failure is None)
    usual = usual_precision(table, comparison.groups, precision)
    wanted = table.cells if cells is None else cells
    missing, done, complaints = _missing(wanted, comparison.groups, seeds=seeds, precision=usual, out=out, again=again)
    skipped = [line for line in skipped if not any(longer.startswith(line) for longer in complaints)]
    complaints = list(dict.fromkeys([*skipped, *comparison.complaints, *complaints]))
    return Inventory(comparison.groups, missing, done, complaints)


def _missing(
    cells: Sequence[PaperCell], groups: Sequence[Series], *, seeds: int | None, precision: str, out: Path, again: bool
) -> tuple[list[Work], list[Job], list[str]]:
    index = Index(out)
    works, done, complaints = [], [], []
    for cell in (cell for cell in cells if cell.available):
        group = find_group(cell, groups, precision)
        settings = cell.settings(group.settings["precision"] if group else precision)
        todo = []
        there = group.seeds if group else []
        for job in make_jobs(settings, wanted_seeds(cell.seeds if seeds is None else seeds, there), out, index=index):
            ended = job.result.exists()
            if job.seed in there and not (again and ended):
                done += [job] if ended else []
                continue
            try:
                if remaining([job]) or again:
                    todo.append(job)
                else:
                    done.append(job)
                    complaints += past_failures([job])
            except UsageError as error:
                complaints.append(f"skipped: {error}")
        if todo:
            works.append(Work(cell, tuple(todo)))
    return works, done, complaints


def wanted_seeds(count: int, there: Sequence[int]) -> list[int]:
    """So many seeds: those that are there count, the lowest others fill up."""
    new = [seed for seed in range(count) if seed not in there]
    return sorted([*there[:count], *new[: max(0, count - len(there))]])


def outdated_lines(done: Sequence[Job], data_dir: Path | None) -> list[str]:
    """A line for finished runs that the code or the data of today would not repeat."""

    @cache
    def fingerprint(dataset: str) -> str | None:
        try:
            return data.load(dataset, data_dir).fingerprint()
        except UsageError:  # it is not here
            return None

    return outdated(done, lambda settings: fingerprint(settings.dataset))


def to_download(missing: Sequence[Work], data_dir: Path | None) -> Iterator[str]:
    """A line for each dataset that would have to be downloaded first."""
    for name in _datasets(missing):
        status = data.check(name, data_dir)
        if status.state != "present":
            yield f"{name} is {status.state} here: without --dry-run it is downloaded first"


def download(missing: Sequence[Work], machine: Machine, bar: Bar, say: Callable[[str], None]) -> list[Work]:
    """Download the datasets; returns the work without that on datasets which cannot be downloaded.

    Nothing is left out where runs are trained elsewhere: the machines there may have them in folders of their own.
    """
    absent = []
    for name in _datasets(missing):
        try:
            with bar(name) as advance:
                data.get(name, machine.data_dir, advance)
        except UsageError as error:
            if machine.on == "local":
                say(f"left out: all runs on {name} ({error})")
                absent.append(name)
            else:
                say(f"not here, and needed where runs are trained: {error}")
    return [work for work in missing if work.cell.dataset not in absent]


def _datasets(missing: Sequence[Work]) -> list[str]:
    return list(dict.fromkeys(work.cell.dataset for work in missing))


def cheapest_first(missing: Sequence[Work], seconds: Mapping[PaperCell, float]) -> list[Work]:
    """The missing runs, sorted by the time that is left for each cell, so that a long one holds up no other.

    Those of which no time is known come last.
    """
    return sorted(missing, key=lambda work: seconds.get(work.cell, math.inf) * len(work.jobs))


def in_turns(
    missing: Sequence[Work], seconds: Mapping[PaperCell, float], machine: Machine, device: torch.device, at_once: int
) -> list[list[Job]]:
    """The missing runs in the order in which they are to be trained, those that are trained together in one list.

    On GPUs of this machine that is a bundle of runs for each, on its CPU and on other machines all of them. The
    cheapest come first, to see most soon; on other machines the costliest, since all ends sooner so.
    """
    order = cheapest_first(missing, seconds)
    jobs = jobs_of(order if machine.on == "local" else order[::-1])
    bundles = device.type == "cuda" and machine.on == "local"
    size = at_once * max(1, len(gpus())) if bundles else len(jobs)
    return [jobs[first : first + size] for first in range(0, len(jobs), size)]
