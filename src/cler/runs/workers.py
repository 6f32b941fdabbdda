"""Jobs in worker processes on this machine: each takes one job after the other and tells how it goes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from cler.engine import Progress
from cler.engine.steps import lack_of_memory
from cler.errors import UsageError
from cler.runs.jobs import Job
from cler.runs.record import Watcher
from cler.runs.trainers import train_in_turn


class Sender(Watcher):
    """Sends every call to the process that started the workers, if that still listens."""

    def __init__(self, mouth: Connection) -> None:
        self.mouth = mouth
        self._speaking = threading.Lock()

    def send(self, *event: Any) -> None:
        """Send anything."""
        with self._speaking, contextlib.suppress(OSError):
            self.mouth.send(event)

    def progress(self, progress: Progress) -> None:
        """Send it on."""
        self.send("progress", progress)

    def finished(self, label: str, accuracy: float | None, failure: str | None) -> None:
        """Send it on."""
        self.send("finished", label, accuracy, failure)

    def message(self, text: str) -> None:
        """Send it on."""
        self.send("message", text)


def train_in_processes(jobs: Sequence[Job], data_dir: Path | None, workers: int, watcher: Watcher) -> None:
    """Train the jobs in so many processes; an error in one of them ends them all and is raised here."""
    context = multiprocessing.get_context("spawn")  # a forked process would inherit torch's threads in any state
    ears, processes = [], []
    try:
        for _ in range(workers):
            ear, mouth = context.Pipe()  # for each its own, so that none waits for another that has died
            process = context.Process(target=_work, args=(mouth, data_dir), daemon=True)
            process.start()
            mouth.close()
            ears.append(ear)
            processes.append(process)
        _listen(ears, iter(jobs), watcher)
    finally:
        for process in processes:
            process.terminate()
        for ear in ears:
            ear.close()
        for process in processes:
            process.join()


def _listen(ears: Sequence[Connection], jobs: Iterator[Job], watcher: Watcher) -> None:
    """Give each worker that asks the next job, and tell the watcher what they say, until all are done."""
    working = list(ears)
    while working:
        for ear in wait(working):
            assert isinstance(ear, Connection)
            try:
                event, *values = ear.recv()
                if event == "next":
                    ear.send(next(jobs, None))
                    continue
            except (EOFError, OSError):
                raise UsageError(
                    "a worker process was killed, perhaps for its memory: finished runs are kept, and the same command "
                    "goes on from there"
                ) from None
            if event == "done":
                working.remove(ear)
            elif event == "mistake":
                raise UsageError(*values)
            elif event == "error":
                raise RuntimeError(*values)
            else:
                getattr(watcher, event)(*values)


def _end_with_parent() -> None:
    """End this process as soon as the one that started it has gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(mouth: Connection, data_dir: Path | None) -> None:
    """What a worker does: jobs until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sender = Sender(mouth)

    def ask() -> Job | None:
        sender.send("next")
        job: Job | None = mouth.recv()
        return job

    try:
        train_in_turn(iter(ask, None), data_dir, sender, stop=signal.SIGTERM)
        sender.send("done")
    except (KeyboardInterrupt, EOFError, ConnectionError):
        pass  # nobody listens any more
    except UsageError as mistake:
        sender.send("mistake", str(mistake))
    except Exception as error:
        sender.send("error", str(lack_of_memory(error) or traceback.format_exc()))
