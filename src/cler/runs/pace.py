"""How fast runs were trained: steps per second, while they were taken and with everything around."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cler.engine.events import Event, Progress, RunName, Started


class Pace:
    """Hears events of training, and counts steps and seconds.

    Steps are those of all runs together; a device that trains ten side by side takes ten at a time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.steps = 0
        self.stepping = 0.0
        """Seconds in which devices took steps: without loading, building and evaluation."""
        self.whole = 0.0
        """Seconds of all that was timed."""
        self._clock = clock
        self._stands: dict[RunName, tuple[int, int, int, float]] = {}
        """For each run: its task, where it began there, the step that it has reached, and the seconds between."""

    def __call__(self, event: Event) -> None:
        """Count what an event tells."""
        if isinstance(event, Started):
            self._stands[event.run] = event.task, event.step, event.step, 0.0
        elif isinstance(event, Progress):
            task, begun, step, seconds = self._stands.get(event.runs[0], (event.task, 0, 0, 0.0))
            if task != event.task:
                begun, step, seconds = 0, 0, 0.0
            side_by_side = len(event.runs)
            elapsed = side_by_side * (event.step - begun) / event.steps_per_second
            self.steps += side_by_side * (event.step - step)
            self.stepping += elapsed - seconds
            self._stands |= dict.fromkeys(event.runs, (event.task, begun, event.step, elapsed))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Inside, time counts as spent on training."""
        begun = self._clock()
        try:
            yield
        finally:
            self.whole += self._clock() - begun

    def __str__(self) -> str:
        """One line; empty where no step was taken."""
        if not self.steps:
            return ""
        return (
            f"{self.steps} steps: {self.steps / self.whole:.1f} per second in all, with loading, evaluation and "
            f"checkpoints; {self.steps / self.stepping:.1f} on each GPU or worker while it took steps"
        )
