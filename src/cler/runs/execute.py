"""From jobs to finished runs on disk: on this machine, or wherever a backend takes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from statistics import fmean

from cler.config.machine import Machine
from cler.engine.events import Elsewhere, Emit, Event, Failed, Finished, Message, each_line_once
from cler.runs.along import trained_once
from cler.runs.backends import Backend, find_backend
from cler.runs.folders import check_writable
from cler.runs.jobs import Job, remaining
from cler.runs.machine import Order
from cler.runs.results import Result


def execute(
    jobs: Sequence[Job], machine: Machine, *, callbacks: Sequence[Emit] = (), backend: Backend | None = None
) -> None:
    """Train all the jobs that no other process is training, where and how `machine` says; results are in their folders.

    On a GPU runs are trained side by side, and of several GPUs each has a process; on a CPU worker processes take one
    job after the other. The callbacks hear every event; the error of one that raises ends training, after a checkpoint.
    `backend` is the machine's, for a caller that trains several times and closes it then.
    """
    if not jobs:
        return
    for job in jobs:
        check_writable(job.folder)
    busy = 0

    def hear(event: Event) -> None:
        nonlocal busy
        busy += isinstance(event, Elsewhere) and not event.complete
        for callback in callbacks:
            callback(event)

    emit = each_line_once(hear)
    trained = trained_once(jobs, machine)
    along = [job.along for job in trained if job.along]
    with nullcontext(backend) if backend else closing(find_backend(machine)) as backend:
        order = Order(backend.device(machine.device), machine)
        backend.train(trained, order, emit)
        if left := remaining(along):
            backend.train(left, order, emit)
    for job in along:
        if job not in left:
            emit(_ended(job))
    if busy:
        runs = "1 run is" if busy == 1 else f"{busy} runs are"
        emit(Message(f"{runs} being trained by another process: the same command shows the results after that"))


def _ended(job: Job) -> Finished | Failed:
    """The last event of a run that came along with another one, or was ended by another process meanwhile."""
    result = Result.read(job.result)
    if result.failure is not None:
        return Failed(job.name, result.failure)
    return Finished(job.name, fmean(result.accuracy["class_il"][-1]), result.metrics)
