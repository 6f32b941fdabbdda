"""Training a group of runs side by side, from the first task to the last."""

from __future__ import annotations

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

    def progress(self, progress: Progress) -> None:
        """A few times a second."""

    def evaluated(self, run: Run, task: int) -> None:
        """After a task of a run has been evaluated."""

    def failed(self, run: Run) -> None:
        """When a run stops because its loss is no longer finite."""

    def message(self, text: str) -> None:
        """Something that a person should know."""


def train(runs: Sequence[Run], listener: Listener | None = None) -> None:
    """Train runs that share a device, a precision and a schedule; results are in each run's `accuracy`.

    A run whose loss stops being finite is left out from then on, with its `failure` set; the others go on.
    """
    listener = listener or Listener()
    alive = list(runs)
    schedule, precision, device = runs[0].schedule, runs[0].precision, runs[0].device
    if any((run.schedule, run.precision, run.device) != (schedule, precision, device) for run in runs):
        raise ValueError("runs trained side by side have to share schedule, precision and device")
    with matmul_precision(precision):
        stepper = make_stepper(alive, listener.message)
        for task in range(len(schedule)):
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


def _train_task(runs: Sequence[Run], task: int, stepper: Stepper, listener: Listener) -> None:
    """All steps of one task, for all runs; ends early when every run has failed."""
    for run in runs:
        run.begin_task(task)
    stepper.begin_task()
    schedule = runs[0].schedule
    before, steps = sum(schedule[:task]), schedule[task]
    start = reported = time.perf_counter()
    done = 0
    for done in range(1, steps + 1):
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
                    steps_per_second=len(runs) * done / (now - start),
                    accuracy=sum(accuracies) / len(accuracies) if accuracies else None,
                )
            )
            for run in runs:
                run.check(task)
            if all(run.failure for run in runs):
                break
    if runs[0].device.type == "cuda":
        torch.cuda.synchronize(runs[0].device)
    seconds = time.perf_counter() - start
    for run in runs:
        run.seconds += seconds
        run.steps_done += done
