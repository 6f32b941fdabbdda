"""Jobs: a run to be trained, its folder, and what the folder says about it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cler.config.comparing import completed
from cler.config.making import unusual
from cler.config.settings import OF_READING, Settings
from cler.config.values import exact
from cler.engine import Run, RunName, checkpoint
from cler.engine.events import Elsewhere, Emit
from cler.errors import UsageError
from cler.files import frozen, read_json, write_json, writing
from cler.runs import buffer_images, networks
from cler.runs.folders import RESULT, SETTINGS, check_writable, locked, search
from cler.runs.results import read_result
from cler.runs.revisions import differing, revisions

LONGEST_NAME = 200
"""Longest name of a folder, in bytes; file systems allow 255."""
FINDING = "probe-{}.json"
"""File of what a job's probe has found after a task."""
TOLD = frozenset({"epochs", "lr", "weight"})
"""Changed settings that progress bars show."""


@dataclass(frozen=True)
class Job:
    """One run to be done, and the folder it goes to."""

    settings: Settings
    seed: int
    folder: Path
    until_task: int | None = None
    """After how many tasks the run stops, with a checkpoint; None for all."""
    tuned: dict[str, Any] | None = None
    """How the settings were tuned, for the result; None where they were not."""
    data: str | None = None
    """The fingerprint of a dataset that lies at a path, which may be another tomorrow; None for one that has a name."""
    probe: Callable[[Run, int], dict[str, Any] | None] | None = None
    """A function that looks into the run after each task, without changing it; what it finds is kept."""
    unaided: Job | None = None
    """The same run without its teacher, which learns the same: it gets its result when this one has learned all; None
    for none."""

    @property
    def result(self) -> Path:
        """The file of its result."""
        return self.folder / RESULT

    def finding(self, task: int) -> Path:
        """The file of what the probe has found after a task."""
        return self.folder / FINDING.format(task + 1)

    @property
    def label(self) -> str:
        """A short name for progress bars, with the settings in which the cells of a table differ."""
        changes = [f"{name} {_in_a_name(value)}" for name, value in unusual(self.settings).items() if name in TOLD]
        size = [f"buffer {self.settings.buffer}"] if self.settings.buffer else []
        return f"{' '.join([self.settings.pair, *size, *changes])}, seed {self.seed}"

    @property
    def name(self) -> RunName:
        """The name of the run in events."""
        return RunName(self.label, self.settings.pair, self.seed, self.folder)


class Index:
    """The runs below a folder by their settings and seed, whatever the folders they are in are called."""

    def __init__(self, out: Path) -> None:
        self._runs: dict[Any, dict[Path, bool]] = {}
        """The folders of each run, by settings and seed, and whether it has ended there."""
        self._moved: dict[Any, dict[Path, bool]] = {}
        """Those folders by pixels instead of a path, for datasets that have a path."""
        self._taken: set[Path] = set()
        """Folders that a run is in, or will be."""
        for folder in dict.fromkeys(path.parent for path in search(out, (RESULT, SETTINGS))[0]):
            self._add(folder)

    def _add(self, folder: Path) -> None:
        for name in (RESULT, SETTINGS):
            with suppress(UsageError):  # a file that cannot be read counts as absent
                found = read_json(folder / name)
                settings, seed = found.get("settings"), found.get("seed")
                if isinstance(settings, dict) and isinstance(seed, int):
                    key = run_key(settings, seed)
                    self._runs.setdefault(key, {})[folder] = _ended(found)
                    self._taken.add(folder)
                    if pixels := by_pixels(settings, found.get("data")):
                        self._moved.setdefault(run_key(pixels, seed), {})[folder] = _ended(found)
                    return

    def folder(self, settings: Settings, seed: int, usual: Path, data: str | None = None) -> Path:
        """The folder that a run is in, if possible ended; for a new run `usual` or, if that is taken, the next one.

        With the fingerprint `data`, a run on the same pixels at another path is the same.
        """
        written = settings.to_dict()
        key, pixels = run_key(written, seed), by_pixels(written, data)
        there = self._runs.get(key) or (pixels and self._moved.get(run_key(pixels, seed)))
        if there:
            return min(there, key=lambda folder: (not there[folder], folder != usual, folder))
        free, number = usual, 1
        while free in self._taken:
            number += 1
            free = usual.parent.with_name(f"{usual.parent.name}_{number}") / usual.name
        self._taken.add(free)
        self._runs[key] = {free: False}
        return free


def make_jobs(
    settings: Settings,
    seeds: Sequence[int],
    out: Path,
    *,
    until_task: int | None = None,
    tuned: dict[str, Any] | None = None,
    data: str | None = None,
    index: Index | None = None,
) -> list[Job]:
    """A job per seed: in the folder below `out` that has this run, or in `out/PAIR_DATASET_BUFFER_CHANGES/seed-N`.

    `index` is that of `out`, where many are made; `data` is the fingerprint of a dataset that lies at a path.
    """
    changes = [f"{name}-{_in_a_name(value)}" for name, value in unusual(settings).items()]
    name = re.sub(r"[^\w.+-]+", "-", "_".join([settings.pair, settings.dataset, *_size(settings), *changes]))
    if len(written := name.encode()) > LONGEST_NAME:
        name = f"{written[: LONGEST_NAME - 9].decode(errors='ignore')}_{hashlib.sha256(written).hexdigest()[:8]}"
    index = index or Index(out)
    folders = {seed: index.folder(settings, seed, out / name / f"seed-{seed}", data) for seed in seeds}
    return [
        Job(settings, seed, folder, until_task=until_task, tuned=tuned, data=data) for seed, folder in folders.items()
    ]


def run_key(settings: dict[str, Any], seed: int) -> Hashable:
    """Equal for the settings and seed of the same run."""
    return frozen(completed(settings)), seed


def same_run(first: Any, second: Any, data: tuple[Any, Any] = (None, None)) -> bool:
    """Whether settings, as files hold them, are those of the same run; `data` are the fingerprints of both datasets."""
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return False
    moved = [by_pixels(each, fingerprint) for each, fingerprint in zip((first, second), data, strict=True)]
    return completed(first) == completed(second) or (None not in moved and moved[0] == moved[1])


def by_pixels(settings: dict[str, Any], data: Any) -> dict[str, Any] | None:
    """Settings with a dataset's fingerprint in the place of its path and how it is read; None without a path."""
    if data is None or ":" not in str(settings.get("dataset")):
        return None
    how = {name: getattr(Settings, name) for name in OF_READING}
    return completed(settings) | how | {"dataset": f":{data}"}


def _size(settings: Settings) -> list[str]:
    """The size of the buffer in a folder's name, if there is one."""
    return [f"m{settings.buffer}"] if settings.buffer else []


def _in_a_name(value: Any) -> str:
    """A value as part of a name."""
    return exact(value) if isinstance(value, float) else str(value)


def remaining(jobs: Sequence[Job]) -> list[Job]:
    """The jobs that have not ended yet; refuses folders that hold another run."""
    return to_do_and_ended(jobs)[0]


def to_do_and_ended(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """The jobs that are still to be trained, and those that have ended."""
    todo: list[Job] = []
    ended: list[Job] = []
    for job in jobs:
        (ended if finished(job) else todo).append(job)
    return todo, ended


def finished(job: Job) -> bool:
    """Whether the folder holds this run, ended: one that was stopped is resumed, one that failed would fail again.

    A run that is to stop after some tasks has ended when it got as far.
    """
    _found(job, SETTINGS, read_json)
    result = _found(job, RESULT, read_result)
    as_far = job.until_task is not None and bool(result) and len(result["accuracy"]["class_il"]) >= job.until_task
    return as_far or _ended(result)


def _ended(result: dict[str, Any]) -> bool:
    return result.get("complete") is True or "failure" in result


def _found(job: Job, name: str, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The content of a file in the job's folder, empty if it is not there; refuses that of another run."""
    if not (job.folder / name).exists():
        return {}
    try:
        found = read(job.folder / name)
    except UsageError as error:
        raise UsageError(f"{error}; to do this run again, delete {job.folder}") from None
    settings, there = job.settings.to_dict(), found.get("settings")
    same = same_run(settings, there, (job.data, found.get("data")))
    different = [] if same else _different(settings, there if isinstance(there, dict) else {})
    different += ["seed"] if found.get("seed") != job.seed else []
    if different:
        raise UsageError(
            f"{job.folder} holds a different run (it differs in {', '.join(different)}): choose another output folder"
        )
    return found


def _different(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """The names of what only one of two has, or both have with different values."""
    first, second = completed(first), completed(second)
    return [
        name
        for name in dict.fromkeys([*first, *second])
        if (name in first, first.get(name)) != (name in second, second.get(name))
    ]


@contextmanager
def claimed(job: Job, emit: Emit, attempt: Path | None = None) -> Iterator[bool]:
    """Lock a job against other processes; yields whether it is to be done here, and if so prepares its folder.

    Whether it has ended is checked under the lock, since another process may have just finished it. `attempt` is the
    folder of the attempt that this is part of.
    """
    check_writable(job.folder)
    with locked(job.folder, attempt) as ours:
        todo = ours and not finished(job)
        if todo:
            _prepare(job)
        else:
            emit(Elsewhere(job.name, complete=ours))
        yield todo


def _prepare(job: Job) -> None:
    """Write the settings, and delete temporary files of a process that was killed while it wrote."""
    with writing(job.folder):
        for leftover in job.folder.glob(".*.tmp"):
            leftover.unlink()
        about = {"settings": job.settings.to_dict(), "seed": job.seed}
        write_json(job.folder / SETTINGS, about | ({} if job.data is None else {"data": job.data}))


def outdated(
    jobs: Sequence[Job],
    fingerprint: Callable[[Settings], str | None],
    remedy: str = "--redo (in Python redo=True)",
) -> list[str]:
    """A line for each way in which today's code or data would not reproduce finished runs; they still count as such.

    `fingerprint` gives that of the dataset of some settings, None if it is not here. What a result does not say is the
    same. `remedy` is what repeats the runs.
    """
    folders: dict[str, list[Path]] = {}
    for job in jobs:
        result = read_result(job.folder)
        others = differing(result["settings"], result.get("revisions", {}), revisions(job.settings))
        how = [f"made by {other}" for other in others]
        data = result.get("data")
        if data is not None and (now := fingerprint(job.settings)) not in (None, data):
            how.append(f"made on data with fingerprint {data}, today's has {now}")
        for each in how:
            folders.setdefault(each, []).append(job.folder.parent)
    return [
        f"{len(there)} runs in {os.path.commonpath(there) or '.'} were {how}: {remedy} repeats them"
        if len(there) > 1
        else f"1 run in {there[0]} was {how}: {remedy} repeats it"
        for how, there in folders.items()
    ]


def past_failures(jobs: Sequence[Job]) -> list[str]:
    """A line for each finished job that had failed."""
    failures = [(job, read_result(job.folder).get("failure")) for job in jobs]
    return [f"{job.label} stopped: {why} (to try again, delete {job.folder})" for job, why in failures if why]


def delete_checkpoints(jobs: Sequence[Job]) -> None:
    """Delete the checkpoints of finished jobs; some are left if a run is killed just after its end."""
    for job in jobs:
        if job.until_task is None:  # else the run is to be resumed from there
            with suppress(OSError):  # they only take room
                checkpoint.delete(job.folder)


def restart(jobs: Sequence[Job]) -> None:
    """Delete the checkpoints of jobs that were stopped, except for those that another process is training."""
    _drop(jobs, ())


def redo(jobs: Sequence[Job]) -> None:
    """Delete the results and checkpoints of jobs, except for those that another process is training."""
    _drop(jobs, (RESULT, buffer_images.NAME, networks.NAME, FINDING.format("*")))


def _drop(jobs: Sequence[Job], patterns: Sequence[str]) -> None:
    for job in jobs:
        if job.folder.is_dir():
            with writing(job.folder), locked(job.folder) as ours:
                if ours:
                    checkpoint.delete(job.folder)
                    for path in [path for pattern in patterns for path in job.folder.glob(pattern)]:
                        path.unlink(missing_ok=True)
