"""Bundles of jobs in worker processes on this machine: each takes one after the other and reports its progress."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Literal, cast

from cler.config.machine import Machine
from cler.engine.events import Emit, Event
from cler.engine.steps import lack_of_memory
from cler.errors import UsageError
from cler.processes import end_with_parent, starting
from cler.runs.custom import Code, code_of
from cler.runs.loading import Loaded
from cler.runs.machine import VISIBLE
from cler.runs.trainers import Bundle, train_bundles
from cler.signals import raising_when_terminated


class Sender:
    """Sends events and requests to the process that started the workers, if that still listens."""

    def __init__(self, mouth: Connection) -> None:
        self.mouth = mouth
        self._speaking = threading.Lock()

    def __call__(self, what: Event | Request) -> None:
        """Send an event or a request."""
        with self._speaking, contextlib.suppress(OSError):
            self.mouth.send(what)


@dataclass(frozen=True)
class Request:
    """A worker's message that is not an event: it wants the next bundle, it is done, or it cannot work and says why."""

    kind: Literal["next", "done", "mistake", "error"]
    why: str = ""


class Workers:
    """Processes that train bundles, until they are closed; between two calls they keep running, with their images."""

    def __init__(self) -> None:
        self._ears: list[Connection] = []
        self._processes: list[SpawnProcess] = []

    @raising_when_terminated()
    def train(self, bundles: Sequence[Bundle], machine: Machine, gpus: Sequence[str | None], emit: Emit) -> None:
        """Train the bundles, each in the next free process: one process for each of `gpus`, which sees only that GPU.

        None stands for a process that sees whatever there is. The GPUs of an earlier call have to come first again. An
        error in one of the processes ends them all and is raised here. When an error in a callback, Ctrl-C or SIGTERM
        ends training, every process leaves checkpoints of its runs.
        """
        try:
            for gpu in gpus[len(self._processes) :]:
                self._start(gpu)
            _listen(self._ears[: len(gpus)], machine, iter(bundles), emit)
        except BaseException:
            self.close()
            raise

    def _start(self, gpu: str | None) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process would inherit torch's threads in any state
        ear, mouth = context.Pipe()  # for each its own, so that none waits for another that has died
        process = context.Process(target=_work, args=(mouth,), daemon=True)
        with starting(), _seeing(gpu):
            process.start()
        mouth.close()
        self._ears.append(ear)
        self._processes.append(process)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
        for ear in self._ears:
            ear.close()
        for process in self._processes:
            process.join()
        self._ears, self._processes = [], []


@contextmanager
def _seeing(gpu: str | None) -> Iterator[None]:
    """Inside, a process that is started sees only this GPU; None changes nothing."""
    before = os.environ.get(VISIBLE)
    if gpu is not None:
        os.environ[VISIBLE] = gpu
    try:
        yield
    finally:
        os.environ.pop(VISIBLE, None)
        os.environ.update({VISIBLE: before} if before is not None else {})


def _listen(ears: Sequence[Connection], machine: Machine, bundles: Iterator[Bundle], emit: Emit) -> None:
    """Give the next bundle to each worker that asks, and pass on the workers' events, until all are done."""
    for each in ears:
        with contextlib.suppress(OSError):  # one that has gone is noticed as it is listened to
            each.send(machine)
    working = list(ears)
    while working:
        for ear in cast("list[Connection]", wait(working)):
            try:
                heard = ear.recv()
                if heard == Request("next"):
                    bundle = next(bundles, None)
                    ear.send(bundle and ([code_of(job, machine) for job in bundle], bundle))
                    continue
            except (EOFError, OSError):
                raise UsageError(
                    "a worker process was killed, perhaps for its memory: finished runs are kept, and the same command "
                    "resumes the others"
                ) from None
            if not isinstance(heard, Request):
                emit(heard)
            elif heard.kind == "done":
                working.remove(ear)
            elif heard.kind == "mistake":
                raise UsageError(heard.why)
            else:
                raise RuntimeError(heard.why)


def _work(mouth: Connection) -> None:
    """The loop of a worker: each time it is told how to train, train bundles until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started the workers
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # but while it trains: so a second one does not spoil a checkpoint
    end_with_parent()
    sender, loaded = Sender(mouth), Loaded()

    def ask() -> Bundle | None:
        sender(Request("next"))
        answer: tuple[list[Code], Bundle] | None = mouth.recv()
        if answer is None:
            return None
        needed, bundle = answer
        for code in needed:
            code.load()
        return bundle

    try:
        while True:
            machine: Machine = mouth.recv()
            train_bundles(iter(ask, None), machine, sender, signals=[signal.SIGTERM], loaded=loaded)
            sender(Request("done"))
    except (SystemExit, EOFError, ConnectionError):
        pass  # the process that started this one has gone
    except UsageError as mistake:
        sender(Request("mistake", str(mistake)))
    except Exception as error:
        sender(Request("error", str(lack_of_memory(error) or traceback.format_exc())))
