"""Attempts at bundles on other machines: a folder that all share says what to do, and events come back through it.

The folder is also the token of the attempt: once it is deleted, the attempt is given up, and a machine that still works
on it, or comes back to it, publishes nothing more.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from cler import __version__
from cler.config.machine import Machine
from cler.engine import RunName
from cler.engine.steps import lack_of_memory
from cler.errors import UsageError
from cler.files import HOST, append, opened, read_json, write_json, writing
from cler.runs.backends.base import AttemptState
from cler.runs.backends.wire import (
    Begun,
    Ended,
    Word,
    line_of,
    plain_code,
    plain_job,
    plain_machine,
    read_code,
    read_job,
    read_line,
    read_machine,
)
from cler.runs.custom import code_of
from cler.runs.folders import ATTEMPT, given_up, locked
from cler.runs.jobs import Job
from cler.runs.record import LostError
from cler.runs.trainers import Bundle, train_bundles
from cler.signals import STOPPING, TERMINATED

ATTEMPTS = ".attempts"
"""Folder, in that of the results, of all drivers' attempts."""
EVENTS = "events.jsonl"
STOP = "stop"
"""In the folder of an attempt: it is to end, with checkpoints."""


class Attempt:
    """An attempt as its driver sees it."""

    def __init__(self, folder: Path, jobs: Sequence[Job], tries: int = 0, *, as_asked: bool = True) -> None:
        self.folder, self.jobs, self.tries, self.as_asked = folder, list(jobs), tries, as_asked
        """`tries` is how many attempts in a row before this one came to nothing; `as_asked` is whether it makes the
        jobs as they are asked for now, and does not, for one, stop earlier or save less."""
        self.host: str | None = None
        """The machine that makes it, once it has begun there."""
        self.ended: Ended | None = None
        self.heard = 0.0
        """When it was heard of last, or did not have to be."""
        self.got_further = False
        """Whether it got further than the attempts before it."""
        self.state: AttemptState | None = None
        """What the cluster said of it when it was last asked; None if it did not know of it."""
        self.missing = 0
        """How often in a row the cluster did not know of it."""
        self._names = [job.name for job in jobs]
        self._read = 0

    @property
    def name(self) -> str:
        """The name of the attempt, which no other has."""
        return self.folder.name

    @classmethod
    def make(cls, parent: Path, jobs: Bundle, machine: Machine, backend: str, tries: int) -> Attempt:
        """A new attempt, written down for a machine to make."""
        folder = parent.absolute() / uuid4().hex[:16]
        codes = [code_of(job, machine) for job in jobs]
        about = {
            "cler": __version__,
            "backend": backend,
            "tries": tries,
            "order": plain_machine(machine),
            "folder": os.getcwd(),
            "path": list(dict.fromkeys(place for code in codes for place in _places(code.modules))),
            "code": [plain_code(code) for code in codes],
            "jobs": [plain_job(job) for job in jobs],
        }
        with writing(folder):
            folder.mkdir(parents=True)
            append(folder / EVENTS, "")
            write_json(folder / ATTEMPT, about)
        return cls(folder, jobs, tries)

    def news(self) -> Iterator[Word]:
        """What the attempt has said since the last call."""
        with suppress(OSError), opened(self.folder / EVENTS, follow=False) as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole + newline)
            for line in whole.decode(errors="replace").split("\n"):
                word = read_line(line, self._names) if line else None
                if isinstance(word, Begun):
                    self.host, self.ended = word.host, None
                elif isinstance(word, Ended):
                    self.ended = word
                if word is not None:
                    yield word

    def ask_to_stop(self) -> None:
        """Ask for the attempt to end, with checkpoints."""
        with suppress(OSError):
            append(self.folder / STOP, "")

    def discard(self) -> None:
        """Give it up: its token is no longer the runs'."""
        with suppress(OSError):
            (self.folder / ATTEMPT).unlink()
        shutil.rmtree(self.folder, ignore_errors=True)


def _places(modules: Sequence[str]) -> Iterator[str]:
    """The folders where these modules are found, except for installed packages, which every machine has."""
    for module in modules:
        found = find_spec(module.partition(".")[0])
        origin = Path(found.origin).absolute() if found and found.origin else None
        if found and origin and not {"site-packages", "dist-packages"} & set(origin.parts):
            yield str(origin.parents[1] if found.submodule_search_locations else origin.parent)


class Mailbox:
    """Takes what the machine that makes an attempt has to say to its driver."""

    def __init__(self, folder: Path, names: Sequence[RunName]) -> None:
        self.folder, self.names = folder, names

    def __call__(self, word: Word) -> None:
        """Send a word; end training if the driver asks for that, or has given the attempt up."""
        if given_up(str(self.folder)):
            raise LostError(f"{self.folder} was given up: nothing more is written for it")
        with suppress(OSError):  # a full disk is told where results are written
            append(self.folder / EVENTS, line_of(word, self.names))
        if not isinstance(word, Ended) and (self.folder / STOP).exists():
            raise SystemExit(TERMINATED)


def train_attempt(folder: Path, signals: Sequence[signal.Signals] = STOPPING) -> None:
    """Make the attempt that a folder describes; this is what runs on every other machine."""
    if given_up(str(folder)):
        return
    about = read_json(folder / ATTEMPT)
    with suppress(OSError):
        append(folder / EVENTS, "\n")  # after a line that was never finished
    mailbox = Mailbox(folder, [])
    try:
        mailbox(Begun(os.environ.get("SLURMD_NODENAME", HOST)))  # which SLURM is asked to avoid by that name
        jobs = _jobs(about)
        mailbox.names = [job.name for job in jobs]
        train_bundles([jobs], read_machine(about["order"]), mailbox, signals=signals, attempt=folder)
        mailbox(Ended("done"))
    except LostError:
        pass  # nobody waits for this any more
    except (SystemExit, KeyboardInterrupt):
        with suppress(LostError):
            mailbox(Ended("stopped"))
        raise
    except UsageError as mistake:
        with suppress(LostError):
            mailbox(Ended("mistake", str(mistake)))
    except Exception as error:
        with suppress(LostError):
            mailbox(Ended("error", str(lack_of_memory(error) or traceback.format_exc())))


def _jobs(about: dict[str, Any]) -> list[Job]:
    """The jobs of an attempt, with the code that they need imported."""
    if about["cler"] != __version__:
        raise UsageError(f"{HOST} has cler {__version__}, and {about['cler']} is needed: install that there")
    with suppress(OSError):  # what is named by a path that is relative lies there, if anywhere
        os.chdir(about["folder"])
    sys.path += [place for place in about["path"] if place not in sys.path]
    for code in about["code"]:
        read_code(code).load()
    return [read_job(job) for job in about["jobs"]]


def find_attempts(drivers: Path, wanted: dict[Path, Job], machine: Machine, backend: str) -> dict[Path, list[Attempt]]:
    """The attempts of a backend at any of the wanted jobs, by the folder of their driver; `wanted` is by folder."""
    found: dict[Path, list[Attempt]] = {}
    for path in sorted(drivers.glob(f"*/*/{ATTEMPT}")):
        with suppress(ValueError, LookupError, TypeError):  # not one of ours
            about = read_json(path)
            if about["backend"] == backend and any(Path(job["folder"]) in wanted for job in about["jobs"]):
                made = [read_job(job) for job in about["jobs"]]
                jobs = [wanted.get(job.folder, job) for job in made]
                as_asked = [read_job(plain_job(job)) for job in jobs] == made
                as_asked &= about["order"] == plain_machine(machine)
                attempt = Attempt(path.parent, jobs, int(about["tries"]), as_asked=as_asked)
                found.setdefault(path.parents[1], []).append(attempt)
    return found


def sweep_attempts(drivers: Path) -> None:
    """Delete the folders of drivers that have ended and left no attempt, and the parent folder if it is empty then."""
    for folder in drivers.glob("*"):
        with suppress(OSError, UsageError):
            if not any(folder.glob(f"*/{ATTEMPT}")):
                with locked(folder) as ours:
                    for leftover in folder.glob("*/") if ours else ():
                        shutil.rmtree(leftover, ignore_errors=True)
                folder.rmdir()
    with suppress(OSError):
        drivers.rmdir()
