"""What Ctrl-C, SIGTERM and a time limit do: end a command at once, after a step, or when it asks."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from cler.errors import UsageError

TERMINATED = 143
"""The exit code of a process that SIGTERM has stopped."""
STOPPING = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask training to stop: Ctrl-C, and the one that systems send to end a process."""


def stopped_by(number: int) -> BaseException:
    """The exception that ends a command when a signal stops it: `KeyboardInterrupt` or `SystemExit`."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


class Stoppable(Protocol):
    """What ends by itself, soon after it has been asked to."""

    stop: BaseException | None
    """What it is to end by raising; None to go on."""


@contextmanager
def stopping_after_a_step(control: Stoppable, signals: Sequence[signal.Signals] = STOPPING) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM let the current step end, so that nothing is lost; a second one does not wait."""
    before: dict[signal.Signals, Any] = {}
    asked = False

    def stop(number: int, frame: Any) -> None:
        nonlocal asked
        if not asked:
            asked, control.stop = True, stopped_by(number)
        elif callable(handler := before[signal.Signals(number)]):
            handler(number, frame)
        else:
            signal.signal(number, handler)
            signal.raise_signal(number)

    def handle_as_before() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    if threading.current_thread() is threading.main_thread():  # only there can a signal be dealt with
        before.update({number: signal.signal(number, stop) for number in signals})
    try:
        yield
    finally:
        handle_as_before()
    if control.stop is not None:  # asked after the last step of all
        raise control.stop


@contextmanager
def raising_when_terminated() -> Iterator[None]:
    """Inside, SIGTERM raises, as Ctrl-C does everywhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: Any) -> None:
        raise stopped_by(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stopped_at(deadline: float) -> Iterator[None]:
    """Stop what runs inside, as Ctrl-C would, when `time.monotonic()` reaches the deadline."""
    if deadline == math.inf:
        yield
        return
    if not hasattr(signal, "setitimer"):
        raise UsageError("this system cannot stop a command after some time: leave the time limit out")
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), 1e-6))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether Ctrl-C or SIGTERM has come; inside, only a second one ends the command."""
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        if asked:
            raise stopped_by(number)
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in STOPPING}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def sleep(seconds: float, stop: Callable[[], bool]) -> None:
    """Wait, unless asked to stop meanwhile."""
    end = time.monotonic() + seconds
    while not stop() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
