"""Many runs, in groups that fit the device."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch

from cler.engine.run import Run
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
    """Train every job, those with equal `key` (schedule, precision) side by side, `at_once` at a time.

    Without `at_once` a first look at what one run needs decides. When the device runs out of memory all the same, the
    group is halved and begun again; what other groups have finished stays finished.
    """
    listener = listener or Listener()
    alike: dict[Hashable, list[Job]] = defaultdict(list)
    for job in jobs:
        alike[key(job)].append(job)
    for members in alike.values():
        size = at_once or how_many_fit(build, members[0], len(members))
        waiting = [members[start : start + size] for start in range(0, len(members), size)]
        while waiting:
            group = waiting.pop(0)
            try:
                train([build(job) for job in group], listener)
            except torch.OutOfMemoryError:
                if len(group) == 1:
                    raise
                half = len(group) // 2
                listener.message(f"out of memory with {len(group)} runs at once; going on with {half}")
                waiting = [group[:half], group[half:], *waiting]
            release_memory()


def how_many_fit(build: Callable[[Job], Run], job: Job, wanted: int) -> int:
    """How many runs like this one fit side by side, judged by the memory that a first step of it takes."""
    run = build(job)
    if run.device.type != "cuda":
        return 1
    torch.cuda.reset_peak_memory_stats(run.device)
    before = torch.cuda.memory_allocated(run.device)
    run.begin_task(0)
    run.step()
    torch.cuda.synchronize(run.device)
    needed = torch.cuda.max_memory_allocated(run.device) - before
    needed += sum(tensor.nbytes for tensor in run.method.network.state_dict().values())
    del run
    release_memory()
    free, _ = torch.cuda.mem_get_info()
    return max(1, min(wanted, MOST_AT_ONCE, int(0.5 * free // needed)))


def release_memory() -> None:
    """Hand memory of finished runs back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
