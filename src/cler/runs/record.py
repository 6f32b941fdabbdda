"""What runs leave on disk while they are trained: results, logs and checkpoints, from which they go on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch

from cler import data as datasets
from cler.data.images import ImageData
from cler.engine import Listener, Progress, Run, checkpoint
from cler.engine.steps import lack_of_memory
from cler.errors import UsageError
from cler.files import write_json, writing
from cler.runs.build import build_run
from cler.runs.jobs import Job, same_run
from cler.runs.machine import environment
from cler.runs.results import log_line, make_result, trim_log
from cler.runs.revisions import differing, revisions


class Watcher:
    """Is told, in plain values, how the jobs are going; this one does nothing with it."""

    def progress(self, progress: Progress) -> None:
        """A few times a second."""

    def finished(self, label: str, accuracy: float | None, failure: str | None) -> None:
        """A run has ended: with its final class-incremental accuracy, or with what stopped it."""

    def message(self, text: str) -> None:
        """Something that a person should know."""


class Recorder(Listener):
    """Writes each run's result and checkpoints as they come, and tells a watcher.

    After a `with` block all of it is on disk, or what could not be written has been said.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.jobs: WeakKeyDictionary[Run, Job] = WeakKeyDictionary()  # finished runs must leave the device's memory
        self.about: WeakKeyDictionary[Run, dict[str, Any]] = WeakKeyDictionary()
        self._said: set[str] = set()
        self._writers = ThreadPoolExecutor(4)
        self._being_written: dict[Path, Future[None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._writers:
            for folder in list(self._being_written):
                self.settle(folder)

    def adopt(self, run: Run, job: Job, data: str) -> None:
        """Answer for the new run of a job, on data with this fingerprint; it resumes from its checkpoint, if any."""
        about = {
            "settings": job.settings.to_dict(),
            "seed": job.seed,
            "data": data,
            "device": run.device.type,
            "revisions": revisions(job.settings),
        }
        self.jobs[run], self.about[run] = job, about
        self.checkpoint_every = job.checkpoint_every or math.inf
        with writing(job.folder):
            self._go_on(run, job)
            trim_log(job.folder, run.task)

    def progress(self, progress: Progress) -> None:
        """Pass it on."""
        self.watcher.progress(progress)

    def message(self, text: str) -> None:
        """Pass it on."""
        self.watcher.message(text)

    def message_once(self, text: str) -> None:
        """Pass it on, unless it has been said."""
        if text not in self._said:
            self._said.add(text)
            self.message(text)

    def evaluated(self, run: Run, task: int) -> None:
        """A task is done: keep what it gave, and what the job's probe finds."""
        job = self.jobs[run]
        if job.probe and (found := job.probe(run, task)):
            with writing(job.folder):
                write_json(job.finding(task), found)
        event = {"event": "evaluated", "task": task, **{name: rows[-1] for name, rows in run.accuracy.items()}}
        if run.complete:
            self._end(run, event)
            self.watcher.finished(run.label, run.running_accuracy, None)
        else:
            with self._going_on_without("results so far"):
                self._write(run, event)

    def failed(self, run: Run) -> None:
        """A run has failed: keep what it had."""
        self._end(run, {"event": "failed", "why": run.failure})
        settings = ", ".join(f"{name} {value}" for name, value in self.jobs[run].settings.to_dict().items())
        self.watcher.finished(run.label, None, f"{run.failure} ({settings})")

    def checkpoint(self, run: Run) -> None:
        """Keep the run as it is now; a GPU goes on while it is written."""
        folder = self.jobs[run].folder
        taken = checkpoint.take(run, self.about[run])
        self.settle(folder)
        self._being_written[folder] = self._writers.submit(checkpoint.write, folder, taken)
        if run.device.type != "cuda":
            self.settle(folder)

    def settle(self, folder: Path) -> None:
        """Wait for the checkpoint that is being written in a folder."""
        with self._going_on_without("checkpoints"):
            if written := self._being_written.pop(folder, None):
                written.result()

    def _go_on(self, run: Run, job: Job) -> None:
        """Bring a new run to where its checkpoint was taken."""
        self.settle(job.folder)
        found = checkpoint.find(job.folder, self.message)
        if found is None:
            return
        if differences := _differences(found.about, self.about[run]):
            raise UsageError(
                f"{job.folder} was begun with {', '.join(differences)}: go back to that, or --restart begins it again"
            )
        try:
            run.restore(found.state, found.accuracy)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            if lack_of_memory(error):
                raise
            raise UsageError(
                f"the checkpoint in {job.folder} does not fit ({error}): delete it to begin anew"
            ) from error
        self.message_once(f"{run.label}: going on from task {run.task + 1}, step {run.taken + 1}")

    @contextmanager
    def _going_on_without(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.message_once(f"cannot write {what} ({error.strerror}); going on without")

    def _end(self, run: Run, event: dict[str, Any]) -> None:
        folder = self.jobs[run].folder
        self.settle(folder)
        with writing(folder):
            self._write(run, event)
            checkpoint.delete(folder)

    def _write(self, run: Run, event: dict[str, Any]) -> None:
        job = self.jobs[run]
        result = make_result(
            job.settings.to_dict(),
            job.seed,
            run.accuracy,
            run.seconds,
            run.steps_done,
            environment(run.device),
            images=run.steps_done * run.stream.batch,
            data=self.about[run]["data"],
            revisions=self.about[run]["revisions"],
            at_once=run.at_once,
            complete=run.complete,
            failure=run.failure,
        )
        log_line(job.folder, {"time": datetime.now(UTC).isoformat(timespec="seconds"), **event})
        write_json(job.folder / "result.json", result)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What keeps a checkpoint from being resumed, a few words each; data and revisions may not be known."""
    differences = [f"a different {name}" for name in ("seed", "device") if before.get(name) != now[name]]
    if not same_run(before.get("settings"), now["settings"]):
        differences.insert(0, "different settings")
    if before.get("data") not in (None, now["data"]):
        differences.append("different data")
    return differences + differing(now["settings"], before.get("revisions", {}), now["revisions"])


class Builder:
    """Builds the runs of jobs, loading each data set once."""

    def __init__(self, device: torch.device, data_dir: Path | None, recorder: Recorder) -> None:
        self.device, self.data_dir, self.recorder = device, data_dir, recorder
        self.loaded: dict[str, tuple[ImageData, str]] = {}
        """On the device, with their fingerprints."""

    def __call__(self, job: Job) -> Run:
        """The run of a job, ready to be trained from its checkpoint on, if it has one."""
        name = job.settings.dataset
        if name not in self.loaded:
            data = datasets.load(name, self.data_dir)
            self.loaded[name] = data.to(self.device), data.fingerprint()
        images, fingerprint = self.loaded[name]
        run = build_run(job.settings, job.seed, images, job.label)
        self.recorder.adopt(run, job, fingerprint)
        return run
