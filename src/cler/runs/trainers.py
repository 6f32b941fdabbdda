"""Training bundles of jobs in this process: side by side on a GPU, one job after the other on a CPU."""

from __future__ import annotations

import signal
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from cler.config.comparing import benchmark_settings
from cler.config.machine import Machine
from cler.engine.bundles import grouped, train_in_bundles
from cler.engine.events import Emit
from cler.methods import find_method
from cler.runs.jobs import Job, claimed
from cler.runs.loading import Builder, Loaded
from cler.runs.machine import threads
from cler.runs.record import Recorder
from cler.signals import STOPPING, stopping_after_a_step

Bundle = Sequence[Job]
"""Jobs for one device, which trains those that are at the same step side by side, as many as fit."""


def in_bundles(jobs: Sequence[Job], size: int) -> list[Bundle]:
    """The jobs in bundles of at most `size`, each of jobs that can be trained side by side."""
    return [alike[first : first + size] for alike in grouped(jobs, _kind) for first in range(0, len(alike), size)]


def _kind(job: Job) -> Hashable:
    """What jobs must share to be trained side by side: schedule, where they stop, precision, images."""
    method, settings = find_method(job.settings.method), job.settings
    later = method.phases(settings.method_options, 1, epoch=1, epochs=settings.epochs)
    same = ("dataset", "precision", *benchmark_settings())
    return (method.merged, *later.items(), job.until_task, *(getattr(settings, name) for name in same))


def train_bundles(
    bundles: Iterable[Bundle],
    machine: Machine,
    emit: Emit,
    *,
    signals: Sequence[signal.Signals] = STOPPING,
    attempt: Path | None = None,
    loaded: Loaded | None = None,
) -> None:
    """Train one bundle after the other on the machine's device, in this process; every machine runs this same function.

    The jobs of a bundle that are at the same step are trained side by side, as many as fit; on a CPU, one by one.
    Locks, checkpoints and results are made here, and `emit` gets every event. `attempt` is the folder of the attempt
    that this is, if any. `loaded` has the datasets that are in memory already; others are added, for the next call.
    """
    on_cpu = machine.device == "cpu"

    @contextmanager
    def claim(job: Job) -> Iterator[bool]:
        with claimed(job, recorder.hear, attempt) as todo, threads(job.settings.threads) if on_cpu else nullcontext():
            try:
                yield todo
            finally:
                recorder.settle(job.folder)  # a checkpoint is written while the job is still ours, or not at all

    with Recorder(emit, machine) as recorder, stopping_after_a_step(recorder, signals):
        build = Builder(recorder, loaded)
        for bundle in bundles:
            train_in_bundles(
                bundle,
                build,
                kind=_kind,
                stands=recorder.stands,
                claim=claim,
                at_once=machine.at_once or (1 if on_cpu else None),
                emit=recorder.hear,
                control=recorder,
            )
