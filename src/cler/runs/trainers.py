"""Training bundles of jobs in this process: side by side on a GPU, one job after the other on a CPU."""

from __future__ import annotations

import signal
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from cler.config.comparing import benchmark_settings
from cler.engine import Control, checkpoint
from cler.engine.bundles import grouped, train_in_bundles
from cler.engine.events import Emit, Message
from cler.errors import stopped_by
from cler.methods import find_method
from cler.runs.jobs import Job, claimed, finished
from cler.runs.loading import Builder, Loaded
from cler.runs.machine import Order, threads
from cler.runs.record import Recorder

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask training to stop: Ctrl-C, and the one that systems send to end a process."""


Bundle = Sequence[Job]
"""Jobs that one device trains, side by side where they stand at the same step and fit."""


def in_bundles(jobs: Sequence[Job], size: int) -> list[Bundle]:
    """The jobs in bundles of at most so many that could be trained side by side, wherever that will be."""
    return [alike[first : first + size] for alike in grouped(jobs, _kind) for first in range(0, len(alike), size)]


def _kind(job: Job) -> Hashable:
    """What jobs have to share that are trained side by side: schedule, precision, images."""
    method, settings = find_method(job.settings.method), job.settings
    later = method.phases(settings.method_options, 1, epoch=1, epochs=settings.epochs)
    same = ("dataset", "precision", *benchmark_settings())
    return (method.merged, *later.items(), *(getattr(settings, name) for name in same))


def train_bundles(
    bundles: Iterable[Bundle],
    order: Order,
    emit: Emit,
    *,
    signals: Sequence[signal.Signals] = STOPPING,
    attempt: Path | None = None,
    loaded: Loaded | None = None,
) -> None:
    """Train one bundle after the other on the order's device, in this process; the same on every machine.

    A bundle is grouped again by where its jobs stand and how many fit; on a CPU they are trained in turn. Locks,
    checkpoints and results are made here, for the attempt in that folder if it is one, and `emit` hears every event.
    `loaded` are datasets that are there already, to which others are added for the next time.
    """
    machine, on_cpu = order.machine, order.device.type == "cpu"

    def stands(job: Job) -> Hashable:
        if finished(job):
            return None
        recorder.settle(job.folder)
        found = checkpoint.find(job.folder, lambda line: recorder.hear(Message(line)))
        return found.position if found else (0, 0)

    @contextmanager
    def claim(job: Job) -> Iterator[bool]:
        with claimed(job, recorder.hear, attempt) as todo, threads(job.settings.threads) if on_cpu else nullcontext():
            try:
                yield todo
            finally:
                recorder.settle(job.folder)  # a checkpoint is written while the job is still ours, or not at all

    with Recorder(emit, machine) as recorder, stopping_after_a_step(recorder, signals):
        build = Builder(order, recorder, loaded)
        for bundle in bundles:
            train_in_bundles(
                bundle,
                build,
                kind=_kind,
                stands=stands,
                claim=claim,
                at_once=machine.at_once or (1 if on_cpu else None),
                emit=recorder.hear,
                control=recorder,
                graph=machine.graph,
            )


@contextmanager
def stopping_after_a_step(control: Control, signals: Sequence[signal.Signals] = STOPPING) -> Iterator[None]:
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
