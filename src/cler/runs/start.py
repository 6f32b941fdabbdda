"""From settings and seeds to the runs that are left to train: checked against the data, finished ones found on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cler import data
from cler.config.comparing import in_words
from cler.config.settings import Machine, Settings
from cler.errors import UsageError
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
    loaded = {name: _loaded(name, machine, say) for name in dict.fromkeys(one.dataset for one in settings)}
    index = Index(machine.out)
    for one in settings:
        if (images := loaded[one.dataset]) is not None:
            check_fit(one, images, seeds)
        jobs += make_jobs(
            one,
            seeds,
            machine.out,
            checkpoint_every=machine.checkpoint_every,
            save_network=machine.save_network,
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
    prints = {name: images.fingerprint() if ended and images else None for name, images in loaded.items()}
    for line in [*outdated(ended, prints.get), *failures]:
        say(line)
    for job in todo:
        check_writable(job.folder)
    for one in settings:
        if own := [job.seed for job in todo if job.settings == one]:
            say(in_words(one, own))
    if restart:
        restart_jobs(todo)
    return Plan(jobs, todo, failures)


def _loaded(name: str, machine: Machine, say: Callable[[str], None]) -> data.ImageData | None:
    """The images of a dataset; None if they are not here and need not be, as other machines train."""
    try:
        return data.load(name, machine.data_dir)
    except UsageError as error:
        if machine.on == "local" or name not in data.names():
            raise
        say(f"not here, and needed where runs are trained: {error}")
        return None
