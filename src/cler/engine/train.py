"""Training a group of runs side by side, from the first task to the last."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cler.engine.run import Run, matmul_precision
from cler.engine.steps import Stepper, make_stepper

REPORT_SECONDS = 0.25
"""How often progress is reported, and the losses are looked at."""


@dataclass(frozen=True)
class Progress:
    """Where a group of runs stands."""

    labels: tuple[str, ...]
    task: int
    tasks: int
    step: int
    steps: int
    done: float
    """Share of all steps, 0 to 1."""
    steps_per_second: float
    """Of all the runs together."""
    accuracy: float | None
    """Class-incremental, mean over the runs, as of the last evaluation."""


class Listener:
    """Is told what happens; this one does nothing with it."""

    checkpoint_every: float = math.inf
    """Seconds between two checkpoints within a task."""
    stop: bool = False
    """Set at any moment, as by Ctrl-C: training ends after the step at hand, with a checkpoint."""

    def progress(self, progress: Progress) -> None:
        """A few times a second."""

    def evaluated(self, run: Run, task: int) -> None:
        """After a task of a run has been evaluated."""

    def checkpoint(self, run: Run) -> None:
        """A run stands between two steps or tasks, to be kept as it is now."""

    def failed(self, run: Run) -> None:
        """When a run stops because its loss is no longer finite."""

    def message(self, text: str) -> None:
        """Something that a person should know."""


def train(runs: Sequence[Run], listener: Listener | None = None) -> None:
    """Train runs that share a device, a precision, a schedule and where they stand in it, from there to the end.

    Results are in each run's `accuracy`. A run whose loss stops being finite is left out from then on, with its
    `failure` set; the others go on.
    """
    listener = listener or Listener()
    alive = list(runs)
    if len({(run.schedule, run.precision, run.device, run.task, run.taken) for run in runs}) > 1:
        raise ValueError("runs trained side by side have to share schedule, precision and device, and where they stand")
    for run in runs:
        run.at_once = len(runs)
    with matmul_precision(runs[0].precision):
        stepper = make_stepper(alive, listener.message)
        for task in range(runs[0].task, len(runs[0].schedule)):
            _train_task(alive, task, stepper, listener)
            for run in alive:
                run.check(task)
                if run.failure is not None:
                    listener.failed(run)
            if any(run.failure for run in alive):
                alive = [run for run in alive if run.failure is None]
                if not alive:
                    return
                stepper = make_stepper(alive, listener.message)
            for run in alive:
                start = time.perf_counter()
                run.end_task(task)
                run.evaluate(task)
                run.seconds += time.perf_counter() - start
                listener.evaluated(run, task)
            for run in alive:
                if not run.complete:
                    listener.checkpoint(run)


def _train_task(runs: Sequence[Run], task: int, stepper: Stepper, listener: Listener) -> None:
    """What is left of one task, for all runs; ends early when every run has failed."""
    begun = done = runs[0].taken
    if not begun:
        for run in runs:
            run.begin_task(task)
    stepper.begin_task()
    schedule = runs[0].schedule
    before, steps = sum(schedule[:task]), schedule[task]
    start = reported = kept = counted = time.perf_counter()
    for done in range(begun + 1, steps + 1):
        stepper.step()
        now = time.perf_counter()
        if now - reported >= REPORT_SECONDS or done == steps:
            reported = now
            accuracies = [run.running_accuracy for run in runs if run.running_accuracy is not None]
            listener.progress(
                Progress(
                    labels=tuple(run.label for run in runs),
                    task=task,
                    tasks=len(schedule),
                    step=done,
                    steps=steps,
                    done=(before + done) / sum(schedule),
                    steps_per_second=len(runs) * (done - begun) / (now - start),
                    accuracy=sum(accuracies) / len(accuracies) if accuracies else None,
                )
            )
            for run in runs:
                run.check(task)
            if all(run.failure for run in runs):
                break
        if now - kept >= listener.checkpoint_every or listener.stop:
            _count(runs, done, now - counted)
            counted = now
            for run in runs:
                listener.checkpoint(run)
            kept = time.perf_counter()
        if listener.stop:
            raise KeyboardInterrupt
    if runs[0].device.type == "cuda":
        torch.cuda.synchronize(runs[0].device)
    _count(runs, done, time.perf_counter() - counted)


def _count(runs: Sequence[Run], taken: int, seconds: float) -> None:
    """Note how far runs have come in their task, and the seconds since this was noted last."""
    for run in runs:
        run.steps_done += taken - run.taken
        run.taken = taken
        run.seconds += seconds
