"""The driver of attempts on other machines: submits them, listens to them, and makes lost ones again elsewhere."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from cler.config.machine import Machine
from cler.engine import RunName
from cler.engine.bundles import MOST_AT_ONCE
from cler.engine.events import Checkpointed, Elsewhere, Emit, Evaluated, Event, Failed, Finished, Message, Progress
from cler.errors import UsageError, one_line, printable
from cler.files import HOST
from cler.runs.backends.attempts import ATTEMPTS, Attempt, find_attempts, sweep_attempts
from cler.runs.backends.base import Cluster
from cler.runs.backends.wire import Begun, Ended
from cler.runs.custom import only_here
from cler.runs.folders import check_writable, locked
from cler.runs.jobs import Job, remaining
from cler.runs.trainers import Bundle, in_bundles
from cler.signals import raising_when_terminated

LOOK = 0.3
"""Seconds between two looks at what attempts say."""
MOST_TRIES = 3
"""Most attempts in a row without a new checkpoint."""
MOST_WORDS = 200
"""Most characters shown of the reason why an attempt waits, or was lost."""
STOP_SECONDS = 60.0
"""How long attempts that are asked to stop have for their checkpoints."""


def drive(jobs: Sequence[Job], cluster: Cluster, machine: Machine, emit: Emit) -> None:
    """Train the jobs on a cluster: as attempts at bundles of them, in folders that all machines share.

    Attempts that an earlier driver has left are found again. When this one is stopped, those of a lasting cluster stay;
    others are asked for checkpoints and ended.
    """
    check_importable(jobs, machine)
    driver = _Driver(cluster, machine, emit)
    with raising_when_terminated(), driver.present(), driver.ending():
        driver.submit(driver.found(jobs))
        while driver.live:
            driver.look()
            time.sleep(LOOK)


def check_importable(jobs: Sequence[Job], machine: Machine) -> None:
    """Refuse jobs of which other machines could not import all the code."""
    if strange := [*only_here(jobs, machine), *(["a probe"] if any(job.probe for job in jobs) else [])]:
        raise UsageError(
            f"{', '.join(strange)}: no other machine can import this; put it into a file of its own, which all "
            "machines share, or train it here",
            "on",
        )


class _Driver:
    def __init__(self, cluster: Cluster, machine: Machine, emit: Emit) -> None:
        self.cluster, self.machine, self.emit = cluster, machine, emit
        self.live: dict[str, Attempt] = {}
        self._drivers = machine.out.absolute() / ATTEMPTS
        self._folder = self._new_folder()
        self._locks = ExitStack()
        self._avoid: dict[str, None] = {}
        """Machines that were given up."""
        self._wanted: set[RunName] = set()
        self._over: set[RunName] = set()
        """Runs whose end was told."""
        self._asked = -math.inf

    def _new_folder(self) -> Path:
        return self._drivers / f"{HOST}-{os.getpid()}-{uuid4().hex[:8]}"

    @contextmanager
    def present(self) -> Iterator[None]:
        """Inside, other drivers know that this one is running."""
        try:
            check_writable(self._folder)
            with self._locks:
                while not self._locks.enter_context(locked(self._folder)):  # another driver is sweeping it away
                    self._folder = self._new_folder()
                    check_writable(self._folder)
                yield
        finally:
            sweep_attempts(self._drivers)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Stop the attempts when something raises an error inside, unless the cluster is lasting."""
        try:
            yield
        except BaseException:
            if self.live and self.cluster.lasting:
                told, how = _count(self.live, "job"), self.cluster.ending(self.live)
                with suppress(Exception):
                    self.emit(Message(f"still with {self.cluster.name}: {told}, which the same command finds; {how}"))
            else:
                self._stop()
            raise

    def _stop(self) -> None:
        """Let all attempts end with checkpoints, if they do so in time."""
        for attempt in self.live.values():
            attempt.ask_to_stop()
        end = time.monotonic() + STOP_SECONDS
        try:
            waiting = [attempt for attempt in self.live.values() if attempt.host]
            while waiting and time.monotonic() < end:
                time.sleep(LOOK)
                states = self.cluster.states() or {}
                for attempt in waiting:
                    _ = list(attempt.news())
                waiting = [attempt for attempt in waiting if attempt.ended is None and attempt.name in states]
        finally:
            for attempt in self.live.values():
                attempt.discard()
            self.cluster.cancel(self.live)

    def found(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs that no attempt is working on; this driver takes over attempts that another left when it ended."""
        wanted = {job.folder.absolute(): job for job in jobs}
        self._wanted = {job.name for job in jobs}
        states = self.cluster.states()
        if states is None:
            raise UsageError(f"{self.cluster.name} does not answer ({self.cluster.silence}): try again later")
        for folder, attempts in find_attempts(self._drivers, wanted, self.machine, self.cluster.name).items():
            ours = self._locks.enter_context(locked(folder))
            for attempt in attempts:
                stays = self.cluster.lasting and states.get(attempt.name) in ("waiting", "running", "there")
                there = ours and stays and attempt.as_asked
                if ours and not there:
                    attempt.discard()
                    if stays:
                        self.cluster.cancel([attempt.name])
                    continue
                for job in attempt.jobs:
                    if wanted.pop(job.folder.absolute(), None) and not ours:
                        self.emit(Elsewhere(job.name, complete=False))
                if there:
                    self._watch(attempt)
        if self.live:
            self.emit(Message(f"found again with {self.cluster.name}: {_count(self.live, 'job')}"))
        return list(wanted.values())

    def submit(self, jobs: Sequence[Job]) -> None:
        """Make attempts at these jobs, in bundles: as large as a GPU is filled by, or as there are workers for."""
        size = self.machine.at_once or (MOST_AT_ONCE if self.machine.device == "cuda" else 1)
        if self.machine.workers:
            size = min(size, math.ceil(len(jobs) / self.machine.workers)) or 1
        bundles = in_bundles(jobs, size)
        for bundle in bundles:
            self._attempt(bundle)
        if bundles:  # some clusters have a long queue
            self.emit(Message(f"submitted to {self.cluster.name}: {_count(bundles, 'job')}"))

    def _attempt(self, bundle: Bundle, tries: int = 0) -> None:
        attempt = Attempt.make(self._folder, bundle, self.machine, self.cluster.name, tries)
        try:
            self.cluster.submit(attempt.folder, max(job.settings.threads for job in bundle), self._avoid)
        except BaseException:
            attempt.discard()
            raise
        self._watch(attempt)

    def _watch(self, attempt: Attempt) -> None:
        self.live[attempt.name] = attempt
        attempt.heard = time.monotonic()

    def look(self) -> None:
        """Ask the cluster now and then, hear what attempts say, and do what has to be done about them."""
        if time.monotonic() - self._asked >= self.cluster.poll:
            states = self.cluster.states()
            self._asked = time.monotonic()
            if states is not None:
                for attempt in self.live.values():
                    attempt.state = states.get(attempt.name)
                    attempt.missing = attempt.missing + 1 if attempt.state is None else 0
                self._say_why_they_wait()
        for attempt in list(self.live.values()):
            for word in attempt.news():
                attempt.heard = time.monotonic()
                self._hear(attempt, word)
            self._judge(attempt)

    def _say_why_they_wait(self) -> None:
        """A line for each reason, of which `emit` tells each once; how many jobs wait would change all the time."""
        reasons = self.cluster.reasons
        for reason in dict.fromkeys(reasons[name] for name in self.live if name in reasons):
            self.emit(Message(f"waiting for {self.cluster.name}: {one_line(reason)[:MOST_WORDS]}"))

    def _hear(self, attempt: Attempt, word: Event | Begun | Ended) -> None:
        if isinstance(word, Begun):
            more = " …" if len(attempt.jobs) > 1 else ""
            self.emit(Message(f"{word.host} has {_count(attempt.jobs, 'run')}: {attempt.jobs[0].label}{more}"))
        elif isinstance(word, Event) and self._concerns(word):
            if isinstance(word, Checkpointed | Evaluated | Finished | Failed):
                attempt.got_further = True
            if isinstance(word, Finished | Failed | Elsewhere):
                self._over.add(word.run)
            self.emit(word)

    def _concerns(self, event: Event) -> bool:
        """Whether it is about runs that were asked for, and whose end was not told yet."""
        about = set(event.runs) if isinstance(event, Progress) else {event.run} if hasattr(event, "run") else None
        return about is None or not about.isdisjoint(self._wanted - self._over)

    def _judge(self, attempt: Attempt) -> None:
        """Decide what becomes of an attempt, by what it said last and by what the cluster says about it."""
        state, ended = attempt.state, attempt.ended
        gone = attempt.missing > 1  # twice: a question may come before the answer is ready
        if ended and ended.how == "done":
            self._forget(attempt)
        elif ended and ended.how in ("mistake", "error"):
            self._forget(attempt)
            raise (
                UsageError(f"{attempt.host}: {ended.why}")
                if ended.how == "mistake"
                else RuntimeError(printable(ended.why))
            )
        elif state == "cancelled":
            self._forget(attempt)
            raise UsageError(
                f"{attempt.jobs[0].label}: its job was canceled; finished runs are kept, and the same command resumes"
            )
        elif gone:
            words = printable(self.cluster.last_words(attempt.folder))[:MOST_WORDS].rstrip(". ")
            self._again(attempt, ("was stopped" if ended else "was lost") + f" ({words})" * bool(words))
        elif state == "waiting" or (state == "there" and attempt.host is None):
            attempt.heard = time.monotonic()  # nothing is to be heard of it
        elif state is not None and time.monotonic() - attempt.heard > self.machine.give_up_after:
            if attempt.host:
                self._avoid[attempt.host] = None
            self._again(attempt, f"said nothing for {self.machine.give_up_after:g} seconds", cancel=True)

    def _forget(self, attempt: Attempt) -> None:
        attempt.discard()
        del self.live[attempt.name]

    def _again(self, attempt: Attempt, why: str, *, cancel: bool = False) -> None:
        """Make another attempt at the jobs that an attempt has not finished."""
        self._forget(attempt)  # first of all: from here on it publishes nothing
        if cancel:
            self.cluster.cancel([attempt.name])
        left = remaining(attempt.jobs)
        for job in attempt.jobs:
            if job not in left and job.name not in self._over:  # it ended before it could say so
                self.emit(Elsewhere(job.name, complete=True))
        tries = 0 if attempt.got_further else attempt.tries + 1
        where = attempt.host or f"a job of {self.cluster.name}"
        if left and tries >= MOST_TRIES:
            shared = f"nothing was heard of it: do all machines have cler, and share {self._drivers.parent}?"
            raise UsageError(
                f"{where} {why} with {left[0].label}, for the {tries}rd time in a row without a new checkpoint: "
                "finished runs are kept, and the same command resumes the others; "
                + ("a smaller --checkpoint-every may help" if attempt.host else shared)
            )
        if left:
            runs = "its run is" if len(left) == 1 else f"its {len(left)} runs are"
            self.emit(Message(f"{where} {why}: {runs} resumed elsewhere"))
            self._attempt(left, tries)


def _count(things: Sized, word: str) -> str:
    """How many there are, in words: '1 job', '2 jobs'."""
    return f"{len(things)} {word}{'s' * (len(things) != 1)}"
