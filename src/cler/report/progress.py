"""Progress on the terminal: bars where there is one, plain lines where there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from types import TracebackType
from typing import Any

from rich import progress as bars
from rich.table import Column

from cler.data.images import Advance
from cler.engine.events import Decoding, Elsewhere, Evaluated, Event, Failed, Finished, Message, Progress, RunName
from cler.report.console import Terminal
from cler.report.numbers import duration

LINE_SECONDS = 30.0
"""How often a line says where a bundle of runs stands, where there is no terminal for bars."""
WIDE = 110
"""Columns of a terminal in which the step, which takes some, has room too."""
OF_THE_STEP = 18
BESIDES = 56
"""Columns that a row takes besides its name; in fewer than these and the shortest name it goes without the rate."""
SHORTEST = 12
"""Columns that a name gets in the narrowest terminal."""

_EMPTY: dict[str, Any] = dict.fromkeys(("task", "loss", "accuracy", "rate"), "")
"""What a row tells, from left to right."""


@dataclass
class _Row:
    """A bundle: runs that are trained side by side."""

    bar: bars.TaskID
    name: str
    last: Progress
    loss: float | None = None
    """Sum of the terms, as they were reported last."""
    said: float = -math.inf
    """When a line told of it."""
    learned: dict[RunName, tuple[int, float]] = field(default_factory=dict)
    """For each run: the last task after which it was evaluated, and its accuracy then."""


class ProgressBars:
    """A bar for all the runs and one for each bundle that is being trained: task, loss, accuracy, rate, time left.

    It hears events. Without a terminal, as in a log file, lines say the same: when a bundle starts, when it has learned
    a task, and every half a minute.
    """

    def __init__(self, console: Terminal, runs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self._clock = console, clock
        self.failures: list[str] = []
        self._runs, self._ended = runs, 0
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False, table_column=_column()),
            bars.BarColumn(bar_width=6),
            *(bars.TextColumn(f"{{task.fields[{name}]}}", markup=False, table_column=_column()) for name in _EMPTY),
            bars.TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            get_time=clock,
        )
        self._overall = self._bars.add_task(self._description, total=float(runs), **_EMPTY)
        self._rows: dict[tuple[RunName, ...], _Row] = {}
        self._shares: dict[RunName, float] = {}
        """How much of each run is done that has not ended."""
        self._decoding: dict[str, tuple[bars.TaskID, float]] = {}
        """For each dataset: its bar, and when a line last told of it."""

    def __enter__(self) -> ProgressBars:
        if self.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Show what has happened."""
        match event:
            case Progress():
                self._move(event)
            case Evaluated(run, task, accuracy):
                self._learn(run, task, fmean(accuracy["class_il"]))
            case Finished(run, accuracy):
                self._count(run)
                self._say(f"{self._so_far} {run.label}: class-incremental accuracy {accuracy:.2f}%")
            case Failed(run, why):
                self._count(run)
                self.failures.append(f"{run.label}: {why}")
                self._say(f"{run.label} stopped: {why}")
            case Elsewhere():
                self._runs -= 1
                self._bars.update(self._overall, total=float(self._runs), description=self._description)
            case Decoding(dataset, done, images):
                self._decode(dataset, done, images)
            case Message(text):
                self._say(text)

    @property
    def _description(self) -> str:
        return f"{self._ended} of {self._runs} runs"

    @property
    def _so_far(self) -> str:
        return f"[{self._ended}/{self._runs}]"

    def _decode(self, dataset: str, done: int, images: int | None) -> None:
        """Move the bar of a dataset that is being decoded, until it is."""
        bar, said = self._decoding.pop(dataset, (None, -math.inf))
        if bar is None:
            bar = self._bars.add_task(f"decoding {dataset}", **_EMPTY)
        if done == images:
            self._bars.remove_task(bar)
            return
        told = f"{done}" if images is None else f"{done} of {images}"
        self._bars.update(bar, completed=done, total=images, **{**_EMPTY, "task": told})
        if not self.console.is_terminal and self._clock() - said >= LINE_SECONDS:
            self._say(f"decoding {dataset}: {told} images")
            said = self._clock()
        self._decoding[dataset] = bar, said

    def _move(self, progress: Progress) -> None:
        """Move the bar of the runs that this is about."""
        key = progress.runs
        if key not in self._rows:
            self._remove_rows(lambda other: not set(other).isdisjoint(key))  # of those they were trained beside before
            bar = self._bars.add_task("", total=1.0, **_EMPTY)
            self._rows[key] = _Row(bar, _name(progress), progress)
        row = self._rows[key]
        row.last = progress
        row.loss = sum(progress.losses.values()) if progress.losses else row.loss
        width = self.console.width
        room = max(SHORTEST, width - BESIDES - (OF_THE_STEP if width >= WIDE else 0))
        task = f"task {progress.task + 1}/{progress.tasks}"
        step = f"step {progress.step}/{progress.steps}"
        shown: dict[str, Any] = {
            "task": f"{task} {step}" if width >= WIDE else task,
            "loss": "" if row.loss is None else f"loss {row.loss:.2f}",
            "accuracy": "" if progress.accuracy is None else f"acc {progress.accuracy:.0f}%",
            "rate": _rate(progress) if width >= BESIDES + SHORTEST else "",
        }
        self._bars.update(row.bar, completed=progress.done, description=_cut(row.name, room), **shown)
        self._shares |= dict.fromkeys(key, progress.done)
        self._bars.update(self._overall, completed=self._ended + sum(self._shares.values()))
        if self._clock() - row.said >= LINE_SECONDS:
            self._tell(row, f"{task}, {step}")

    def _learn(self, run: RunName, task: int, accuracy: float) -> None:
        """A run has learned a task; when its whole bundle has, and it was not the last, a line says so.

        Runs that stop there count as ended.
        """
        for key, row in list(self._rows.items()):
            if run in key:
                row.learned[run] = task, accuracy
                learned = [row.learned.get(each, (-1, 0.0)) for each in key if each in self._shares]
                if task + 1 < row.last.tasks and all(which == task for which, _ in learned):
                    row.last = replace(row.last, accuracy=fmean(each for _, each in learned))
                    for each in key if row.last.done == 1 else ():
                        if each in self._shares:
                            self._count(each)
                    self._tell(row, f"task {task + 1}/{row.last.tasks} learned")

    def _tell(self, row: _Row, where: str) -> None:
        """A line about a bundle, where there is no terminal for bars."""
        if self.console.is_terminal:
            return
        left = next((task.time_remaining for task in self._bars.tasks if task.id == row.bar), None)
        told = [
            where,
            "" if row.loss is None else f"loss {row.loss:.3f}",
            "" if row.last.accuracy is None else f"accuracy {row.last.accuracy:.2f}%",
            _rate(row.last),
            "" if left is None else f"{duration(left)} left",
        ]
        self._say(f"{self._so_far} {row.name}: {', '.join(filter(None, told))}")
        row.said = self._clock()

    def _count(self, run: RunName) -> None:
        """A run has ended."""
        self._ended += 1
        self._shares.pop(run, None)
        completed = self._ended + sum(self._shares.values())
        self._bars.update(self._overall, description=self._description, completed=completed)
        self._remove_rows(lambda key: run in key and self._shares.keys().isdisjoint(key))

    def _remove_rows(self, over: Callable[[tuple[RunName, ...]], bool]) -> None:
        for key in [key for key in self._rows if over(key)]:
            self._bars.remove_task(self._rows.pop(key).bar)

    def _say(self, text: str) -> None:
        """A line above the bars."""
        self.console.say(text)


def _column() -> Column:
    """A column of bars that keeps to one line in a terminal that is too narrow."""
    return Column(no_wrap=True, overflow="ellipsis")


def _cut(name: str, room: int) -> str:
    """A name in so many characters: its beginning, and its end, which tells the seed."""
    return name if len(name) <= room else f"{name[: room - 9]}…{name[-8:]}"


def _rate(progress: Progress) -> str:
    """The steps of all runs of a bundle in a second, in few characters."""
    rate = progress.steps_per_second
    return f"{rate:.0f} steps/s" if rate >= 100 else f"{rate:.1f} steps/s"


def _name(progress: Progress) -> str:
    """What a bundle is called: its run, its seeds where all else is the same, else its first run and how many more."""
    first, *others = progress.runs
    if not others:
        return first.label
    without_seed = {run.label.removesuffix(f", seed {run.seed}") for run in progress.runs}
    if len(without_seed) == 1:
        return f"{without_seed.pop()}, {len(progress.runs)} seeds"
    return f"{first.label} and {len(others)} more"


def download_bar(console: Terminal, name: str) -> AbstractContextManager[Advance]:
    """A bar that a download moves, by bytes."""
    return _bar(console, name, bars.DownloadColumn(), bars.TransferSpeedColumn())


def decoding_bar(console: Terminal, name: str) -> AbstractContextManager[Advance]:
    """A bar that the decoding of a dataset moves, by images; nothing shows until it begins."""
    return _bar(console, f"decoding {name}", bars.MofNCompleteColumn())


@contextmanager
def _bar(console: Terminal, text: str, *columns: bars.ProgressColumn) -> Iterator[Advance]:
    shown = bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        *columns,
        bars.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with shown:
        rows: list[bars.TaskID] = []

        def advance(done: int, total: int | None) -> None:
            if not rows:
                rows.append(shown.add_task(text, total=total))
            shown.update(rows[0], completed=done, total=total)

        yield advance
