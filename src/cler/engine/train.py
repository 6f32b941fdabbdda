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
    """What the caller of training controls: when it stops, and how runs are saved. This one saves nothing."""

    checkpoint_every: float = math.inf
    """Seconds between two checkpoints within a task."""
    stop: BaseException | None = None
    """Set at any moment, as by Ctrl-C: training ends after the step at hand, with a checkpoint, by raising it."""
    until_task: int | None = None
    """Training ends after this many tasks, with a checkpoint if there are more; None for all of them."""

    def keep(self, run: Run) -> None:
        """Save a run as it is now, between two steps or tasks."""


def train(runs: Sequence[Run], emit: Emit = ignore, control: Control | None = None, *, graph: bool = True) -> None:
    """Train runs that share device, precision, schedule and position, from there to the end of their tasks.

    `control` may end training earlier. Results are in each run's `accuracy`. A run whose loss is no longer finite, or
    whose outputs are not numbers, is left out as soon as that is noticed, with its `failure` set; the others continue.
    Without `graph`, for debugging, a GPU records no steps.
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
        bundle = _Bundle(runs, emit, graph)
        for task in range(len(runs[0].schedule))[runs[0].task : control.until_task]:
            _train_task(bundle, task, control)
            _end_task(bundle, task, control)
            if control.stop is not None:
                raise control.stop
            if not bundle.runs:
                return


class _Bundle:
    """Runs side by side that have not failed, and how they take their steps."""

    def __init__(self, runs: Sequence[Run], emit: Emit, graph: bool) -> None:
        self.runs, self.emit, self.graph = runs, emit, graph
        self._make_stepper()

    def _make_stepper(self) -> None:
        self.stepper = make_stepper(self.runs, lambda line: self.emit(Message(line)), graph=self.graph)

    def begin_phase(self, phase: str) -> None:
        """The steps from here on are of another kind."""
        for run in self.runs:
            run.begin_phase(phase)
        self.stepper.prepare()

    def leave_out_failed(self, task: int, *, wait: bool) -> None:
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


def _train_task(bundle: _Bundle, task: int, control: Control) -> None:
    """Take the remaining steps of a task, for all runs; ends early if every run has failed."""
    device = bundle.runs[0].device
    begun = done = bundle.runs[0].taken
    if not begun:
        for run in bundle.runs:
            run.begin_task(task)
    bundle.stepper.prepare()
    steps = bundle.runs[0].schedule[task]
    phases = bundle.runs[0].phases[task]
    later = dict(zip(itertools.accumulate(phases.values()), list(phases)[1:], strict=False))
    start = reported = kept = counted = time.perf_counter()
    for done in range(begun + 1, steps + 1):
        if done - 1 in later:
            bundle.begin_phase(later[done - 1])
        bundle.stepper.step()
        for run in bundle.runs:
            if found := run.evaluate_within(task, done):
                accuracy = {name: tuple(row) for name, row in found.items()}
                bundle.emit(EvaluatedWithin(run.name, task, done, accuracy))
        if done == steps:
            synchronize(device)  # for the last report to tell the losses of every step
        now = time.perf_counter()
        if now - reported >= REPORT_SECONDS or done == steps:
            _count(bundle.runs, done, now - counted)
            reported = counted = now
            bundle.emit(_progress(bundle.runs, task, done, (done - begun) / (now - start), control.until_task))
            bundle.leave_out_failed(task, wait=False)
            if not bundle.runs:
                return
        if now - kept >= control.checkpoint_every or control.stop is not None:
            synchronize(device)
            _count(bundle.runs, done, time.perf_counter() - counted)
            for run in bundle.runs:
                control.keep(run)
            kept = counted = time.perf_counter()
        if control.stop is not None:
            raise control.stop
    synchronize(device)
    _count(bundle.runs, done, time.perf_counter() - counted)
    bundle.leave_out_failed(task, wait=True)


def _end_task(bundle: _Bundle, task: int, control: Control) -> None:
    """Evaluate the runs, and save those that have tasks left."""
    start = time.perf_counter()
    for run in bundle.runs:
        run.end_task(task)
        run.evaluate(task)
    elapsed = time.perf_counter() - start
    for run in bundle.runs:
        run.seconds += elapsed  # of all of them, as its steps are
        if run.failure is None:
            told = {name: tuple(rows[-1]) for name, rows in run.accuracy.items() if not name.startswith(UNAIDED)}
            bundle.emit(Evaluated(run.name, task, told))
        if run.complete and run.running_accuracy is not None:
            bundle.emit(Finished(run.name, run.running_accuracy))
    if bundle.runs:
        bundle.leave_out_failed(task, wait=True)
    for run in bundle.runs:
        if not run.complete:
            control.keep(run)


def _progress(runs: Sequence[Run], task: int, step: int, steps_per_second: float, until: int | None) -> Progress:
    """The progress of runs that each take this many steps per second, and stop after `until` tasks."""
    schedule = runs[0].schedule
    accuracies = [run.running_accuracy for run in runs if run.running_accuracy is not None]
    sums = tuple(run.losses.since_last(wait=step == schedule[task]) for run in runs)
    return Progress(
        runs=tuple(run.name for run in runs),
        task=task,
        tasks=len(schedule),
        step=step,
        steps=schedule[task],
        done=(sum(schedule[:task]) + step) / sum(schedule[:until]),
        steps_per_second=len(runs) * steps_per_second,
        accuracy=sum(accuracies) / len(accuracies) if accuracies else None,
        losses=_mean_of_runs([means(each) for each in sums]),
        sums=sums,
    )


def _mean_of_runs(losses: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each loss term over the runs that have it."""
    names = dict.fromkeys(name for each in losses for name in each)
    found = {name: [each[name] for each in losses if name in each] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}


def _count(runs: Sequence[Run], taken: int, seconds: float) -> None:
    """Note how many steps of their task the runs have taken, and add the seconds since the last call."""
    for run in runs:
        run.steps_done += taken - run.taken
        run.taken = taken
        run.seconds += seconds
