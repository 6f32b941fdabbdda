"""Runs that learn the same are trained once: a teacher that only answers does not change what its network learns."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from cler.config.machine import Machine
from cler.config.registry import TEACHERS
from cler.config.schema import settings_of
from cler.engine import checkpoint
from cler.runs.jobs import Job, run_key


def trained_once(jobs: Sequence[Job], machine: Machine) -> list[Job]:
    """The jobs, without those that come `along` with another one because both learn the same.

    Such a job has no teacher and no checkpoint yet; the other one has a teacher that only answers. Where more than the
    result is kept, such as curves or networks, both are trained.
    """
    if machine.save_network or machine.save_buffer_images or machine.track:
        return list(jobs)
    new = [job for job in jobs if job.settings.teacher == "none" and not checkpoint.is_in(job.folder)]
    without_teacher = {_learns(job): job for job in new if _keeps_results_alone(job)}
    answering = [job for job in jobs if _has_teacher_that_only_answers(job) and _keeps_results_alone(job)]
    along = {id(job): without_teacher.pop(_learns(job), None) for job in answering}
    taken = {id(job) for job in along.values()}
    return [replace(job, along=along.get(id(job))) for job in jobs if id(job) not in taken]


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
