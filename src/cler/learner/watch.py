"""Learning from a folder as images arrive there, until somebody asks to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cler.errors import UsageError
from cler.learner.folder import FolderLearner, NotSavedError, counted
from cler.signals import sleep


def watch(
    watched: FolderLearner,
    stop: Callable[[], bool],
    *,
    status: Callable[[str], None],
    once: bool,
    every: float,
    save_every: float,
) -> None:
    """Learn what arrives until asked to stop, or with `once` only what is there; save now and then, and at the end.

    `every` is the time between two looks into the folder and `save_every` that between two files, in seconds. `status`
    is told after each batch how many images there are.
    """
    saves, there = _Saves(watched, save_every), True
    with _saved_at_the_end(watched):
        while not stop():
            try:
                for left in watched.learn():
                    status(f"{watched.learner.n_seen_} images seen, {left} to go")
                    saves.save_when_due()
                    if stop():
                        break
                if once:
                    break
                saves.save_when_due()
                there = True
            except UsageError:
                gone = [each for each in (watched.folder, watched.state) if not each.is_dir()]
                if once or not gone:
                    raise
                if there:
                    saves.save_while_away(gone[0])
                there = False
            sleep(every, stop)
        if once and not stop() and not watched.learner.n_seen_:
            place = f"they must lie in {watched.folder / 'LABEL'}/, not deeper"
            raise UsageError(f"there are no images to learn in {watched.folder}: {place}")


class _Saves:
    """Saves a watched learner now and then; while that fails, it goes on learning."""

    def __init__(self, watched: FolderLearner, every: float) -> None:
        self.watched, self.every = watched, every
        self.last, self.failing = time.monotonic(), False

    def save_when_due(self) -> None:
        """If it is time, save, and say how many images were learned and how well."""
        if not self.watched.unsaved or time.monotonic() - self.last < self.every:
            return
        if self._save():
            self.watched.message(summary_line(self.watched.summary()))
        self.last = time.monotonic()

    def save_while_away(self, gone: Path) -> None:
        """Save what was learned, unless the folder for that is gone too, and say which folder is waited for."""
        watched = self.watched
        if watched.unsaved and watched.state.is_dir():
            self._save()
        seen = counted(watched.learner.n_seen_)
        watched.message(f"{gone} is no longer there, after {seen} seen; waiting for it to come back")

    def _save(self) -> bool:
        try:
            self.watched.save()
        except NotSavedError as error:
            if not self.watched.state.is_dir():
                raise
            if not self.failing:
                self.watched.message(f"{error}; it goes on learning meanwhile, and tries again at each save")
            self.failing = True
            return False
        self.failing = False
        return True


@contextmanager
def _saved_at_the_end(watched: FolderLearner) -> Iterator[None]:
    """Save what was learned inside, whatever ended it."""
    try:
        yield
    except Exception:
        with suppress(Exception):  # what ended it is the error to tell
            if watched.unsaved:
                watched.save()
        raise
    if watched.unsaved:
        try:
            watched.save()
        except NotSavedError as error:
            raise UsageError(f"{error}, and run the command again, which will learn what is not saved") from None


def summary_line(summary: dict[str, Any]) -> str:
    """The `summary` of a `FolderLearner` in a line."""
    classes = len(summary["classes"])
    learned = summary["images"] - summary["waiting"]
    text = f"{counted(learned)} of {classes} {'class' if classes == 1 else 'classes'} learned"
    if summary["waiting"]:
        text += f", {summary['waiting']} waiting for a full batch"
    if "prequential" in summary:
        text += f", {summary['prequential']:.1f} % predicted right before learning them"
        text += f" ({summary['blind']:.1f} % by repeating the last label)"
    if summary["accuracy"] is None:
        return f"{text}, no held-out image to test on yet"
    return f"{text}, {summary['accuracy']:.1f} % accuracy on {counted(summary['held_out'], 'held-out ')}"
