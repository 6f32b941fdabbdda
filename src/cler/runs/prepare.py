"""From settings and seeds to the runs that are left to train: checked against the data, finished ones found on disk."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from cler import data
from cler.config.labels import run_line
from cler.config.machine import Machine
from cler.config.settings import Settings
from cler.config.values import number_of_tasks
from cler.data.images import Advance, ImageData
from cler.errors import UsageError
from cler.methods import find_method
from cler.runs.backends import find_backend
from cler.runs.build import advice, check_fit
from cler.runs.folders import check_writable
from cler.runs.jobs import (
    Index,
    Job,
    delete_checkpoints,
    make_jobs,
    outdated,
    past_failures,
    to_do_and_ended,
)
from cler.runs.jobs import redo as redo_jobs
from cler.runs.jobs import restart as restart_jobs
from cler.runs.networks import NAME as NETWORK
from cler.runs.results import read_result

Bar = Callable[[str], AbstractContextManager[Advance]]
"""From the name of a dataset to a bar that shows how far it is, inside a `with` block."""
Stamp = Callable[[Settings], dict[str, Any] | None]
"""From settings to how they were tuned, None if they were not."""


@dataclass(frozen=True)
class Prepared:
    """The runs that were asked for."""

    jobs: list[Job]
    todo: list[Job]
    """The runs that are not finished."""
    past_failures: list[str]
    """A line for each run that has failed before."""


def prepare(
    settings: Sequence[Settings],
    seeds: Sequence[int],
    machine: Machine,
    *,
    restart: bool = False,
    redo: bool = False,
    tuned: Stamp = lambda one: None,
    say: Callable[[str], None],
    warn: Callable[[str], None] | None = None,
    bar: Bar,
) -> Prepared:
    """Check the settings, find what has been done already, and say what will run; nothing is trained yet.

    `tuned` says how settings were tuned, for the results. `warn` says, in place of `say`, that results are of other
    code or data. `bar` shows how far a dataset is that has to be decoded.
    """
    for one in settings:
        _check_until(machine.until_task, one)
    jobs: list[Job] = []
    loaded: dict[Hashable, ImageData | None] = {}
    for one in settings:
        if data.key(one) not in loaded:
            with bar(one.dataset) as progress:
                loaded[data.key(one)] = load_here(one, machine, progress, say)
    fingerprint = cache(lambda key: images.fingerprint() if (images := loaded[key]) else None)
    index = Index(machine.out)
    for one in settings:
        if (images := loaded[data.key(one)]) is not None:
            check_fit(one, images, seeds)
        jobs += make_jobs(
            one,
            seeds,
            machine.out,
            until_task=machine.until_task,
            tuned=tuned(one),
            data=fingerprint(data.key(one)) if data.has_path(one.dataset) else None,
            index=index,
        )
    todo, ended = to_do_and_ended(jobs)
    if redo or todo:
        find_backend(machine).check(jobs)  # before `redo` deletes results that could not be made again
    if redo:
        redo_jobs(jobs)
        todo, ended = to_do_and_ended(jobs)
    delete_checkpoints(ended)
    failures = past_failures(ended)
    if ended:
        say(f"{len(ended)} of {len(jobs)} runs are already in {machine.out}")
    if machine.save_network and (count := sum(map(_lacks_network, ended))):
        say(f"{count} of them {'have' if count > 1 else 'has'} no {NETWORK}: --redo (in Python redo=True) makes it")
    for line in outdated(ended, lambda one: fingerprint(data.key(one))):
        (warn or say)(line)
    for line in failures:
        say(line)
    for job in todo:
        check_writable(job.folder)
    for one, own in groupby(todo, key=lambda job: job.settings):
        say(run_line(one, [job.seed for job in own], None if one is todo[0].settings else todo[0].settings))
        if (images := loaded[data.key(one)]) is not None:
            for line in advice(one, images):
                say(line)
    if restart:
        restart_jobs(todo)
    return Prepared(jobs, todo, failures)


def _check_until(task: int | None, one: Settings) -> None:
    """Refuse to stop runs after a task that they do not have."""
    if task is not None and find_method(one.method).merged:
        raise UsageError(f"{task}: {one.method} learns all tasks at once; leave it out", "until_task")
    if task is not None and task > (tasks := number_of_tasks(one.tasks)):
        raise UsageError(f"{task}: {one.dataset} has {tasks} tasks here; leave it out", "until_task")


def _lacks_network(job: Job) -> bool:
    """Whether a run has come to its end without its network being kept."""
    result = read_result(job.folder)
    return result["complete"] and not result.get("failure") and not (job.folder / NETWORK).exists()


def load_here(one: Settings, machine: Machine, progress: Advance, say: Callable[[str], None]) -> ImageData | None:
    """The images of a dataset; None if they are not here and need not be, as other machines train."""
    try:
        return data.load_for(one, machine.data_dir, progress)
    except UsageError as error:
        if machine.on == "local" or data.has_path(one.dataset):
            raise
        say(f"not here, and needed where runs are trained: {error}")
        return None
