"""From jobs to finished runs on disk, in worker processes on a CPU and in groups on a GPU."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from cler.files import write_json, writing
from cler.runs.folders import check_writable, locked
from cler.runs.jobs import Job
from cler.runs.machine import workers_that_fit
from cler.runs.record import Watcher
from cler.runs.trainers import train_in_turn, train_on_gpu
from cler.runs.workers import train_in_processes

MOST_IN_QUEUE = 200
"""Runs that are locked at a time."""


def execute(
    jobs: Sequence[Job],
    *,
    device: torch.device,
    data_dir: Path | None = None,
    workers: int | None = None,
    at_once: int | None = None,
    watcher: Watcher | None = None,
) -> None:
    """Do all the jobs; results are in their folders.

    On a GPU `at_once` runs are trained side by side (default: as many as fit); on a CPU `workers` processes (default:
    as many as there are cores for the threads of each) take one job after the other.
    """
    for job in jobs:
        check_writable(job.folder)
    size = _most_in_queue()
    for first in range(0, len(jobs), size):
        some = jobs[first : first + size]
        with ExitStack() as locks:
            for job in some:
                locks.enter_context(locked(job.folder))
            for job in some:
                _prepare(job)
            _train(some, device, data_dir, workers, at_once, watcher or Watcher())


def _most_in_queue() -> int:
    """Each lock keeps a file open: together they take at most a quarter of what this process may."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_IN_QUEUE if files == resource.RLIM_INFINITY else max(1, min(MOST_IN_QUEUE, files // 4))


def _prepare(job: Job) -> None:
    """Write the settings, and clear what a process left that was killed while it wrote."""
    with writing(job.folder):
        for leftover in job.folder.glob(".*.tmp"):
            leftover.unlink()
        write_json(job.folder / "settings.json", {"settings": job.settings.to_dict(), "seed": job.seed})


def _train(
    jobs: Sequence[Job],
    device: torch.device,
    data_dir: Path | None,
    workers: int | None,
    at_once: int | None,
    watcher: Watcher,
) -> None:
    threads_of_a_run = max(job.settings.threads for job in jobs)
    workers = min(workers or workers_that_fit(threads_of_a_run), len(jobs))
    if device.type == "cuda":
        train_on_gpu(jobs, device, data_dir, at_once, watcher)
    elif workers > 1:
        train_in_processes(jobs, data_dir, workers, watcher)
    else:
        train_in_turn(jobs, data_dir, watcher)
