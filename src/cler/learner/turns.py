"""Who may touch the network now."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, current_thread, main_thread
from typing import Any


class Turns:
    """A lock under which nobody who waits can be overtaken for ever by who has just had it."""

    def __init__(self) -> None:
        self._door, self._inside = Lock(), Lock()

    def __enter__(self) -> None:
        with self._door:  # who waits inside keeps it shut, so the one who leaves has to queue
            self._inside.acquire()

    def __exit__(self, *_: object) -> None:
        self._inside.release()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside, Ctrl-C waits: what is half done would be neither learned nor not."""
    if current_thread() is not main_thread() or not callable(before := signal.getsignal(signal.SIGINT)):
        yield
        return
    asked: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda *call: asked.append(call))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if asked:
            before(*asked[0])
