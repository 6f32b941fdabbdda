"""Ways to train jobs in this process: one after the other on a CPU, side by side on a GPU."""

from __future__ import annotations

import signal
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cler.config.comparing import benchmark_settings
from cler.engine import Control, checkpoint, train
from cler.engine.bundles import train_in_bundles
from cler.engine.events import Emit, Message
from cler.errors import stopped_by
from cler.methods import find_method
from cler.runs.jobs import Job, claimed, finished
from cler.runs.machine import threads
from cler.runs.record import Builder, Recorder

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask training to stop: Ctrl-C, and the one that systems send to end a process."""


def train_in_turn(
    jobs: Iterable[Job], data_dir: Path | None, emit: Emit, signals: Sequence[signal.Signals] = STOPPING
) -> None:
    """Train one job after the other on the CPU, in this process."""
    with Recorder(emit) as recorder, stopping_after_a_step(recorder, signals):
        build = Builder(torch.device("cpu"), data_dir, recorder)
        for job in jobs:
            if recorder.stop is not None:
                raise recorder.stop
            with claimed(job, recorder.hear) as ours, threads(job.settings.threads):
                if ours:
                    train([build(job)], recorder.hear, recorder)


def train_on_gpu(
    jobs: Sequence[Job],
    device: torch.device,
    data_dir: Path | None,
    emit: Emit,
    *,
    at_once: int | None = None,
    graph: bool = True,
) -> None:
    """Train jobs side by side on the GPU, those together that have the same number of steps left."""

    def kind(job: Job) -> Hashable:
        method, settings = find_method(job.settings.method), job.settings
        later = method.phases(settings.method_options, 1, epoch=1, epochs=settings.epochs)
        same = ("dataset", "precision", *benchmark_settings())
        return (method.merged, *later.items(), *(getattr(settings, name) for name in same))

    def stands(job: Job) -> Hashable:
        if finished(job):
            return None
        recorder.settle(job.folder)
        found = checkpoint.find(job.folder, lambda line: recorder.hear(Message(line)))
        return found.position if found else (0, 0)

    @contextmanager
    def claim(job: Job) -> Iterator[bool]:
        with claimed(job, recorder.hear) as todo:
            try:
                yield todo
            finally:
                recorder.settle(job.folder)  # a checkpoint is written while the job is still ours, or not at all

    with Recorder(emit) as recorder, stopping_after_a_step(recorder):
        train_in_bundles(
            jobs,
            Builder(device, data_dir, recorder),
            kind=kind,
            stands=stands,
            claim=claim,
            at_once=at_once,
            emit=recorder.hear,
            control=recorder,
            graph=graph,
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
