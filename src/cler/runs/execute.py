"""From jobs to finished runs on disk, in worker processes on a CPU and in bundles on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from cler.engine.events import Elsewhere, Emit, Event, Message, to_all
from cler.runs.custom import code_of
from cler.runs.folders import check_writable
from cler.runs.jobs import Job
from cler.runs.machine import workers_that_fit
from cler.runs.trainers import train_bundles
from cler.runs.workers import train_in_processes


def execute(
    jobs: Sequence[Job],
    *,
    device: torch.device,
    data_dir: Path | None = None,
    workers: int | None = None,
    at_once: int | None = None,
    graph: bool = True,
    callbacks: Sequence[Emit] = (),
) -> None:
    """Train all the jobs that no other process is training; results are in their folders.

    On a GPU `at_once` runs are trained side by side (default: as many as fit); on a CPU `workers` processes (default:
    as many as there are cores for the threads of each) take one job after the other. Without `graph` a GPU records no
    steps. The callbacks hear every event; the error of one that raises ends training, after a checkpoint.
    """
    if not jobs:
        return
    for job in jobs:
        check_writable(job.folder)
    others = _Others()
    emit = to_all([others, *callbacks])
    workers = min(workers or workers_that_fit(max(job.settings.threads for job in jobs)), len(jobs))
    if device.type == "cpu" and workers > 1 and (only_here := _only_here(jobs)):
        workers = 1
        emit(Message(f"{', '.join(only_here)}: no other process can import this, so this one trains all runs in turn"))
    if device.type == "cuda":
        train_bundles([jobs], device, data_dir, emit, at_once=at_once, graph=graph)
    elif workers > 1:
        train_in_processes([[job] for job in jobs], data_dir, workers, emit)
    else:
        train_bundles([[job] for job in jobs], device, data_dir, emit)
    if others.busy:
        runs = "1 run is" if others.busy == 1 else f"{others.busy} runs are"
        emit(Message(f"{runs} being trained by another process: the same command shows the results after that"))


def _only_here(jobs: Sequence[Job]) -> list[str]:
    """What no worker process could import, in words."""
    return list(dict.fromkeys(what for job in jobs for what in code_of(job.settings).only_here))


class _Others:
    """Counts the runs that other processes are doing."""

    busy = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Elsewhere) and not event.complete:
            self.busy += 1
