"""Training a group of runs side by side, from the first task to the last."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cler.engine.run import Run, matmul_precision
from cler.engine.steps import make_stepper, synchronize

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
        """When a run is left out because it has diverged."""

    def message(self, text: str) -> None:
        """Something that a person should know."""

    def message_once(self, text: str) -> None:
        """The same, of which once is enough."""
        self.message(text)


def train(runs: Sequence[Run], listener: Listener | None = None) -> None:
    """Train runs that share a device, a precision, a schedule and where they stand in it, from there to the end.

    Results are in each run's `accuracy`. A run whose loss stops being finite, or whose network says what is not a
    number, is left out as soon as that is noticed, with its `failure` set; the others go on.
    """
    listener = listener or Listener()
    if len({(str(run.phases), run.precision, run.device, run.task, run.taken) for run in runs}) > 1:
        raise ValueError("runs trained side by side have to share schedule, precision and device, and where they stand")
    for run in runs:
        run.at_once = len(runs)
    with matmul_precision(runs[0].precision):
        group = _Group(runs, listener)
        for task in range(runs[0].task, len(runs[0].schedule)):
            _train_task(group, task)
            if not group.runs:
                return
            start = time.perf_counter()
            for run in group.runs:
                run.end_task(task)
                run.evaluate(task)
            elapsed = time.perf_counter() - start
            for run in group.runs:
                run.seconds += elapsed  # of all of them, as its steps are
                if run.failure is None:
                    listener.evaluated(run, task)
            group.leave_out_failed(task, wait=True)
            if not group.runs:
                return
            for run in group.runs:
                if not run.complete:
                    listener.checkpoint(run)


class _Group:
    """Runs side by side that have not failed, and how they take their steps."""

    def __init__(self, runs: Sequence[Run], listener: Listener) -> None:
        self.runs, self.listener = runs, listener
        self.stepper = make_stepper(runs, listener.message_once)

    def begin_phase(self, phase: str) -> None:
        """The steps from here on are of another kind."""
        for run in self.runs:
            run.begin_phase(phase)
        self.stepper.prepare()

    def leave_out_failed(self, task: int, *, wait: bool) -> None:
        """Look at the losses; the runs that go on do so without those that have failed."""
        for run in self.runs:
            run.check(task, wait=wait)
        failed = [run for run in self.runs if run.failure is not None]
        for run in failed:
            self.listener.failed(run)
        if failed:
            self.runs = [run for run in self.runs if run.failure is None]
        if failed and self.runs:
            self.stepper = make_stepper(self.runs, self.listener.message_once)
            self.stepper.prepare()


def _train_task(group: _Group, task: int) -> None:
    """What is left of one task, for all runs; ends early when every run has failed."""
    listener, device = group.listener, group.runs[0].device
    begun = done = group.runs[0].taken
    if not begun:
        for run in group.runs:
            run.begin_task(task)
    group.stepper.prepare()
    steps = group.runs[0].schedule[task]
    phases = group.runs[0].phases[task]
    later = dict(zip(itertools.accumulate(phases.values()), list(phases)[1:], strict=False))
    start = reported = kept = counted = time.perf_counter()
    for done in range(begun + 1, steps + 1):
        if done - 1 in later:
            group.begin_phase(later[done - 1])
        group.stepper.step()
        now = time.perf_counter()
        if now - reported >= REPORT_SECONDS or done == steps:
            listener.progress(_progress(group.runs, task, done, (done - begun) / (now - start)))
            _count(group.runs, done, now - counted)
            reported = counted = now
            group.leave_out_failed(task, wait=False)
            if not group.runs:
                return
        if now - kept >= listener.checkpoint_every or listener.stop:
            synchronize(device)
            _count(group.runs, done, time.perf_counter() - counted)
            for run in group.runs:
                listener.checkpoint(run)
            kept = counted = time.perf_counter()
        if listener.stop:
            raise KeyboardInterrupt
    synchronize(device)
    _count(group.runs, done, time.perf_counter() - counted)
    group.leave_out_failed(task, wait=True)


def _progress(runs: Sequence[Run], task: int, step: int, steps_per_second: float) -> Progress:
    """Where runs stand that take so many steps per second each."""
    schedule = runs[0].schedule
    accuracies = [run.running_accuracy for run in runs if run.running_accuracy is not None]
    return Progress(
        labels=tuple(run.label for run in runs),
        task=task,
        tasks=len(schedule),
        step=step,
        steps=schedule[task],
        done=(sum(schedule[:task]) + step) / sum(schedule),
        steps_per_second=len(runs) * steps_per_second,
        accuracy=sum(accuracies) / len(accuracies) if accuracies else None,
    )


def _count(runs: Sequence[Run], taken: int, seconds: float) -> None:
    """Note how far runs have come in their task, and the seconds since this was noted last."""
    for run in runs:
        run.steps_done += taken - run.taken
        run.taken = taken
        run.seconds += seconds
