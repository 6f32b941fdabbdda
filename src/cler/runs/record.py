"""What runs leave on disk while they are trained: results, logs and checkpoints, from which they are resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from weakref import WeakValueDictionary

from cler.config.machine import Machine
from cler.engine import Control, Run, RunName, checkpoint
from cler.engine.events import (
    Checkpointed,
    Elsewhere,
    Emit,
    Evaluated,
    Event,
    Failed,
    Finished,
    Message,
    Progress,
    Started,
    each_line_once,
    ignore,
)
from cler.engine.losses import Sums, means, merged
from cler.engine.steps import lack_of_memory
from cler.errors import UsageError
from cler.files import write_json, writing
from cler.runs.buffer_images import save_buffer_images
from cler.runs.folders import OWNER, still_ours
from cler.runs.jobs import Job, claimed, finished, same_run
from cler.runs.logs import log_line, trim_log
from cler.runs.machine import environment
from cler.runs.networks import save_network
from cler.runs.results import Result, make_result
from cler.runs.revisions import differing, revisions
from cler.tracking import Tracking

LOG_SECONDS = 2.0
"""Seconds between two lines of a run's log that tell its losses."""


class LostError(UsageError):
    """The run was taken over by another process."""


class Recorder(Control):
    """Gets events where training happens: writes each run's result, log and checkpoints, and passes the events on.

    The runs' trackers get them too. After a `with` block everything is on disk, or a message has said what could not be
    written. If `emit` raises an error, training ends after a checkpoint, and the error is raised then.
    """

    def __init__(self, emit: Emit, machine: Machine) -> None:
        self.emit, self.machine = each_line_once(emit), machine
        self.checkpoint_every, self.graph = machine.checkpoint_every or math.inf, machine.graph
        self.jobs: dict[RunName, Job] = {}
        self.about: dict[RunName, dict[str, Any]] = {}
        self.runs: WeakValueDictionary[RunName, Run] = WeakValueDictionary()  # finished ones must leave the device
        self._tracking = Tracking(self._say)
        self._losses: dict[RunName, tuple[float, Sums]] = {}
        """For each run: when its losses were logged last, and their sums since then."""
        self._writers = ThreadPoolExecutor(4)
        self._being_written: dict[Path, tuple[Future[bool], Checkpointed]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._writers:
                for folder in list(self._being_written):
                    self.settle(folder)
        finally:
            self._tracking.close()
        if kind is None and self.stop is not None:
            raise self.stop

    def stands(self, job: Job) -> tuple[int, int] | None:
        """Where a job would be resumed, by task and step; None for one that has ended."""
        if finished(job):
            return None
        self.settle(job.folder)
        found = checkpoint.find(job.folder, self._say)
        return found.position if found else (0, 0)

    def adopt(self, run: Run, job: Job, data: str) -> None:
        """Record the run of a job from here on; resume it from its checkpoint, if any, and cut its log to that point.

        `data` is the fingerprint of the dataset.
        """
        about = {
            "settings": job.settings.to_dict(),
            "seed": job.seed,
            "data": data,
            "device": run.device.type,
            "revisions": revisions(job.settings),
        }
        self.runs[run.name], self.jobs[run.name], self.about[run.name] = run, job, about
        self._losses[run.name] = time.monotonic(), {}
        self._tracking.follow(run.name, self.machine.track)
        self.until_task = job.until_task
        with writing(job.folder):
            self._resume(run, job)
            trim_log(job.folder, run.task, run.taken)
        run.evaluates_unaided = job.unaided is not None and run.unaided is not None

    def hear(self, event: Event) -> None:
        """Write what an event says about a run, and pass the event on."""
        match event:
            case Started():
                event = replace(event, settings=self.jobs[event.run].settings.to_dict())
            case Progress():
                self._keep_losses(event)
            case Evaluated():
                self._keep_accuracy(event)
            case Failed():
                self._end(event.run, {"event": "failed", "why": event.why})
                settings = self.jobs[event.run].settings
                weight = f", weight {settings.weight}" if settings.regularizers else ""
                event = replace(event, why=f"{event.why} (lr {settings.lr}{weight})")
            case Finished():
                event = replace(event, metrics=self._metrics(event.run))
        self._pass_on(event)
        self._tracking.hear(event)

    def keep(self, run: Run) -> None:
        """Write a checkpoint of the run as it is now; a GPU keeps working meanwhile."""
        folder = self.jobs[run.name].folder
        taken = checkpoint.take(run, self.about[run.name])
        self.settle(folder)
        event = Checkpointed(run.name, run.task, run.taken)
        self._being_written[folder] = self._writers.submit(self._write_checkpoint, folder, taken), event
        if run.device.type != "cuda":
            self.settle(folder)

    def _write_checkpoint(self, folder: Path, taken: checkpoint.Checkpoint) -> bool:
        try:
            self._check_owned(folder)
            checkpoint.write(folder, taken, lambda: self._check_owned(folder))
        except LostError:
            return False
        return True

    def _check_owned(self, folder: Path) -> None:
        """Raise a `LostError` if another process has taken the run over; called before anything is published."""
        if not self._owns(folder):
            raise LostError(f"{folder} was taken over by another process")

    def _owns(self, folder: Path) -> bool:
        """Whether this process may still write a run; if another has taken it over, training is asked to stop."""
        try:
            ours = still_ours(folder)
        except OSError:  # which the writing itself will tell of
            ours = True
        if not ours:
            for name, job in self.jobs.items():
                if job.folder == folder:
                    self._tracking.hear(Elsewhere(name, complete=False))
            self.stop = self.stop or LostError(
                f"{folder} was taken over by another process, which had heard nothing of this one for too long, or "
                f"somebody has deleted its {OWNER}: nothing more is written there"
            )
        return ours

    def settle(self, folder: Path) -> None:
        """Wait for the checkpoint that is being written in a folder."""
        written, event = self._being_written.pop(folder, (None, None))
        if written is not None and event is not None:
            with self._continuing_without("checkpoints"):
                if written.result():
                    self._pass_on(event)

    def _pass_on(self, event: Event) -> None:
        try:
            self.emit(event)
        except (Exception, SystemExit) as error:  # which is how a console ends that nobody reads
            self.stop = self.stop or error

    def _keep_losses(self, event: Progress) -> None:
        """Every few seconds, and at the end of a task, log the mean losses of each run since the line before."""
        now = time.monotonic()
        for name, new in zip(event.runs, event.sums, strict=True):
            written, sums = self._losses[name]
            sums = merged(sums, new)
            if sums and (now - written >= LOG_SECONDS or event.step == event.steps):
                losses = {term: float(f"{mean:.6g}") for term, mean in means(sums).items()}
                with self._continuing_without("losses"):
                    if self._owns(self.jobs[name].folder):
                        line = {"task": event.task, "step": event.step, "steps": event.steps, "losses": losses}
                        self._log(name, {"event": "progress", **line})
                written, sums = now, {}
            self._losses[name] = written, sums

    def _keep_accuracy(self, event: Evaluated) -> None:
        """Write the results after a task, and the findings of the job's probe."""
        run, job = self.runs[event.run], self.jobs[event.run]
        if not self._owns(job.folder):
            return
        if job.probe and (found := job.probe(run, event.task)):
            with writing(job.folder):
                write_json(job.finding(event.task), found)
        line = {"event": "evaluated", "task": event.task, **event.accuracy}
        if run.complete:
            if self.machine.save_network:
                with writing(job.folder):
                    save_network(job.folder, run, job.settings)
            if self.machine.save_buffer_images:
                with writing(job.folder):
                    save_buffer_images(job.folder, run, self.machine.save_buffer_images)
            self._end(event.run, line)
            self._end_unaided(event.run)
        else:
            with self._continuing_without("results so far"):
                self._write(event.run, line)

    def _resume(self, run: Run, job: Job) -> None:
        """Bring a new run to where its checkpoint was taken."""
        self.settle(job.folder)
        found = checkpoint.find(job.folder, self._say)
        if found is None:
            return
        if differences := _differences(found.about, self.about[run.name]):
            raise UsageError(
                f"{job.folder} was started with {', '.join(differences)}: go back to that, or restart to start it over"
            )
        try:
            run.restore(found.state, found.accuracy, found.curves)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            if lack_of_memory(error):
                raise
            raise UsageError(
                f"the checkpoint in {job.folder} does not fit ({error}): delete it to start over"
            ) from error
        self._say(f"{run.label}: resuming from task {run.task + 1}, step {run.taken + 1}")

    def _say(self, text: str) -> None:
        self.hear(Message(text))

    @contextmanager
    def _continuing_without(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._say(f"cannot write {what} ({error.strerror}); continuing without")

    def _end(self, name: RunName, line: dict[str, Any]) -> None:
        folder = self.jobs[name].folder
        self.settle(folder)
        if self._owns(folder):
            with writing(folder):
                self._write(name, line)
                if self._owns(folder):
                    checkpoint.delete(folder)

    def _end_unaided(self, name: RunName) -> None:
        """Write the result of the same run without its teacher, unless another process is training that."""
        run, job = self.runs[name], self.jobs[name].unaided
        if job is None or (accuracy := run.unaided) is None or not self._owns(self.jobs[name].folder):
            return
        with claimed(job, ignore) as todo, writing(job.folder):
            if todo:
                facts = self._facts(run, job, accuracy, run.unaided_confusion)
                facts["revisions"].pop("teacher")
                write_json(job.result, facts)

    def _log(self, name: RunName, line: dict[str, Any]) -> None:
        log_line(self.jobs[name].folder, {"time": datetime.now(UTC).isoformat(timespec="seconds"), **line})

    def _write(self, name: RunName, line: dict[str, Any]) -> None:
        self._log(name, line)
        job = self.jobs[name]
        with suppress(LostError):  # training ends by it
            write_json(job.result, self._result(name), lambda: self._check_owned(job.folder))

    def _metrics(self, name: RunName) -> dict[str, dict[str, float]]:
        """The metrics of a run that has ended; an error in a user's own metric ends training, as in a callback."""
        try:
            return Result.from_dict(self.jobs[name].folder, self._result(name)).metrics
        except Exception as error:
            self.stop = self.stop or error
            return {}

    def _result(self, name: RunName) -> dict[str, Any]:
        run = self.runs[name]
        return self._facts(run, self.jobs[name], run.accuracy, run.confusion)

    def _facts(
        self, run: Run, job: Job, accuracy: dict[str, list[list[float]]], confusion: list[list[int]] | None
    ) -> dict[str, Any]:
        """The content of the result of a job's run: of the run itself, or of the same run without its teacher."""
        return make_result(
            job.settings.to_dict(),
            job.seed,
            accuracy,
            run.seconds,
            run.steps_done,
            environment(run.device),
            images=run.steps_done * run.stream.batch,
            data=self.about[run.name]["data"],
            revisions=self.about[run.name]["revisions"],
            at_once=run.at_once,
            complete=run.complete,
            failure=run.failure,
            curves=run.curves if run.evaluate_every else None,
            confusion=confusion,
            tuned=job.tuned,
        )


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Why a checkpoint cannot be resumed, a few words for each reason; unknown data and revisions are no reason."""
    differences = [f"a different {name}" for name in ("seed", "device") if before.get(name) != now[name]]
    if not same_run(before.get("settings"), now["settings"], (before.get("data"), now["data"])):
        differences.insert(0, "different settings")
    if before.get("data") not in (None, now["data"]):
        differences.append("different data")
    return differences + differing(now["settings"], before.get("revisions", {}), now["revisions"])
