"""What the missing runs of a table will cost: time, estimated from earlier runs or a few steps, and disk space."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from cler.config.settings import Settings
from cler.data.images import ImageData
from cler.engine.bundles import MOST_AT_ONCE, begin_second_task, how_many_fit, release_memory
from cler.engine.run import Run, matmul_precision
from cler.errors import UsageError
from cler.methods import find_method
from cler.paper.reproduce import Work, jobs_of
from cler.paper.tables import PaperCell
from cler.runs.bench import MOST_UNTIMED, random_images, steps_of_a_run, time_steps
from cler.runs.build import build_run
from cler.runs.folders import check_writable
from cler.runs.machine import environment, threads, workers_that_fit
from cler.runs.series import Series

IMAGE_SIZES = {"mini-imagenet": 84}
"""Width of the images of a dataset in pixels, where it is not 32."""
FINISHED_BYTES = 100_000
"""Disk space of a finished run."""
MEASURED_AT_ONCE = 4
"""Runs that are timed side by side on a GPU: more would take long to start and add little precision."""
MEASURED_STEPS = 20
"""Steps that are timed on a GPU."""
MOST_STEPS, MOST_SECONDS = 3, 3.0
"""Limits of timing steps on a CPU."""
WITHOUT_COST = frozenset({"lr", "weight", "buffer", "class_order"})
"""Settings that do not change how long a run takes; a method's own options do where they are whole numbers."""


def runs_at_once(device: torch.device, workers: int | None = None) -> int:
    """How many runs train at the same time: as many as fill a GPU, or one for each process."""
    return MOST_AT_ONCE if device.type == "cuda" else workers or workers_that_fit()


def seconds_per_run(
    missing: Sequence[Work],
    device: torch.device,
    at_once: int,
    groups: Sequence[Series] = (),
    watch: Callable[[str], object] = lambda line: None,
) -> dict[PaperCell, float]:
    """Seconds that a run of each cell adds: by earlier runs like it, else estimated by timing a few steps."""
    steps = 2 * (MOST_STEPS if device.type == "cpu" else MEASURED_STEPS) + MOST_UNTIMED  # up to twice CIFAR-100's tasks
    at_once = min(at_once, len(jobs_of(missing)))
    data: dict[int, ImageData] = {}
    measured: dict[tuple[str, ...], dict[str, float]] = {}
    seconds = {}
    for number, work in enumerate(missing, 1):
        settings = work.jobs[0].settings
        if (known := _seconds_of_earlier_runs(settings, groups, environment(device)["hardware"], at_once)) is not None:
            seconds[work.cell] = known
            continue
        key = settings.pair, settings.dataset, settings.precision
        if key not in measured:
            watch(f"{settings.pair} on {settings.dataset} ({number} of {len(missing)})")
            size = IMAGE_SIZES.get(settings.dataset, 32)
            if size not in data:
                data[size] = random_images(device, steps, size=size)
            measured[key] = _seconds_per_step(settings, data[size], at_once)
        seconds[work.cell] = sum(count * measured[key][phase] for phase, count in steps_of_a_run(settings).items())
    return seconds


def known_seconds(
    missing: Sequence[Work], device: torch.device | None, at_once: int, groups: Sequence[Series]
) -> tuple[dict[PaperCell, float], str]:
    """Seconds that a run of each cell adds, by earlier runs, and the hardware of those; nothing is timed.

    The hardware is the one on which most of the cells are known, this machine's if it is one of several. `device` is
    None if runs will be trained elsewhere.
    """
    own = environment(device)["hardware"] if device else ""
    used = Counter(str(run.environment.get("hardware")) for group in groups for run in group.results)
    best: tuple[dict[PaperCell, float], str] = {}, own
    for hardware in dict.fromkeys([*([own] if own else []), *(name for name, _ in used.most_common())]):
        beside = min(at_once if hardware == own else MOST_AT_ONCE, len(jobs_of(missing)))
        times = {
            work.cell: _seconds_of_earlier_runs(work.jobs[0].settings, groups, hardware, beside, fewest=1)
            for work in missing
        }
        found = {cell: seconds for cell, seconds in times.items() if seconds is not None}
        if len(found) > len(best[0]):
            best = found, hardware
    return best


def _seconds_of_earlier_runs(
    settings: Settings, groups: Sequence[Series], hardware: str, at_once: int, *, fewest: int = MEASURED_AT_ONCE
) -> float | None:
    """The median time of runs with the same work on this hardware, on a GPU with about as many beside them.

    Where there are none, that of runs which differ in the number of epochs alone, in proportion.
    """
    wanted = _work(settings.to_dict())
    times: dict[bool, list[float]] = {True: [], False: []}
    for run in itertools.chain.from_iterable(group.results for group in groups):
        on_cpu = run.environment.get("device") != "cuda"
        too_few = run.at_once is None or (not on_cpu and run.at_once < min(at_once, fewest))
        if too_few or run.environment.get("hardware") != hardware:
            continue
        work = _work(run.settings)
        epochs = wanted["epochs"] / work["epochs"]
        if work | {"epochs": wanted["epochs"]} == wanted and (epochs == 1 or _proportional(settings)):
            times[epochs == 1].append(epochs * run.seconds / (at_once if on_cpu else run.at_once))
    return statistics.median(times[True] or times[False]) if any(times.values()) else None


def _proportional(settings: Settings) -> bool:
    """Whether a run takes twice as long in twice as many epochs: not so with phases of their own length."""
    return len(steps_of_a_run(settings)) == 1


def _work(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run that decide how long it takes."""
    common = {each.name for each in dataclasses.fields(Settings)} - WITHOUT_COST
    own = {name for name, value in settings.items() if isinstance(value, int)} - WITHOUT_COST
    return {name: value for name, value in settings.items() if name in common | own}


def _seconds_per_step(settings: Settings, data: ImageData, at_once: int) -> dict[str, float]:
    """Seconds per step of each phase for one of `at_once` runs; on a CPU as if cores did not slow each other down."""
    phases = steps_of_a_run(settings)

    def build(seed: int) -> Run:
        return build_run(settings, seed, data)

    with matmul_precision(settings.precision), threads(settings.threads):
        if data.train_images.device.type == "cpu":
            run = build(0)
            return {phase: _time_of_a_step(run, phase) / at_once for phase in phases}
        count = how_many_fit(build, 0, min(at_once, MEASURED_AT_ONCE))
        runs = [build(seed) for seed in range(count)]
        seconds = {}
        for phase in phases:
            begin_second_task(runs, phase)
            milliseconds, _ = time_steps(runs, MEASURED_STEPS, message=lambda line: None)
            seconds[phase] = milliseconds / 1000
        del runs
        release_memory()
        return seconds


def _time_of_a_step(run: Run, phase: str) -> float:
    """The fastest of a few steps, in the second task if there is one, since methods do all their work from there on."""
    begin_second_task([run], phase)
    times: list[float] = []
    while len(times) < MOST_STEPS and sum(times) < MOST_SECONDS:
        start = time.perf_counter()
        run.step()
        times.append(time.perf_counter() - start)
    return min(times)


def check_disk(out: Path, missing: Sequence[Work], at_once: int) -> None:
    """Raise `UsageError` unless the folder can be written to and the disk has room for these runs."""
    check_writable(out)
    runs = len(jobs_of(missing))
    largest = max(find_method(work.cell.method).about.running_bytes for work in missing)
    needed = largest * min(runs, at_once) + FINISHED_BYTES * runs
    if (free := shutil.disk_usage(out).free) < needed:
        raise UsageError(
            f"{out} has {free / 1e9:.2f} GB of free disk space, and these runs may need {needed / 1e9:.2f} GB: "
            "free some, or choose another folder"
        )
