"""From jobs to finished runs on disk: on this machine, or wherever a backend takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch

from cler.engine.events import Elsewhere, Emit, Event, Finished, Message, each_line_once, to_all
from cler.runs.along import trained_once
from cler.runs.backends import Backend
from cler.runs.backends.local import Local
from cler.runs.folders import check_writable
from cler.runs.jobs import Job, remaining
from cler.runs.results import Result, read_result
from cler.runs.trainers import Order


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
    backend: Backend | None = None,
    out: Path = Path("runs"),
    give_up_after: float = 600.0,
) -> None:
    """Train all the jobs that no other process is training; results are in their folders.

    On a GPU `at_once` runs are trained side by side (default: as many as fit), and of several GPUs each has a process;
    on a CPU `workers` processes (default: as many as there are cores for the threads of each) take one job after the
    other. `images` says where those lie that a GPU trains on. Without `graph` it records no steps. The callbacks hear
    every event; the error of one that raises ends training, after a checkpoint. The backend is this machine where none
    is given; `out` is the folder that the machines of another one share, and a machine of which nothing was heard for
    `give_up_after` seconds is given up.
    """
    if not jobs:
        return
    for job in jobs:
        check_writable(job.folder)
    others = _Others()
    emit = each_line_once(to_all([others, *callbacks]))
    order = Order(device, data_dir, workers, at_once, images, graph, out, give_up_after)
    backend = backend or Local()
    trained = trained_once(jobs)
    backend.train(trained, order, emit)
    along = [job.along for job in trained if job.along]
    if left := remaining(along):
        backend.train(left, order, emit)
    for job in along:
        if job not in left:
            emit(_finished(job))
    if others.busy:
        runs = "1 run is" if others.busy == 1 else f"{others.busy} runs are"
        emit(Message(f"{runs} being trained by another process: the same command shows the results after that"))


def _finished(job: Job) -> Finished:
    """What is told of a run that came along with another one."""
    result = Result.from_dict(job.folder, read_result(job.folder))
    return Finished(job.name, fmean(result.accuracy["class_il"][-1]), result.metrics)


class _Others:
    """Counts the runs that other processes are doing."""

    busy = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Elsewhere) and not event.complete:
            self.busy += 1
