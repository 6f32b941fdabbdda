"""The log of a run, `log.jsonl`: a line for what happened, written as it happens and read as it grows."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cler.errors import UsageError
from cler.files import append, opened, read_bytes, without_non_finite, write_text

LOG = "log.jsonl"
LARGEST = 1 << 32
"""Bytes that are read of a log, which grows by a line every few seconds."""
AT_ONCE = 1 << 24
"""Bytes of a log that are taken in at a time."""
MOST_TERMS = 20
"""Loss terms that are read of a log."""
LONGEST_NAME = 100
"""Characters of the name of a loss term that is read."""
MOST = 1e12
"""Largest task and step that are read."""
LARGEST_NUMBER = 1e30
"""Largest loss term and accuracy that are read."""


def log_line(folder: str | Path, event: dict[str, Any]) -> None:
    """Append one event to the run's `log.jsonl`; non-finite numbers (a diverged loss) become null."""
    line = json.dumps(without_non_finite(event), ensure_ascii=False, allow_nan=False)
    append(Path(folder) / LOG, line + "\n")


def trim_log(folder: str | Path, task: int, step: int) -> None:
    """Keep of the run's `log.jsonl` what it told before it had taken more steps of this task, where it is resumed."""
    path = Path(folder) / LOG
    with suppress(FileNotFoundError):
        lines = read_bytes(path, LARGEST, follow=False).decode("utf-8", "replace").split("\n")
        write_text(path, "".join(f"{line}\n" for line in lines if _moment(_read(line)) <= (task, step)))


def _read(line: str | bytes) -> dict[str, Any]:
    """What a line tells; nothing if it is broken."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _moment(told: dict[str, Any]) -> tuple[float, float]:
    """The task and step of a line of the log: a task's evaluation is after all steps, a broken line after all tasks."""
    try:
        task, step = float(told["task"]), float(told.get("step", math.inf))
    except (ValueError, KeyError, TypeError, OverflowError):
        return math.inf, math.inf
    return (math.inf, math.inf) if math.isnan(task + step) else (task, step)


@dataclass
class Log:
    """What a log tells of a run so far."""

    losses: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    """For each loss term: task, step, and its mean over the steps since the line before."""
    steps: dict[float, float] = field(default_factory=dict)
    """Steps of each task, as far as they are known."""
    task: float = 0
    step: float = 0
    """How far the run has come: the task that is being learned, and the steps of it that have been taken."""
    accuracies: dict[float, float] = field(default_factory=dict)
    """Class-incremental, after each task, mean over the tasks seen."""
    heard: str = ""
    """When the last line was written."""

    def place(self, task: float, step: float) -> float:
        """Where a step is, counted in tasks: 2.5 is in the middle of the third."""
        steps = self.steps.get(task, 0)
        return task + (min(step / steps, 1.0) if steps else 0.0)

    @property
    def accuracy(self) -> float | None:
        """Class-incremental, mean over the tasks seen, as of the last evaluation."""
        return next(reversed(self.accuracies.values()), None)

    @property
    def latest(self) -> dict[str, float]:
        """The last mean of each loss term that the present kind of step has."""
        last = {name: points[-1] for name, points in self.losses.items()}
        now = max((point[:2] for point in last.values()), default=None)
        return {name: point[2] for name, point in last.items() if point[:2] == now}

    def _hear(self, told: dict[str, Any]) -> None:
        task, step = _moment(told)
        if not (0 <= task <= MOST):
            return
        if isinstance(time := told.get("time"), str):
            self.heard = time
        if told.get("event") == "evaluated":
            row = told.get("class_il")
            if isinstance(row, list) and row and all(map(_is_number, row)):
                self.accuracies[task] = sum(row) / len(row)
            self.task, self.step = task + 1, 0
        elif told.get("event") == "progress" and 0 <= step <= MOST:
            self.task, self.step = task, step
            steps = told["steps"] if _is_number(told.get("steps")) else 0
            self.steps[task] = max(self.steps.get(task, 0), step, steps)
            losses = told.get("losses")
            for name, mean in losses.items() if isinstance(losses, dict) else ():
                known = name in self.losses or (len(self.losses) < MOST_TERMS and len(name) <= LONGEST_NAME)
                if known and _is_number(mean):
                    self.losses.setdefault(name, []).append((task, step, mean))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


def _whole_lines(read: bytes) -> bytes:
    """What was read, up to its last end of a line; all of it if it has none and is longer than a line of ours."""
    end = read.rfind(b"\n") + 1
    return read[:end] if end or len(read) < AT_ONCE else read


class LogReader:
    """Reads a log, and later what has been added to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = Log()
        self._file: int | None = None
        self._read = 0

    def read(self) -> Log:
        """What the log tells by now; nothing, where there is none or it cannot be read."""
        try:
            with opened(self.path, follow=False) as file:
                about = os.fstat(file.fileno())
                if about.st_ino != self._file or about.st_size < self._read:  # it was trimmed, for the run is resumed
                    self.log, self._file, self._read = Log(), about.st_ino, 0
                file.seek(self._read)
                while self._read < LARGEST and (new := _whole_lines(file.read(AT_ONCE))):
                    for line in new.splitlines():
                        self.log._hear(_read(line))
                    self._read += len(new)
                    file.seek(self._read)
        except (OSError, UsageError):
            self.log, self._file, self._read = Log(), None, 0
        return self.log
