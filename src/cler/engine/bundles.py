"""Many runs, in bundles that fit the device: the runs of a bundle are trained side by side."""

from __future__ import annotations

import gc
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TypeVar

import torch

from cler.engine.events import Emit, Message, ignore
from cler.engine.run import Run
from cler.engine.steps import lack_of_memory
from cler.engine.train import Control, train

Job = TypeVar("Job")
Claim = Callable[[Job], AbstractContextManager[bool]]
"""A context manager that tells whether a job is to be done here, and keeps other processes from it inside the block."""
MOST_AT_ONCE = 10
"""How many runs side by side fill a large GPU; more gain little."""


def train_in_bundles(
    jobs: Sequence[Job],
    build: Callable[[Job], Run],
    *,
    kind: Callable[[Job], Hashable],
    stands: Callable[[Job], Hashable] = lambda job: 0,
    claim: Claim[Job] = lambda job: nullcontext(True),
    at_once: int | None = None,
    emit: Emit = ignore,
    control: Control | None = None,
) -> None:
    """Train every job: those of equal `kind` that are at the same step side by side, `at_once` at a time.

    The kind is what runs have to share (schedule, precision). A job is claimed when its bundle begins, and left out if
    another process has it; then `stands` tells how far it is, or None for one that has ended. Without `at_once`, the
    memory that one run needs decides how many are trained side by side. If the device runs out of memory anyway, half
    as many are trained at once: jobs of the bundle that have not ended are built again, each from where it is by then.
    """
    control = control or Control()
    waiting = [(members, at_once) for members in grouped(jobs, kind)]
    while waiting:
        if control.stop is not None:
            raise control.stop
        members, size = waiting.pop(0)
        again: list[list[Job]] = []
        with ExitStack() as held:
            first, others = _claimed(members, 1, claim, held)
            if first and others and size is None:
                size = how_many_fit(build, first[0], len(members))
            more, others = _claimed(others, (size or 1) - len(first), claim, held)
            ours = [*first, *more]
            alike = grouped(ours, stands) if len(ours) > 1 else [ours]
            bundle, *apart = alike or [[]]
            runs: list[Run] = []
            try:
                if bundle:
                    runs, longer = _build_alike(bundle, build, emit)
                    train(runs, emit, control)
                    apart += longer
            except RuntimeError as error:
                if len(bundle) == 1 or not lack_of_memory(error):
                    raise
                size = (len(bundle) + 1) // 2
                emit(Message(f"out of memory with {len(bundle)} runs at once; continuing with {size}"))
                again = grouped(bundle, stands)
            finally:
                del runs  # whose memory others need
        waiting = [(left, size) for left in (*again, *apart, others) if left] + waiting
        release_memory()


def _build_alike(jobs: Sequence[Job], build: Callable[[Job], Run], emit: Emit) -> tuple[list[Run], list[list[Job]]]:
    """The runs with the same schedule as the first one, and the other jobs, grouped by schedule.

    Schedules differ where the seed decides which task a class comes in, and classes differ in their number of images; a
    message says so.
    """
    built = [(job, build(job)) for job in jobs]
    same, *others = grouped(built, lambda each: str(each[1].phases))
    left = [[job for job, _ in each] for each in others]
    if left:
        count = sum(map(len, left))
        emit(Message(f"{count} of {len(jobs)} runs have tasks of another length: they are trained after the others"))
    return [run for _, run in same], left


def grouped(jobs: Sequence[Job], key: Callable[[Job], Hashable]) -> list[list[Job]]:
    """The jobs that have a key, those with equal ones together."""
    bundles: dict[Hashable, list[Job]] = defaultdict(list)
    for job in jobs:
        bundles[key(job)].append(job)
    bundles.pop(None, None)
    return list(bundles.values())


def _claimed(jobs: Sequence[Job], count: int, claim: Claim[Job], held: ExitStack) -> tuple[list[Job], list[Job]]:
    """The first `count` jobs that could be claimed, and the jobs that were not tried."""
    ours: list[Job] = []
    left = list(jobs)
    while left and len(ours) < count:
        job = left.pop(0)
        if held.enter_context(claim(job)):
            ours.append(job)
    return ours, left


def how_many_fit(build: Callable[[Job], Run], job: Job, wanted: int) -> int:
    """How many runs like this one fit side by side, by the memory it takes to build one and take a step with replay."""
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
    """Bring runs to the beginning of their second task, with enough in the buffer to replay a batch.

    With a single task, they begin that. A run that is in a later task begins that one again. The next steps are those
    of `phase`.
    """
    for run in runs:
        run.begin_task(run.task)
        if run.task == 0 and len(run.schedule) > 1:
            enough = math.ceil(run.method.setup.replay_batch / run.stream.batch)
            for _ in range(min(enough, run.schedule[0])):
                run.step()
            run.end_task(0)
            run.begin_task(1)
        run.begin_phase(phase)


def release_memory() -> None:
    """Return the memory of finished runs to the GPU, if there is one."""
    if torch.cuda.is_available():
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # 65 MB for each stream that a run has had
        torch.cuda.empty_cache()
