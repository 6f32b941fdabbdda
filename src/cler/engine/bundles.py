"""Many runs, in groups that fit the device."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch

from cler.engine.run import Run
from cler.engine.steps import lack_of_memory
from cler.engine.train import Listener, train

Job = TypeVar("Job")
MOST_AT_ONCE = 10
"""Branches that fill a large GPU; more of them gain little."""


def train_in_groups(
    jobs: Sequence[Job],
    build: Callable[[Job], Run],
    *,
    key: Callable[[Job], Hashable],
    at_once: int | None = None,
    listener: Listener | None = None,
) -> None:
    """Train every job, those with equal `key` side by side, `at_once` at a time.

    The key tells what runs have to share (schedule, precision, where they stand), or is None for a job that has ended.
    Without `at_once` a first look at what one run needs decides. When the device runs out of memory all the same, half
    as many are trained at once: those of the group that have not ended are built again, each from where it stands now.
    """
    listener = listener or Listener()
    waiting = [(members, at_once) for members in _alike(jobs, key)]
    while waiting:
        members, size = waiting.pop(0)
        size = size or how_many_fit(build, members[0], len(members))
        group, others = members[:size], members[size:]
        again: list[list[Job]] = []
        try:
            train([build(job) for job in group], listener)
        except RuntimeError as error:
            if len(group) == 1 or not lack_of_memory(error):
                raise
            size = (len(group) + 1) // 2
            listener.message(f"out of memory with {len(group)} runs at once; going on with {size}")
            again = _alike(group, key)
        waiting = [(left, size) for left in (*again, others) if left] + waiting
        release_memory()


def _alike(jobs: Sequence[Job], key: Callable[[Job], Hashable]) -> list[list[Job]]:
    """The jobs that have not ended, those with equal key together."""
    groups: dict[Hashable, list[Job]] = defaultdict(list)
    for job in jobs:
        groups[key(job)].append(job)
    groups.pop(None, None)
    return list(groups.values())


def how_many_fit(build: Callable[[Job], Run], job: Job, wanted: int) -> int:
    """How many runs like this one fit side by side, judged by the memory that it takes to build it and to replay."""
    device = build(job).device  # that run is gone again, but the images, which all runs share, are loaded now
    if device.type != "cuda":
        return 1
    release_memory()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run = build(job)
    begin_second_task([run])
    run.step()
    torch.cuda.synchronize(device)
    needed = torch.cuda.max_memory_allocated(device) - before
    del run
    release_memory()
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(wanted, MOST_AT_ONCE, int(0.5 * free // needed)))


def begin_second_task(runs: Sequence[Run], phase: str = "observe") -> None:
    """After a glimpse of the first one, for the second to have something to replay; the first if there is only one.

    A run that stands in a later task begins that one, again if need be. The steps that follow are those of `phase`.
    """
    for run in runs:
        run.begin_task(run.task)
        if run.task == 0 and len(run.schedule) > 1:
            run.step()
            run.end_task(0)
            run.begin_task(1)
        run.begin_phase(phase)


def release_memory() -> None:
    """Hand memory of finished runs back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()  # 65 MB for each stream that a run has had
        torch.cuda.empty_cache()
