"""Learning from a folder as images arrive there, until somebody asks to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cler.errors import UsageError
from cler.learner.folder import FolderLearner
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
    saved, there = time.monotonic(), True
    with _saved_at_the_end(watched):
        while not stop():
            try:
                for left in watched.learn():
                    status(f"{watched.learner.n_seen_} images seen, {left} to go")
                    saved = _save_when_due(watched, saved, save_every)
                    if stop():
                        break
                if once:
                    break
                saved, there = _save_when_due(watched, saved, save_every), True
            except UsageError:
                gone = [each for each in (watched.folder, watched.state) if not each.is_dir()]
                if once or not gone:
                    raise
                if there:
                    _say_that_it_is_away(watched, gone[0])
                there = False
            sleep(every, stop)
        if once and not stop() and not watched.learner.n_seen_:
            place = f"they must lie in {watched.folder / 'LABEL'}/, not deeper"
            raise UsageError(f"there are no images to learn in {watched.folder}: {place}")


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
        watched.save()


def _say_that_it_is_away(watched: FolderLearner, gone: Path) -> None:
    """Save what was learned, unless the folder for that is gone too, and say which folder is waited for."""
    if watched.unsaved and watched.state.is_dir():
        watched.save()
    seen = watched.learner.n_seen_
    watched.message(f"{gone} is no longer there, after {seen} images have been seen; waiting for it to come back")


def _save_when_due(watched: FolderLearner, saved: float, save_every: float) -> float:
    """If it is time, save, and say how many images were learned and how well; returns the time of the last save."""
    if not watched.unsaved or time.monotonic() - saved < save_every:
        return saved
    watched.save()
    watched.message(summary_line(watched.summary()))
    return time.monotonic()


def summary_line(summary: dict[str, Any]) -> str:
    """The `summary` of a `FolderLearner` in a line."""
    classes = len(summary["classes"])
    learned = summary["images"] - summary["waiting"]
    text = f"{learned} images of {classes} {'class' if classes == 1 else 'classes'} learned"
    if summary["waiting"]:
        text += f", {summary['waiting']} waiting for a full batch"
    if "prequential" in summary:
        text += f", {summary['prequential']:.1f} % predicted right before learning them"
        text += f" ({summary['blind']:.1f} % by repeating the last label)"
    if summary["accuracy"] is None:
        return f"{text}, no held-out image to test on yet"
    return f"{text}, {summary['accuracy']:.1f} % accuracy on {summary['held_out']} held-out images"
