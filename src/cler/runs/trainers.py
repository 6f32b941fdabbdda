"""Ways to train jobs in this process: one after the other on a CPU, side by side on a GPU."""

from __future__ import annotations

import signal
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cler.engine import Listener, checkpoint, train
from cler.engine.bundles import train_in_groups
from cler.methods import find_method
from cler.runs.jobs import Job, finished
from cler.runs.machine import threads
from cler.runs.record import Builder, Recorder, Watcher


def train_in_turn(
    jobs: Iterable[Job], data_dir: Path | None, watcher: Watcher, stop: signal.Signals = signal.SIGINT
) -> None:
    """Train one job after the other on the CPU, in this process."""
    with Recorder(watcher) as recorder:
        build = Builder(torch.device("cpu"), data_dir, recorder)
        for job in jobs:
            with threads(job.settings.threads), stopping_after_a_step(recorder, stop):
                train([build(job)], recorder)


def train_on_gpu(
    jobs: Sequence[Job], device: torch.device, data_dir: Path | None, at_once: int | None, watcher: Watcher
) -> None:
    """Train jobs side by side on the GPU, those together that have the same number of steps to go."""

    def alike(job: Job) -> Hashable:
        if finished(job):
            return None
        recorder.settle(job.folder)
        found = checkpoint.find(job.folder, recorder.message)
        position = found.position if found else (0, 0)
        method, settings = find_method(job.settings.method), job.settings
        later = method.phases(settings.method_options, 1, epoch=1, epochs=settings.epochs)
        same = ("dataset", "tasks", "epochs", "batch", "precision")
        return (position, method.merged, *later.items(), *(getattr(settings, name) for name in same))

    with Recorder(watcher) as recorder, stopping_after_a_step(recorder, signal.SIGINT):
        build = Builder(device, data_dir, recorder)
        train_in_groups(jobs, build, key=alike, at_once=at_once, listener=recorder)


@contextmanager
def stopping_after_a_step(listener: Listener, number: signal.Signals) -> Iterator[None]:
    """Inside, a signal such as Ctrl-C lets the step at hand end, so that nothing is lost; a second one does not."""
    if threading.current_thread() is not threading.main_thread():  # only there can a signal be dealt with
        yield
        return

    def stop(*_: Any) -> None:
        listener.stop = True
        signal.signal(number, before)

    before = signal.signal(number, stop)
    try:
        yield
    finally:
        signal.signal(number, before)
    if listener.stop:  # asked after the last step of all
        raise KeyboardInterrupt
