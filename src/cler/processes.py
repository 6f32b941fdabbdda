"""Processes that this one starts: how many fit, and how they begin and end; imports nothing that takes long."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import ModuleType


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def starting() -> Iterator[None]:
    """Inside, a process that is started ignores Ctrl-C, which is meant for this one.

    It does not run the user's program again either, which may have no `__main__` guard.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        with _unheard(signal.SIGINT):
            yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _unheard(number: signal.Signals) -> Iterator[None]:
    """Block a signal until the end of the block; a process that is started inside blocks it for good."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else multiprocessing starts it inside, and lets signals through after that
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Have this process end as soon as the one that started it has gone, however it went."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
