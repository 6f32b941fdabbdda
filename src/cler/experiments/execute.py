"""From settings and seeds to finished runs on disk, in worker processes on a CPU and in groups on a GPU."""

from __future__ import annotations

import fcntl
import math
import os
import platform
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from cler import data as datasets
from cler.data.augment import Views
from cler.data.images import ImageData
from cler.data.stream import Stream
from cler.engine import Listener, Progress, Run, checkpoint, train
from cler.engine.groups import train_in_groups
from cler.errors import UsageError
from cler.experiments.results import log_line, make_result, read_json, read_result, trim_log, write_json
from cler.experiments.settings import Settings
from cler.methods import Setup, find_method
from cler.nets.resnet import compile_blocks
from cler.regularizers import REGULARIZERS, build_regularizer


@dataclass(frozen=True)
class Job:
    """One run to be done, and the folder it goes to."""

    settings: Settings
    seed: int
    folder: Path
    checkpoint_every: float = 60.0
    """Seconds between checkpoints within a task; 0 for none but that at its end."""

    @property
    def label(self) -> str:
        """What progress calls it."""
        return f"{self.settings.pair}, seed {self.seed}"


def make_jobs(settings: Settings, seeds: Sequence[int], out: Path, *, checkpoint_every: float = 60.0) -> list[Job]:
    """A job per seed, in `out/PAIR_DATASET_BUFFER/seed-N`."""
    size = f"_m{settings.buffer}" if settings.buffer else ""
    folder = out / f"{settings.pair}_{settings.dataset}{size}"
    return [Job(settings, seed, folder / f"seed-{seed}", checkpoint_every) for seed in seeds]


def remaining(jobs: Sequence[Job]) -> list[Job]:
    """The jobs that are not finished yet; refuses folders that hold another run."""
    return [job for job in jobs if not _finished(job)]


def _finished(job: Job) -> bool:
    """Whether the folder holds this run, ended: one that was stopped goes on, one that failed would fail again."""
    wanted: dict[str, Any] = {"settings": job.settings.to_dict(), "seed": job.seed}
    for name in ("settings.json", "result.json"):
        if not (job.folder / name).exists():
            continue
        found = read_json(job.folder / name)
        if {key: found.get(key) for key in wanted} != wanted:
            there = found.get("settings")
            same = there.items() if isinstance(there, dict) else ()
            differing = [key for key, value in wanted["settings"].items() if (key, value) not in same] or ["seed"]
            raise UsageError(
                f"{job.folder} holds a different run (it differs in {', '.join(differing)}): choose another --out"
            )
    if not (job.folder / "result.json").exists():
        return False
    result = read_result(job.folder)
    ended = result["complete"] or "failure" in result
    if ended:
        checkpoint.delete(job.folder)  # left over where the run was killed just after its end
    return ended


def past_failures(jobs: Sequence[Job]) -> list[str]:
    """A line for each finished job that had failed."""
    failures = [(job, read_result(job.folder).get("failure")) for job in jobs]
    return [f"{job.label} stopped: {why} (to try again, delete {job.folder})" for job, why in failures if why]


def restart(jobs: Sequence[Job]) -> None:
    """Delete what jobs that were stopped could go on from."""
    for job in jobs:
        if job.folder.is_dir():
            with writing(job.folder), locked(job.folder):
                checkpoint.delete(job.folder)


def check_writable(folder: Path) -> None:
    """Make the folder, or say why it cannot be written to."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, what cannot be written is an error of one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}") from None


def check_fit(settings: Settings, data: ImageData) -> None:
    """Refuse, before anything is written, settings that this data cannot be used with."""
    _stream(settings, data)
    if settings.regularizer != "none":
        REGULARIZERS[settings.regularizer].check(*data.train_images.shape[2:])


def _stream(settings: Settings, data: ImageData) -> Stream:
    return Stream(
        data,
        settings.tasks,
        batch=settings.batch,
        epochs=settings.epochs,
        class_order=settings.class_order,
        merged=find_method(settings.method).merged,
    )


def build_run(settings: Settings, seed: int, data: ImageData, label: str = "") -> Run:
    """A run ready to be trained, on the device where the data is."""
    device = data.train_images.device
    generator = torch.Generator(device).manual_seed(seed)
    views = Views(data.mean, data.std, generator=generator, device=device)
    stream = _stream(settings, data)
    method = find_method(settings.method)
    with torch.random.fork_rng(devices=[]):  # initial weights come from the seed, the same on every device
        torch.manual_seed(seed)
        network = method.make_network(data.n_classes, width=settings.width, channels=data.train_images.shape[1])
        regularizers = build_regularizer(
            settings.regularizer, network, weight=settings.weight, views=views, generator=generator
        )
    if settings.compile:
        compile_blocks(network, *regularizers)
    setup = Setup(
        network=network.to(device),
        regularizers=[each.to(device) for each in regularizers],
        views=views,
        tasks=settings.tasks,
        classes_per_task=stream.classes_per_task,
        image_shape=tuple(data.train_images.shape[1:]),
        generator=generator,
        lr=settings.lr,
        optimizer=settings.optimizer,
        buffer=settings.buffer,
        replay_batch=settings.replay_batch,
        options=settings.method_options,
        bfloat16=settings.precision == "bf16",
        device=device,
    )
    return Run(method(setup), stream, views=views, generator=generator, precision=settings.precision, label=label)


class Watcher:
    """Is told, in plain values, how the jobs are going; this one does nothing with it."""

    def progress(self, progress: Progress) -> None:
        """A few times a second."""

    def finished(self, label: str, accuracy: float | None, failure: str | None) -> None:
        """A run has ended: with its final class-incremental accuracy, or with what stopped it."""

    def message(self, text: str) -> None:
        """Something that a person should know."""


class Recorder(Listener):
    """Writes each run's result and checkpoints as they come, and tells a watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.jobs: WeakKeyDictionary[Run, Job] = WeakKeyDictionary()  # finished runs must leave the device's memory
        self.about: WeakKeyDictionary[Run, dict[str, Any]] = WeakKeyDictionary()
        self._said: set[str] = set()
        self._writers = ThreadPoolExecutor(4)
        self._being_written: dict[Path, Future[None]] = {}

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
        """A task is done: keep what it gave."""
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

    def close(self) -> None:
        """Wait for all checkpoints that are being written."""
        self._writers.shutdown()

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
            run.steps_done / run.seconds if run.seconds else 0.0,
            environment(run.device),
            at_once=run.at_once,
            complete=run.complete,
            failure=run.failure,
        )
        log_line(job.folder, {"time": datetime.now(UTC).isoformat(timespec="seconds"), **event})
        write_json(job.folder / "result.json", result)


def environment(device: torch.device) -> dict[str, str]:
    """What the run was made with."""
    from cler import __version__

    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {
        "cler": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "device": device.type,
        "hardware": hardware,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def find_device(name: str) -> torch.device:
    """'auto' is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise UsageError(f"unknown device '{name}' (known: auto, cpu, cuda)")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU here; leave --device out to use the CPU")
    return torch.device(name)


def default_precision(device: torch.device) -> str:
    """bfloat16 on a GPU, where it costs no accuracy; single precision on a CPU."""
    return "bf16" if device.type == "cuda" else "fp32"


def execute(
    jobs: Sequence[Job],
    *,
    device: torch.device,
    data_dir: Path | None = None,
    workers: int | None = None,
    at_once: int | None = None,
    watcher: Watcher | None = None,
) -> None:
    """Do all the jobs; results are in their folders.

    On a GPU `at_once` runs are trained side by side (default: as many as fit); on a CPU `workers` processes (default:
    as many as there are cores for the threads of each) take one job after the other.
    """
    for job in jobs:
        check_writable(job.folder)
    with ExitStack() as locks:
        for job in jobs:
            locks.enter_context(locked(job.folder))
        for job in jobs:
            with writing(job.folder):
                for leftover in job.folder.glob(".*.tmp"):  # of a process that was killed while it wrote
                    leftover.unlink()
                write_json(job.folder / "settings.json", {"settings": job.settings.to_dict(), "seed": job.seed})
        _train(jobs, device, data_dir, workers, at_once, watcher or Watcher())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder; a process that ends, however it ends, gives its locks back."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(file.fileno()), (folder / ".lock").stat())  # not one just given back
        except OSError:
            held = False
        if not held:
            raise UsageError(f"another cler is working in {folder}: wait for it, or choose another --out")
        yield
        (folder / ".lock").unlink(missing_ok=True)


def _train(
    jobs: Sequence[Job],
    device: torch.device,
    data_dir: Path | None,
    workers: int | None,
    at_once: int | None,
    watcher: Watcher,
) -> None:
    threads_of_a_run = max(job.settings.threads for job in jobs)
    workers = min(workers or max(1, (os.cpu_count() or 1) // threads_of_a_run), len(jobs))
    if device.type == "cuda":
        train_on_gpu(jobs, device, data_dir, at_once, watcher)
    elif workers > 1:
        from cler.experiments.workers import train_in_processes

        train_in_processes(jobs, data_dir, workers, watcher)
    else:
        train_in_turn(jobs, data_dir, watcher)


class Builder:
    """Builds the runs of jobs, loading each data set once."""

    def __init__(self, device: torch.device, data_dir: Path | None, recorder: Recorder) -> None:
        self.device, self.data_dir, self.recorder = device, data_dir, recorder
        self.loaded: dict[str, ImageData] = {}
        self.fingerprints: dict[str, str] = {}

    def __call__(self, job: Job) -> Run:
        """The run of a job, ready to be trained from its checkpoint on, if it has one."""
        name = job.settings.dataset
        if name not in self.loaded:
            data = datasets.load(name, self.data_dir)
            self.loaded[name], self.fingerprints[name] = data.to(self.device), data.fingerprint()
        run = build_run(job.settings, job.seed, self.loaded[name], job.label)
        self.recorder.jobs[run] = job
        self.recorder.about[run] = {
            "settings": job.settings.to_dict(),
            "seed": job.seed,
            "images": self.fingerprints[name],
            "device": self.device.type,
        }
        self.recorder.checkpoint_every = job.checkpoint_every or math.inf
        with writing(job.folder):
            self._go_on(run, job)
            trim_log(job.folder, run.task)
        return run

    def _go_on(self, run: Run, job: Job) -> None:
        """Bring a new run to where its checkpoint was taken."""
        self.recorder.settle(job.folder)
        found = checkpoint.find(job.folder, self.recorder.message)
        if found is None:
            return
        about = self.recorder.about[run]
        differing = [name for name, value in about.items() if found.about.get(name) != value]
        if differing:
            raise UsageError(
                f"{job.folder} was begun with different {', '.join(differing)}: go back to those, or give --restart "
                "to begin anew"
            )
        try:
            run.restore(found.state, found.accuracy)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(
                f"the checkpoint in {job.folder} does not fit ({error}): give --restart to begin anew"
            ) from error
        self.recorder.message_once(f"{run.label}: going on from task {run.task + 1}, step {run.taken + 1}")


def train_in_turn(
    jobs: Iterable[Job], data_dir: Path | None, watcher: Watcher, stop: signal.Signals = signal.SIGINT
) -> None:
    """Train one job after the other on the CPU, in this process."""
    recorder = Recorder(watcher)
    build = Builder(torch.device("cpu"), data_dir, recorder)
    for job in jobs:
        with threads(job.settings.threads), stopping_after_a_step(recorder, stop):
            train([build(job)], recorder)


def train_on_gpu(
    jobs: Sequence[Job], device: torch.device, data_dir: Path | None, at_once: int | None, watcher: Watcher
) -> None:
    """Train jobs side by side on the GPU, those together that have the same number of steps to go."""

    def alike(job: Job) -> tuple[Any, ...]:
        same = ("dataset", "tasks", "epochs", "batch", "precision")
        found = checkpoint.find(job.folder, recorder.message)
        position = found.position if found else (0, 0)
        return (position, find_method(job.settings.method).merged, *(getattr(job.settings, name) for name in same))

    recorder = Recorder(watcher)
    build = Builder(device, data_dir, recorder)
    try:
        with stopping_after_a_step(recorder, signal.SIGINT):
            train_in_groups(jobs, build, key=alike, at_once=at_once, listener=recorder)
    finally:
        recorder.close()


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


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use so many CPU threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
