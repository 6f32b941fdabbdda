"""From jobs to finished runs on disk: on every GPU of this machine, or in worker processes on its CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from cler.engine.bundles import MOST_AT_ONCE
from cler.engine.events import Elsewhere, Emit, Event, Message, each_line_once, to_all
from cler.runs.custom import code_of
from cler.runs.folders import check_writable
from cler.runs.jobs import Job
from cler.runs.machine import gpus, workers_that_fit
from cler.runs.trainers import Bundle, in_bundles, train_bundles
from cler.runs.workers import Place, train_in_processes


def execute(
    jobs: Sequence[Job],
    *,
    device: torch.device,
    data_dir: Path | None = None,
    workers: int | None = None,
    at_once: int | None = None,
    images: str = "auto",
    graph: bool = True,
    callbacks: Sequence[Emit] = (),
) -> None:
    """Train all the jobs that no other process is training; results are in their folders.

    On a GPU `at_once` runs are trained side by side (default: as many as fit), and of several GPUs each has a process;
    on a CPU `workers` processes (default: as many as there are cores for the threads of each) take one job after the
    other. `images` says where those lie that a GPU trains on. Without `graph` it records no steps. The callbacks hear
    every event; the error of one that raises ends training, after a checkpoint.
    """
    if not jobs:
        return
    for job in jobs:
        check_writable(job.folder)
    others = _Others()
    emit = each_line_once(to_all([others, *callbacks]))
    on_gpu = device.type == "cuda"
    bundles, places = _shared_out(jobs, device, workers, at_once)
    if len(places) > 1 and (only_here := _only_here(jobs)):
        bundles, places, how = ([jobs], places[:1], "on one GPU") if on_gpu else (bundles, places[:1], "in turn")
        emit(Message(f"{', '.join(only_here)}: no other process can import this, so this one trains all runs {how}"))
    if len(places) > 1:
        train_in_processes(bundles, data_dir, places, emit, at_once=at_once, images=images, graph=graph)
    else:
        train_bundles(bundles, device, data_dir, emit, at_once=at_once, images=images, graph=graph)
    if others.busy:
        runs = "1 run is" if others.busy == 1 else f"{others.busy} runs are"
        emit(Message(f"{runs} being trained by another process: the same command shows the results after that"))


def _shared_out(
    jobs: Sequence[Job], device: torch.device, workers: int | None, at_once: int | None
) -> tuple[Sequence[Bundle], Sequence[Place]]:
    """The jobs in bundles, and the places that they are shared out to: one GPU gets them all, several as many each."""
    if device.type == "cpu":
        count = min(workers or workers_that_fit(max(job.settings.threads for job in jobs)), len(jobs))
        return [[job] for job in jobs], [Place("cpu")] * count
    there = gpus()
    if len(there) < 2:
        return [jobs], [Place("cuda")]
    bundles = in_bundles(jobs, min(at_once or MOST_AT_ONCE, math.ceil(len(jobs) / len(there))))
    return bundles, [Place("cuda", gpu) for gpu in there][: len(bundles)]


def _only_here(jobs: Sequence[Job]) -> list[str]:
    """What no worker process could import, in words."""
    return list(dict.fromkeys(what for job in jobs for what in code_of(job.settings).only_here))


class _Others:
    """Counts the runs that other processes are doing."""

    busy = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Elsewhere) and not event.complete:
            self.busy += 1
