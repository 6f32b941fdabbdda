"""Jobs in worker processes on this machine: each takes one job after the other and tells how it goes."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from cler.engine import Progress
from cler.errors import UsageError
from cler.experiments.jobs import Job
from cler.experiments.record import Watcher
from cler.experiments.trainers import train_in_turn


class Sender(Watcher):
    """Sends every call to the process that started the workers."""

    def __init__(self, outbox: Any) -> None:
        self.outbox = outbox

    def progress(self, progress: Progress) -> None:
        """Send it on."""
        self.outbox.put(("progress", progress))

    def finished(self, label: str, accuracy: float | None, failure: str | None) -> None:
        """Send it on."""
        self.outbox.put(("finished", label, accuracy, failure))

    def message(self, text: str) -> None:
        """Send it on."""
        self.outbox.put(("message", text))


def train_in_processes(jobs: Sequence[Job], data_dir: Path | None, workers: int, watcher: Watcher) -> None:
    """Train the jobs in so many processes; an error in one of them ends them all and is raised here."""
    context = multiprocessing.get_context("spawn")  # a forked process would inherit torch's threads in any state
    inbox, outbox = context.Queue(), context.Queue()
    for item in [*jobs, *[None] * workers]:
        inbox.put(item)
    processes = [context.Process(target=_work, args=(inbox, outbox, data_dir), daemon=True) for _ in range(workers)]
    for process in processes:
        process.start()
    try:
        working = workers
        while working:
            try:
                event, *values = outbox.get(timeout=1)
            except queue.Empty:
                if any(process.exitcode for process in processes):
                    raise RuntimeError("a worker process was killed; finished runs are kept") from None
                continue
            if event == "done":
                working -= 1
            elif event == "mistake":
                raise UsageError(*values)
            elif event == "error":
                raise RuntimeError(*values)
            else:
                getattr(watcher, event)(*values)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _end_with_parent() -> None:
    """End this process as soon as the one that started it has gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(inbox: Any, outbox: Any, data_dir: Path | None) -> None:
    """What a worker does: jobs until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        train_in_turn(iter(inbox.get, None), data_dir, Sender(outbox), stop=signal.SIGTERM)
        outbox.put(("done",))
    except KeyboardInterrupt:
        outbox.cancel_join_thread()  # nobody listens any more
    except UsageError as mistake:
        outbox.put(("mistake", str(mistake)))
    except Exception:
        outbox.put(("error", traceback.format_exc()))
