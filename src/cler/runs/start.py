"""From settings and seeds to the runs that are left to train: checked against the data, finished ones found on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from cler import data
from cler.config.comparing import in_words
from cler.config.settings import Machine, Settings
from cler.runs.build import check_fit
from cler.runs.folders import check_writable
from cler.runs.jobs import Index, Job, make_jobs, outdated, past_failures, remaining, tidy
from cler.runs.jobs import redo as redo_jobs
from cler.runs.jobs import restart as restart_jobs


@dataclass(frozen=True)
class Plan:
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
    tuned: dict[str, Any] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Check the settings, find what has been done already, and say what will run; nothing is trained yet.

    `tuned` says how the settings were tuned, for the results.
    """
    jobs: list[Job] = []
    loaded = {name: data.load(name, machine.data_dir) for name in dict.fromkeys(one.dataset for one in settings)}
    index = Index(machine.out)
    for one in settings:
        check_fit(one, loaded[one.dataset], seeds)
        jobs += make_jobs(
            one,
            seeds,
            machine.out,
            checkpoint_every=machine.checkpoint_every,
            save_network=machine.save_network,
            save_buffer_images=machine.save_buffer_images,
            until_task=machine.until_task,
            tuned=tuned,
            index=index,
        )
    if redo:
        redo_jobs(jobs)
    todo = remaining(jobs)
    ended = [job for job in jobs if job not in todo]
    tidy(ended)
    failures = past_failures(ended)
    if ended:
        say(f"{len(ended)} of {len(jobs)} runs are already in {machine.out}")
    for line in [*outdated(ended, cache(lambda name: loaded[name].fingerprint())), *failures]:
        say(line)
    for job in todo:
        check_writable(job.folder)
    for one in settings:
        if own := [job.seed for job in todo if job.settings == one]:
            say(in_words(one, own))
    if restart:
        restart_jobs(todo)
    return Plan(jobs, todo, failures)
