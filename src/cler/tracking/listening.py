"""How trackers hear of runs: each in a thread of its own, so that training neither waits for one nor ends by one."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import Full, Queue

from cler.engine.events import (
    Elsewhere,
    Evaluated,
    EvaluatedWithin,
    Event,
    Failed,
    Finished,
    Progress,
    RunName,
    Started,
)
from cler.engine.losses import Sums, merged
from cler.errors import UsageError, one_line
from cler.files import read_json, write_json
from cler.tracking.base import TRACKERS, Table, TrackedRun, Tracker
from cler.tracking.figures import of_accuracy, of_losses, of_the_machine

POINT_SECONDS = 2.0
"""Seconds between two points of a curve of the losses."""
END_SECONDS = 60.0
"""How long trackers are waited for when training has ended."""
MOST_WAITING = 10_000
"""Events, half an hour of them, that a tracker may be behind."""


class Tracking:
    """Hands events to the trackers of each run; one that fails, in whatever way, is left out, and `say` says so once.

    To be closed at the end, which takes `END_SECONDS` at most.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._listeners: dict[str, _Listener] = {}

    def follow(self, run: RunName, track: str | None) -> None:
        """From here on the run's events are for these trackers, whose names are joined by '+'."""
        for name in track.split("+") if track and run.folder else ():
            if name not in self._listeners:
                self._listeners[name] = _Listener(name)
            self._listeners[name].runs.add(run)

    def hear(self, event: Event) -> None:
        """Pass an event on, without waiting."""
        for listener in self._listeners.values():
            listener.put(event)
        self._tell_failures()

    def close(self) -> None:
        """Let the trackers end, those too of runs that have been stopped; waits for them, but not for ever."""
        deadline = time.monotonic() + END_SECONDS
        for listener in self._listeners.values():
            listener.put(None)
        for listener in self._listeners.values():
            listener.wait(deadline)
        self._tell_failures()
        self._listeners.clear()

    def _tell_failures(self) -> None:
        for listener in self._listeners.values():
            if listener.failure is not None and not listener.told:
                listener.told = True
                self._say(f"{listener.name} failed and records nothing more; runs are not affected: {listener.failure}")


class _Listener:
    """The thread of one tracker, in which it follows all its runs."""

    def __init__(self, name: str) -> None:
        self.name, self.told = name, False
        self.failure: str | None = None
        self.runs: set[RunName] = set()
        self._waiting: Queue[Event | None] = Queue(MOST_WAITING)
        self._followed: dict[RunName, _Followed] = {}
        self._thread = threading.Thread(target=self._listen, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, event: Event | None) -> None:
        """Queue an event, or None for the end."""
        if self.failure is None:
            try:
                self._waiting.put_nowait(event)
            except Full:
                self.failure = f"it is {MOST_WAITING} events behind"

    def wait(self, deadline: float) -> None:
        """Wait for the end of the thread, at most until this moment."""
        if self.failure is None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive() and self.failure is None:
                self.failure = f"it did not end within {END_SECONDS:.0f} s"

    def _listen(self) -> None:
        try:
            while self.failure is None and (event := self._waiting.get()) is not None:
                self._hear(event)
        except BaseException as error:  # whatever a foreign package does, SystemExit included
            self.failure = one_line(f"{type(error).__name__}: {error}")
        for followed in list(self._followed.values()):
            try:
                followed.end(None)
            except BaseException as error:
                self.failure = self.failure or one_line(f"{type(error).__name__}: {error}")

    def _hear(self, event: Event) -> None:
        match event:
            case Started(run) if run in self.runs:
                if run in self._followed:  # it is built again, where memory did not suffice
                    self._followed.pop(run).end(None)
                self._followed[run] = _Followed(self.name, event)
            case Progress(runs=runs, sums=sums):
                machine = cache(lambda: of_the_machine(event.steps_per_second / len(runs)))  # once for all of them
                for run, new in zip(runs, sums, strict=True):
                    if run in self._followed:
                        self._followed[run].add_losses(event, new, machine)
            case Evaluated(run, task, accuracy) if run in self._followed:
                followed = self._followed[run]
                followed.add_accuracy(followed.steps_until(task + 1), accuracy)
            case EvaluatedWithin(run, task, step, accuracy) if run in self._followed:
                followed = self._followed[run]
                followed.add_accuracy(followed.steps_until(task) + step, accuracy)
            case Finished(run, metrics=metrics) if run in self._followed:
                self._followed.pop(run).end(metrics)
            case Failed(run) if run in self._followed:
                self._followed.pop(run).end(None)
            case Elsewhere(run):  # which writes there from now on
                self._followed.pop(run, None)


class _Followed:
    """What one tracker is told of one run: no step of a curve twice, also where a run is resumed."""

    def __init__(self, name: str, started: Started) -> None:
        run, folder = started.run, started.run.folder
        assert folder is not None
        self._schedule = started.schedule
        self._memory = _Memory(folder / f"tracking-{name}.json")
        resumed = (started.task, started.step) != (0, 0) and self._memory.recall()
        tracked = TrackedRun(
            id=self._memory.id,
            label=run.label,
            group=folder.parent.name,
            folder=folder,
            seed=run.seed,
            settings=started.settings,
            resumed=resumed,
        )
        self._tracker: Tracker = TRACKERS.find(name)(tracked)
        self._losses: Sums = {}
        self._last = time.monotonic()

    def steps_until(self, task: int) -> int:
        """The steps of all tasks before this one."""
        return sum(self._schedule[:task])

    def add_losses(self, progress: Progress, new: Sums, machine: Callable[[], dict[str, float]]) -> None:
        """A point now and then and at the end of a task: means since the point before it, and the machine's figures."""
        self._losses = merged(self._losses, new)
        now = time.monotonic()
        if now - self._last < POINT_SECONDS and progress.step < progress.steps:
            return
        self._log("losses", self.steps_until(progress.task) + progress.step, of_losses(self._losses) | machine())
        self._losses, self._last = {}, now

    def add_accuracy(self, step: int, accuracy: dict[str, tuple[float, ...]]) -> None:
        """A point of the curves of accuracy."""
        self._log("accuracy", step, of_accuracy(accuracy))

    def end(self, metrics: Table | None) -> None:
        """The run has ended, with these metrics, of which those that it does not determine are left out.

        None stands for a run that was stopped.
        """
        known = metrics and {name: row for name, row in metrics.items() if not all(map(math.isnan, row.values()))}
        self._tracker.end(sum(self._schedule), known)

    def _log(self, curve: str, step: int, figures: dict[str, float]) -> None:
        if self._memory.is_new(curve, step):
            self._tracker.log(step, figures)


class _Memory:
    """A file beside a run: the run's name with the tracker, and the last step of each of its curves."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.id = uuid.uuid4().hex[:12]
        self._last: dict[str, int] = {}

    def recall(self) -> bool:
        """Continue what an earlier process began; returns whether it left a file."""
        with suppress(UsageError):  # which says that there is none, or none that can be read
            found = read_json(self._path)
            name, last = found.get("id"), found.get("last")
            if isinstance(name, str) and isinstance(last, dict) and all(type(step) is int for step in last.values()):
                self.id, self._last = name, last
                return True
        return False

    def is_new(self, curve: str, step: int) -> bool:
        """Whether a step is after the curve's last one; notes it before it is logged, so that none is logged twice."""
        if step <= self._last.get(curve, -1):
            return False
        self._last[curve] = step
        write_json(self._path, {"id": self.id, "last": self._last})
        return True
