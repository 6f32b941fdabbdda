"""Training runs side by side, from the first task to the last."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence

from cler.engine.events import Emit, Evaluated, EvaluatedWithin, Failed, Finished, Message, Progress, Started, ignore
from cler.engine.losses import means
from cler.engine.run import UNAIDED, Run, matmul_precision
from cler.engine.steps import make_stepper, synchronize

REPORT_SECONDS = 0.25
"""How often progress is reported, and the losses are looked at."""


class Control:
    """What the caller of training controls: its end, how a GPU takes steps, how runs are saved. This saves nothing."""

    checkpoint_every: float = math.inf
    """Seconds between two checkpoints within a task."""
    stop: BaseException | None = None
    """Set at any moment, as by Ctrl-C: training ends after the step at hand, with a checkpoint, by raising it."""
    until_task: int | None = None
    """Training ends after this many tasks, with a checkpoint if there are more; None for all of them."""
    graph: bool = True
    """Whether a GPU records steps; unrecorded ones are for debugging."""

    def keep(self, run: Run) -> None:
        """Save a run as it is now, between two steps or tasks."""


def train(runs: Sequence[Run], emit: Emit = ignore, control: Control | None = None) -> None:
    """Train runs that share device, precision, schedule and position, from there to the end of their tasks.

    `control` may end training earlier. Results are in each run's `accuracy`. A run whose loss is no longer finite, or
    whose outputs are not numbers, is left out as soon as that is noticed, with its `failure` set; the others continue.
    """
    control = control or Control()
    if len({(str(run.phases), run.precision, run.device, run.task, run.taken) for run in runs}) > 1:
        raise ValueError("runs trained side by side have to share schedule, precision and device, and where they stand")
    for run in runs:
        run.at_once = len(runs)
        emit(Started(run.name, run.task, run.taken, run.schedule))
    with matmul_precision(runs[0].precision):
        for run in runs:
            run.look_ahead()
        training = _Training(runs, emit, control)
        for task in range(len(runs[0].schedule))[runs[0].task : control.until_task]:
            training.take_steps(task)
            training.end_task(task)
            if control.stop is not None:
                raise control.stop
            if not training.runs:
                return


class _Training:
    """Runs side by side that have not failed, and how they take their steps."""

    def __init__(self, runs: Sequence[Run], emit: Emit, control: Control) -> None:
        self.runs, self.emit, self.control = runs, emit, control
        self._counted = 0.0
        """Up to when the seconds of the runs are counted."""
        self._make_stepper()

    def take_steps(self, task: int) -> None:
        """Take the remaining steps of a task, for all runs; ends early if every run has failed."""
        device, control = self.runs[0].device, self.control
        begun = done = self.runs[0].taken
        if not begun:
            for run in self.runs:
                run.begin_task(task)
        self.stepper.prepare()
        steps = self.runs[0].schedule[task]
        phases = self.runs[0].phases[task]
        later = dict(zip(itertools.accumulate(phases.values()), list(phases)[1:], strict=False))
        start = reported = kept = self._counted = time.perf_counter()
        for done in range(begun + 1, steps + 1):
            if done - 1 in later:
                self._begin_phase(later[done - 1])
            self.stepper.step()
            self._evaluate_within(task, done)
            if done == steps:
                synchronize(device)  # for the last report to tell the losses of every step
            now = time.perf_counter()
            if now - reported >= REPORT_SECONDS or done == steps:
                reported = now
                self._count(done, now)
                self.emit(self._progress(task, done, (done - begun) / (now - start)))
                self._leave_out_failed(task, wait=False)
                if not self.runs:
                    return
            if now - kept >= control.checkpoint_every or control.stop is not None:
                synchronize(device)
                self._count(done, time.perf_counter())
                for run in self.runs:
                    control.keep(run)
                kept = self._counted = time.perf_counter()
            if control.stop is not None:
                raise control.stop
        synchronize(device)
        self._count(done, time.perf_counter())
        self._leave_out_failed(task, wait=True)

    def end_task(self, task: int) -> None:
        """Evaluate the runs, and save those that have tasks left."""
        start = time.perf_counter()
        for run in self.runs:
            run.end_task(task)
            run.evaluate(task)
        elapsed = time.perf_counter() - start
        for run in self.runs:
            run.seconds += elapsed  # of all of them, as its steps are
            if run.failure is None:
                told = {name: tuple(rows[-1]) for name, rows in run.accuracy.items() if not name.startswith(UNAIDED)}
                self.emit(Evaluated(run.name, task, told))
            if run.complete and run.running_accuracy is not None:
                self.emit(Finished(run.name, run.running_accuracy))
        if self.runs:
            self._leave_out_failed(task, wait=True)
        for run in self.runs:
            if not run.complete:
                self.control.keep(run)

    def _make_stepper(self) -> None:
        self.stepper = make_stepper(self.runs, lambda line: self.emit(Message(line)), graph=self.control.graph)

    def _begin_phase(self, phase: str) -> None:
        """The steps from here on are of another kind."""
        for run in self.runs:
            run.begin_phase(phase)
        self.stepper.prepare()

    def _evaluate_within(self, task: int, step: int) -> None:
        """Test the runs between two steps, where that is asked for."""
        for run in self.runs:
            if found := run.evaluate_within(task, step):
                accuracy = {name: tuple(row) for name, row in found.items()}
                self.emit(EvaluatedWithin(run.name, task, step, accuracy))

    def _count(self, taken: int, now: float) -> None:
        """Note how many steps of their task the runs have taken, and add the seconds since the last call."""
        for run in self.runs:
            run.steps_done += taken - run.taken
            run.taken = taken
            run.seconds += now - self._counted
        self._counted = now

    def _leave_out_failed(self, task: int, *, wait: bool) -> None:
        """Check the losses; runs that have failed are dropped, the others continue."""
        for run in self.runs:
            run.check(task, wait=wait)
        failed = [run for run in self.runs if run.failure is not None]
        if failed:
            self.runs = [run for run in self.runs if run.failure is None]
        for run in failed:
            self.emit(Failed(run.name, str(run.failure)))
        if failed and self.runs:
            self._make_stepper()
            self.stepper.prepare()

    def _progress(self, task: int, step: int, steps_per_second: float) -> Progress:
        """The progress of the runs, which each take this many steps per second."""
        schedule = self.runs[0].schedule
        accuracies = [run.running_accuracy for run in self.runs if run.running_accuracy is not None]
        sums = tuple(run.losses.since_last(wait=step == schedule[task]) for run in self.runs)
        return Progress(
            runs=tuple(run.name for run in self.runs),
            task=task,
            tasks=len(schedule),
            step=step,
            steps=schedule[task],
            done=(sum(schedule[:task]) + step) / sum(schedule[: self.control.until_task]),
            steps_per_second=len(self.runs) * steps_per_second,
            accuracy=sum(accuracies) / len(accuracies) if accuracies else None,
            losses=_mean_of_runs([means(each) for each in sums]),
            sums=sums,
        )


def _mean_of_runs(losses: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each loss term over the runs that have it."""
    names = dict.fromkeys(name for each in losses for name in each)
    found = {name: [each[name] for each in losses if name in each] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}
