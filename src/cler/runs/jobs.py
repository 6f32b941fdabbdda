"""What is to be done: a run and the folder it goes to, and what its folder tells of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cler.config.settings import Settings, completed, unusual
from cler.engine import Run, RunName, checkpoint
from cler.engine.events import Elsewhere, Emit
from cler.errors import UsageError
from cler.files import read_json, write_json, writing
from cler.runs.folders import check_writable, locked
from cler.runs.results import read_result

LONGEST_NAME = 200
"""Characters of a folder's name; file systems have room for 255 bytes."""
TOLD = frozenset({"epochs", "lr", "weight"})
"""Changed settings that progress tells."""


@dataclass(frozen=True)
class Job:
    """One run to be done, and the folder it goes to."""

    settings: Settings
    seed: int
    folder: Path
    checkpoint_every: float = 60.0
    """Seconds between checkpoints within a task; 0 for none but that at its end."""
    probe: Callable[[Run, int], dict[str, Any] | None] | None = None
    """A function that looks into the run after each task, without changing it; what it finds is kept."""

    def finding(self, task: int) -> Path:
        """The file of what the probe has found after a task."""
        return self.folder / f"probe-{task + 1}.json"

    @property
    def label(self) -> str:
        """What progress calls it, short, with that in which the cells of a table differ."""
        changes = [f"{name} {_exact(value)}" for name, value in unusual(self.settings).items() if name in TOLD]
        return f"{' '.join([self.settings.pair, *_size(self.settings), *changes])}, seed {self.seed}"

    @property
    def name(self) -> RunName:
        """What events call it."""
        return RunName(self.label, self.settings.pair, self.seed, self.folder)


def make_jobs(settings: Settings, seeds: Sequence[int], out: Path, *, checkpoint_every: float = 60.0) -> list[Job]:
    """A job per seed, in `out/PAIR_DATASET_BUFFER_CHANGES/seed-N`, so that runs with other settings go elsewhere."""
    changes = [f"{name}-{_exact(value)}" for name, value in unusual(settings).items()]
    name = "_".join([settings.pair, settings.dataset, *_size(settings), *changes])
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return [Job(settings, seed, out / name / f"seed-{seed}", checkpoint_every) for seed in seeds]


def _size(settings: Settings) -> list[str]:
    """How large the memory is, if there is one."""
    return [f"m{settings.buffer}"] if settings.buffer else []


def _exact(value: Any) -> str:
    """A value in a name: a number in six digits if that is all of it, else in as many as it takes."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def remaining(jobs: Sequence[Job]) -> list[Job]:
    """The jobs that are not finished yet; refuses folders that hold another run."""
    return [job for job in jobs if not finished(job)]


def finished(job: Job) -> bool:
    """Whether the folder holds this run, ended: one that was stopped goes on, one that failed would fail again."""
    _found(job, "settings.json", read_json)
    result = _found(job, "result.json", read_result)
    return bool(result) and (result["complete"] or "failure" in result)


def _found(job: Job, name: str, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What a file of the job's folder tells, nothing if it is not there; refuses that of another run."""
    if not (job.folder / name).exists():
        return {}
    try:
        found = read(job.folder / name)
    except UsageError as error:
        raise UsageError(f"{error}; to do this run again, delete {job.folder}") from None
    there = found.get("settings")
    wanted, has = job.settings.to_dict(), completed(there if isinstance(there, dict) else {})
    if (has, found.get("seed")) != (wanted, job.seed):
        differing = _differing(wanted, has)
        differing += ["seed"] if found.get("seed") != job.seed else []
        raise UsageError(
            f"{job.folder} holds a different run (it differs in {', '.join(differing)}): choose another --out"
        )
    return found


def _differing(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """The names of what only one of two has, or both have with different values."""
    return [
        name
        for name in dict.fromkeys([*first, *second])
        if (name in first, first.get(name)) != (name in second, second.get(name))
    ]


@contextmanager
def claimed(job: Job, emit: Emit) -> Iterator[bool]:
    """Keep other processes from a job, and tell whether it is to be done here; if it is, its folder is prepared.

    Whether it has ended is asked while it is held: another process may have just done it.
    """
    check_writable(job.folder)
    with locked(job.folder) as ours:
        todo = ours and not finished(job)
        if todo:
            _prepare(job)
        else:
            emit(Elsewhere(job.name, complete=ours))
        yield todo


def _prepare(job: Job) -> None:
    """Write the settings, and clear what a process left that was killed while it wrote."""
    with writing(job.folder):
        for leftover in job.folder.glob(".*.tmp"):
            leftover.unlink()
        write_json(job.folder / "settings.json", {"settings": job.settings.to_dict(), "seed": job.seed})


def past_failures(jobs: Sequence[Job]) -> list[str]:
    """A line for each finished job that had failed."""
    failures = [(job, read_result(job.folder).get("failure")) for job in jobs]
    return [f"{job.label} stopped: {why} (to try again, delete {job.folder})" for job, why in failures if why]


def tidy(jobs: Sequence[Job]) -> None:
    """Delete the checkpoints of finished jobs, which are left where a run was killed just after its end."""
    for job in jobs:
        with suppress(OSError):  # they only take room
            checkpoint.delete(job.folder)


def redo(jobs: Sequence[Job]) -> None:
    """Delete the results and checkpoints of jobs, so that they are trained again; not of those done elsewhere now."""
    for job in jobs:
        _delete(job, lambda folder: (folder / "result.json").unlink(missing_ok=True))


def restart(jobs: Sequence[Job]) -> None:
    """Delete the checkpoints of jobs that were stopped, but for those that another process is doing."""
    for job in jobs:
        _delete(job)


def _delete(job: Job, more: Callable[[Path], None] = lambda folder: None) -> None:
    """Delete the checkpoints of a job, and more, unless another process is doing it."""
    if job.folder.is_dir():
        with locked(job.folder) as ours:
            if ours:
                with writing(job.folder):
                    checkpoint.delete(job.folder)
                    more(job.folder)
