"""Events of training: small frozen values that can be sent to another process.

The engine hands each event to one function, `emit`. The recorder, trackers, progress bars, worker processes and your
callbacks all get the same events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunName:
    """Which run an event is about."""

    label: str
    """The run's name in progress bars."""
    pair: str = ""
    """Method, regularizer and teacher, as in er-ace+jigsaw+ema."""
    seed: int = 0
    folder: Path | None = None
    """The run's folder, if it has one."""


@dataclass(frozen=True)
class Event:
    """Something that happened in training."""


@dataclass(frozen=True)
class Started(Event):
    """A run takes its first step, or its first one since it was resumed."""

    run: RunName
    task: int
    step: int
    """Steps of this task that had been taken before."""
    schedule: tuple[int, ...] = ()
    """Steps of each task."""
    settings: dict[str, Any] = field(default_factory=dict)
    """All settings of the run, if it is kept on disk."""


@dataclass(frozen=True)
class Progress(Event):
    """How far runs that train side by side have come; sent a few times a second, and at the end of each task."""

    runs: tuple[RunName, ...]
    task: int
    tasks: int
    step: int
    steps: int
    done: float
    """Share of all steps, 0 to 1; of those until where the runs are to stop, if that is earlier."""
    steps_per_second: float
    """Steps per second of all these runs together."""
    accuracy: float | None
    """Class-incremental accuracy, mean over the runs, as of the last evaluation."""
    losses: dict[str, float]
    """Mean of each loss term over the steps since the last report and over the runs; empty until a GPU, which is not
    waited for, has reported."""
    sums: tuple[dict[str, tuple[float, int]], ...] = ()
    """For each run: the sum of each loss term since the last report, and the number of steps in it."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the runs in progress bars."""
        return tuple(run.label for run in self.runs)


@dataclass(frozen=True)
class Evaluated(Event):
    """A task of a run has been learned, and the run tested."""

    run: RunName
    task: int
    accuracy: dict[str, tuple[float, ...]]
    """Accuracy in percent on each task, by scenario: class_il and task_il."""


@dataclass(frozen=True)
class EvaluatedWithin(Event):
    """A run has been tested between two steps of a task, because of the setting `evaluate_every`."""

    run: RunName
    task: int
    step: int
    """Steps of this task that had been taken."""
    accuracy: dict[str, tuple[float, ...]]
    """Accuracy in percent on each task so far, by scenario: class_il and task_il."""


@dataclass(frozen=True)
class Checkpointed(Event):
    """A checkpoint of a run has been written."""

    run: RunName
    task: int
    step: int
    """Steps of this task that had been taken."""


@dataclass(frozen=True)
class Finished(Event):
    """A run has learned all its tasks."""

    run: RunName
    accuracy: float
    """Class-incremental accuracy, mean over the tasks."""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Each of `cler.metrics.METRICS` by scenario, NaN if it is undefined; empty unless the run is kept on disk."""


@dataclass(frozen=True)
class Failed(Event):
    """A run is left out because it has diverged."""

    run: RunName
    why: str


@dataclass(frozen=True)
class Elsewhere(Event):
    """A run is left to another process, which is doing it or has just done it."""

    run: RunName
    complete: bool
    """Whether the other process has finished it."""


@dataclass(frozen=True)
class Decoding(Event):
    """A user's own dataset is being decoded on the machine that will train on it; sent a few times a second."""

    dataset: str
    decoded: int
    """Images so far."""
    images: int | None
    """Images in all, where that is known."""


@dataclass(frozen=True)
class Message(Event):
    """Something that you should know."""

    text: str


Emit = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Do nothing with an event."""


def each_line_once(emit: Emit) -> Emit:
    """A function that passes events on, but each message only once, whichever run or process it comes from."""
    said: set[str] = set()

    def hear(event: Event) -> None:
        if isinstance(event, Message):
            if event.text in said:
                return
            said.add(event.text)
        emit(event)

    return hear
