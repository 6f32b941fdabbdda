"""Who may touch the network now."""

from __future__ import annotations

from threading import Lock


class Turns:
    """A lock under which nobody who waits can be overtaken for ever by who has just had it."""

    def __init__(self) -> None:
        self._door, self._inside = Lock(), Lock()

    def __enter__(self) -> None:
        with self._door:  # who waits inside keeps it shut, so the one who leaves has to queue
            self._inside.acquire()

    def __exit__(self, *_: object) -> None:
        self._inside.release()
