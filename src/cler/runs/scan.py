"""What runs there are below some folders, finished and under way, looked at again and again at little cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cler.config.comparing import completed
from cler.config.values import number_of_tasks
from cler.errors import UsageError
from cler.files import as_path, read_json
from cler.methods import METHODS
from cler.runs import buffer_images
from cler.runs.folders import RESULT, SETTINGS, in_use
from cler.runs.logs import LOG, Log, LogReader
from cler.runs.results import Result, find_files
from cler.runs.wellformed import check_settings, checked_tasks

FileStamp = tuple[int, int, int]
"""When a file was changed, its size and its inode: where these are the same, so is its content."""


@dataclass(frozen=True)
class Attachments:
    """What lies beside a run's result."""

    log: Log = field(default_factory=Log)
    picture: Path | None = None
    """The picture of images in the buffer at the end."""
    picture_changed: int = 0


@dataclass(frozen=True)
class Unfinished:
    """A run that has begun and not ended, and how far it is."""

    folder: Path
    settings: dict[str, Any]
    seed: int
    log: Log
    running: bool
    """Whether a process is at work on it; else it was stopped, and can be resumed."""

    @property
    def tasks(self) -> int:
        """How many tasks are learned one after the other: one, where all are learned at once."""
        method = METHODS.get(self.settings["method"])
        return 1 if method and method.merged else number_of_tasks(self.settings["tasks"])

    @property
    def task(self) -> int:
        """The task that is being learned, from 1."""
        return min(int(self.log.task) + 1, self.tasks)

    @property
    def done(self) -> float:
        """Share of the run that is done, from 0 to 1, if all its tasks are equally long."""
        return min(self.log.place(self.log.task, self.log.step) / self.tasks, 1.0)


class Scan:
    """The runs below some folders; a file is read again only where it has changed."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.paths = [as_path(path) for path in paths]
        self.results: list[Result] = []
        """The results of runs that have ended, also of those that failed."""
        self.unfinished: list[Unfinished] = []
        self.attachments: dict[Path, Attachments] = {}
        """What lies beside the results of runs that have ended, by their folders."""
        self.complaints: list[str] = []
        """A line for each file or folder that cannot be read."""
        self._stamps: dict[Path, FileStamp] = {}
        self._read: dict[Path, tuple[FileStamp, Any]] = {}
        """Files that were read: when they had changed last, and what is in them, or what is wrong with them."""
        self._logs: dict[Path, LogReader] = {}

    def update(self, *, wait: bool = False) -> bool:
        """Look at all of them; tells whether anything has changed since the last time.

        With `wait` a folder that is not there yet has no runs; without, it is refused.
        """
        paths = [path for path in self.paths if not wait or path.exists()]
        files, self.complaints = find_files(paths, [RESULT, SETTINGS, LOG, buffer_images.NAME])
        before, was_running = self._stamps, [one.running for one in self.unfinished]
        self._stamps = {file: _stamp(file) for file in files}
        self._forget()
        self.results, self.unfinished, self.attachments = [], [], {}
        for folder in dict.fromkeys(file.parent for file in self._stamps):
            self._take(folder)
        for path in (path for path in paths if path.is_file() and path.name not in (RESULT, SETTINGS)):
            self._take_result(path)  # a result under another name
        return before != self._stamps or was_running != [one.running for one in self.unfinished]

    def _forget(self) -> None:
        for known in (self._read, self._logs):
            for file in known.keys() - self._stamps.keys():
                del known[file]

    def _take(self, folder: Path) -> None:
        """Add the run of a folder to those that have ended, or to the others."""
        if folder / RESULT in self._stamps and self._take_result(folder / RESULT):
            return
        settings = self._content(folder / SETTINGS, _read_settings)
        if isinstance(settings, tuple):  # a file that is not of a run is none of our business
            values, seed = settings
            self.unfinished.append(Unfinished(folder, values, seed, self._log(folder), in_use(folder)))

    def _take_result(self, file: Path) -> bool:
        """Add a result; tells whether its run has ended, or the file is not to be read."""
        found = self._content(file, Result.read)
        if isinstance(found, UsageError):
            self.complaints.append(f"skipped: {found}")
        elif found is not None and not found.complete and found.failure is None:
            return False
        elif found is not None:
            self.results.append(found)
            picture = self._stamps.get(file.parent / buffer_images.NAME)
            place = (file.parent / buffer_images.NAME, picture[0]) if picture else (None, 0)
            self.attachments[file.parent] = Attachments(self._log(file.parent), *place)
        return True

    def _log(self, folder: Path) -> Log:
        file = folder / LOG
        if (stamp := self._stamps.get(file)) is None:
            return Log()
        reader = self._logs.setdefault(file, LogReader(file))
        if self._read.get(file, (None, None))[0] != stamp:
            reader.read()
            self._read[file] = stamp, None
        return reader.log

    def _content(self, file: Path, read: Any) -> Any:
        """What is in a file, or what is wrong with it; None if it is not there."""
        if (stamp := self._stamps.get(file)) is None:
            return None
        if file not in self._read or self._read[file][0] != stamp:
            try:
                self._read[file] = stamp, read(file)
            except UsageError as error:
                self._read[file] = stamp, error
        return self._read[file][1]


def _stamp(file: Path) -> FileStamp:
    try:
        about = file.stat()
    except OSError:  # which reading it will tell of
        return 0, 0, 0
    return about.st_mtime_ns, about.st_size, about.st_ino


def _read_settings(path: Path) -> tuple[dict[str, Any], int]:
    """Settings and seed of a run that has begun."""
    found = read_json(path)
    settings, seed = found.get("settings"), found.get("seed")
    if not isinstance(settings, dict) or type(seed) is not int:
        raise UsageError(f"{path} has no settings and seed of a run")
    check_settings(settings)
    return completed(settings) | {"tasks": checked_tasks(settings["tasks"])}, seed
