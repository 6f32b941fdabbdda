"""Progress on the terminal: bars where there is one, plain lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

from rich import progress as bars

from cler.engine.events import Elsewhere, Event, Failed, Finished, Message, Progress
from cler.errors import one_line
from cler.report.console import Terminal

LINE_SECONDS = 60.0
"""How often a line says where runs stand, where there is no terminal for bars."""


class ProgressBars:
    """A bar for all the runs and one for each that is being trained: task, step, rate, accuracy, time left.

    It hears events. Without a terminal, as in a log file, a line a minute says the same.
    """

    def __init__(self, console: Terminal, runs: int) -> None:
        self.console = console
        self.failures: list[str] = []
        self._runs, self._ended = runs, 0
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=6),
            bars.TextColumn("{task.fields[detail]}", markup=False),
            bars.TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._overall = self._bars.add_task(self._description, total=float(runs), detail="")
        self._rows: dict[tuple[str, ...], bars.TaskID] = {}
        self._shares: dict[str, float] = {}
        """How much of each run is done that has not ended."""
        self._told = time.monotonic()

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
            case Finished(run, accuracy):
                self._count(run.label)
                self._say(f"[{self._ended}/{self._runs}] {run.label}: class-incremental accuracy {accuracy:.2f}%")
            case Failed(run, why):
                self._count(run.label)
                self.failures.append(f"{run.label}: {why}")
                self._say(f"{run.label} stopped: {why}")
            case Elsewhere():
                self._runs -= 1
                self._bars.update(self._overall, total=float(self._runs), description=self._description)
            case Message(text):
                self._say(text)

    @property
    def _description(self) -> str:
        return f"{self._ended} of {self._runs} runs"

    def _move(self, progress: Progress) -> None:
        """Move the bar of the runs that this is about."""
        key = progress.labels
        if key not in self._rows:
            self._remove_rows(lambda other: not set(other).isdisjoint(key))  # of those they were trained beside before
            self._rows[key] = self._bars.add_task(_name(key), total=1.0, detail="")
        accuracy = "" if progress.accuracy is None else f" acc {progress.accuracy:.0f}%"
        detail = (  # short, to fit in 80 columns with the rest
            f"task {progress.task + 1}/{progress.tasks} step {progress.step}/{progress.steps} "
            f"{progress.steps_per_second:.1f} steps/s{accuracy}"
        )
        self._bars.update(self._rows[key], completed=progress.done, detail=detail)
        self._shares |= dict.fromkeys(key, progress.done)
        self._bars.update(self._overall, completed=self._ended + sum(self._shares.values()))
        if not self.console.is_terminal and (now := time.monotonic()) - self._told >= LINE_SECONDS:
            self._say(f"[{self._ended}/{self._runs}] {_name(key)}: {detail}")
            self._told = now

    def _count(self, label: str) -> None:
        """A run has ended."""
        self._ended += 1
        self._shares.pop(label, None)
        completed = self._ended + sum(self._shares.values())
        self._bars.update(self._overall, description=self._description, completed=completed)
        self._remove_rows(lambda key: label in key and self._shares.keys().isdisjoint(key))

    def _remove_rows(self, over: Callable[[tuple[str, ...]], bool]) -> None:
        for key in [key for key in self._rows if over(key)]:
            self._bars.remove_task(self._rows.pop(key))

    def _say(self, text: str) -> None:
        """A line above the bars."""
        self._bars.console.print(one_line(text), soft_wrap=True)


def _name(labels: tuple[str, ...]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"


Advance = Callable[[int, int | None], None]
"""Told how much is done, and of how much where that is known."""


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
