"""From jobs to finished runs on disk: on this machine, or wherever a backend takes them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from statistics import fmean

from cler.config.machine import Machine
from cler.config.registry import TEACHERS
from cler.config.schema import settings_of
from cler.engine import checkpoint
from cler.engine.events import Elsewhere, Emit, Event, Failed, Finished, Message, each_line_once
from cler.runs.backends import Backend, find_backend
from cler.runs.folders import check_writable
from cler.runs.jobs import Job, remaining, run_key
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
    unaided = [job.unaided for job in trained if job.unaided]
    with nullcontext(backend) if backend else closing(find_backend(machine)) as backend:
        machine = replace(machine, device=backend.device(machine.device).type)
        backend.train(trained, machine, emit)
        if left := remaining(unaided):
            backend.train(left, machine, emit)
    for job in unaided:
        if job not in left:
            emit(_ended(job))
    if busy:
        runs = "1 run is" if busy == 1 else f"{busy} runs are"
        emit(Message(f"{runs} being trained by another process: the same command shows the results after that"))


def _ended(job: Job) -> Finished | Failed:
    """The last event of a run that was trained as part of another one, or ended by another process meanwhile."""
    result = Result.read(job.result)
    if result.failure is not None:
        return Failed(job.name, result.failure)
    return Finished(job.name, fmean(result.accuracy["class_il"][-1]), result.metrics)


def trained_once(jobs: Sequence[Job], machine: Machine) -> list[Job]:
    """The jobs, without those that are the `unaided` run of another one: both learn the same, and are trained once.

    Such a job has no teacher and no checkpoint yet; the other one has a teacher that only answers. Where more than the
    result is kept, such as curves or networks, both are trained.
    """
    if machine.save_network or machine.save_buffer_images or machine.track:
        return list(jobs)
    new = [job for job in jobs if job.settings.teacher == "none" and not checkpoint.is_in(job.folder)]
    without_teacher = {_learns(job): job for job in new if _keeps_results_alone(job)}
    answering = [job for job in jobs if _has_teacher_that_only_answers(job) and _keeps_results_alone(job)]
    unaided = {id(job): without_teacher.pop(_learns(job), None) for job in answering}
    taken = {id(job) for job in unaided.values()}
    return [replace(job, unaided=unaided.get(id(job))) for job in jobs if id(job) not in taken]


def _has_teacher_that_only_answers(job: Job) -> bool:
    teacher = job.settings.teacher
    return teacher != "none" and not TEACHERS[teacher].teaches


def _keeps_results_alone(job: Job) -> bool:
    return not job.probe and not job.settings.evaluate_every and job.until_task is None


def _learns(job: Job) -> Hashable:
    """Equal for jobs that learn the same if their teachers only answer."""
    teacher = job.settings.teacher
    own = settings_of(TEACHERS[teacher].Options) if teacher != "none" else {}
    shared = {name: value for name, value in job.settings.to_dict().items() if name not in own}
    return run_key(shared | {"teacher": "none"}, job.seed)
