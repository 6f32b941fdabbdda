"""What the runs that a table lacks will take: time, from earlier runs or a few steps, and room on the disk."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from cler.data.images import ImageData
from cler.engine.groups import MOST_AT_ONCE, begin_second_task, how_many_fit, release_memory
from cler.engine.run import Run, matmul_precision
from cler.errors import UsageError
from cler.experiments.bench import MOST_UNTIMED, random_images, time_steps
from cler.experiments.build import build_run
from cler.experiments.compare import Group
from cler.experiments.machine import environment, threads
from cler.experiments.paper import Cell
from cler.experiments.reproduce import Work
from cler.experiments.settings import Settings
from cler.methods import find_method

TRAINING_IMAGES = 50_000
"""Of both of the paper's image sets."""
IMAGE_SIZES = {"mini-imagenet": 84}
"""In pixels, where it is not 32."""
RUNNING_BYTES = 400_000_000
"""On disk for a run while it is trained: two checkpoints with 8000 images of 84×84 pixels, or the full-size network."""
FINISHED_BYTES = 100_000
MEASURED_AT_ONCE = 4
"""Runs side by side whose steps are timed on a GPU: more of them would cost more to begin than they tell."""
MEASURED_STEPS = 20
"""Of them."""
MOST_STEPS, MOST_SECONDS = 5, 5.0
"""Of a measurement on a CPU."""
WORK = (
    "method",
    "regularizer",
    "dataset",
    "precision",
    "epochs",
    "batch",
    "replay_batch",
    "width",
    "threads",
    "compile",
)
"""The settings that decide how long a run takes."""


def runs_at_once(device: torch.device, workers: int | None = None) -> int:
    """How many runs a group has: what fills a GPU, or a run for each process."""
    return MOST_AT_ONCE if device.type == "cuda" else workers or os.cpu_count() or 1


def seconds_per_run(
    missing: Sequence[Work],
    device: torch.device,
    at_once: int,
    groups: Sequence[Group] = (),
    watch: Callable[[str], object] = lambda text: None,
) -> dict[Cell, float]:
    """How much time a run of each cell adds: as earlier runs like it did here, else from a few steps of its pair."""
    steps = 2 * (MOST_STEPS if device.type == "cpu" else MEASURED_STEPS) + MOST_UNTIMED  # up to twice CIFAR-100's tasks
    at_once = min(at_once, sum(len(work.jobs) for work in missing))
    data: dict[int, ImageData] = {}
    measured: dict[tuple[str, ...], float] = {}
    seconds = {}
    for work in missing:
        settings = work.jobs[0].settings
        if (known := _seconds_of_earlier_runs(settings, groups, device, at_once)) is not None:
            seconds[work.cell] = known
            continue
        key = settings.pair, settings.dataset, settings.precision
        if key not in measured:
            watch(f"{settings.pair} on {settings.dataset}")
            size = IMAGE_SIZES.get(settings.dataset, 32)
            if size not in data:
                data[size] = random_images(device, steps, size=size)
            measured[key] = _seconds_per_step(settings, data[size], at_once)
        seconds[work.cell] = _steps(settings) * measured[key]
    return seconds


def _steps(settings: Settings) -> int:
    """Of a whole run; those of other phases than `observe` count as if they took as long."""
    method = find_method(settings.method)
    tasks = 1 if method.merged else settings.tasks
    epoch = TRAINING_IMAGES // tasks // settings.batch
    phases = [
        method.phases(settings.method_options, task, epoch=epoch, epochs=settings.epochs) for task in range(tasks)
    ]
    return sum(sum(each.values()) for each in phases)


def _seconds_of_earlier_runs(
    settings: Settings, groups: Sequence[Group], device: torch.device, at_once: int
) -> float | None:
    """The median of runs with the same amount of work on the same hardware, on a GPU with as much beside them."""
    wanted, hardware = settings.to_dict(), environment(device)["hardware"]
    on_cpu = device.type == "cpu"
    fewest = 1 if on_cpu else min(at_once, MEASURED_AT_ONCE)
    times = [
        run.seconds / (at_once if on_cpu else run.at_once)
        for run in itertools.chain.from_iterable(group.runs for group in groups)
        if run.at_once is not None and run.at_once >= fewest and run.environment.get("hardware") == hardware
        if all(run.settings.get(name) == wanted.get(name) for name in WORK)
    ]
    return statistics.median(times) if times else None


def cheapest_first(missing: Sequence[Work], seconds: dict[Cell, float]) -> list[Work]:
    """In the order of what is left to do of each cell, so that a long one holds up no other."""
    return sorted(missing, key=lambda work: seconds[work.cell] * len(work.jobs))


def _seconds_per_step(settings: Settings, data: ImageData, at_once: int) -> float:
    """Of one run among so many: measured so on a GPU; on a CPU alone, as if the cores did not disturb each other."""

    def build(seed: int) -> Run:
        return build_run(settings, seed, data)

    with matmul_precision(settings.precision), threads(settings.threads):
        if data.train_images.device.type == "cpu":
            return _time_of_a_step(build(0)) / at_once
        count = how_many_fit(build, 0, min(at_once, MEASURED_AT_ONCE))
        runs = [build(seed) for seed in range(count)]
        begin_second_task(runs)
        milliseconds, _ = time_steps(runs, MEASURED_STEPS, message=lambda text: None)
        del runs
        release_memory()
        return milliseconds / 1000


def _time_of_a_step(run: Run) -> float:
    """The median of a few, in the second task, where every method does all it does, if there is one."""
    begin_second_task([run])
    times: list[float] = []
    while len(times) < MOST_STEPS and sum(times) < MOST_SECONDS:
        start = time.perf_counter()
        run.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def check_disk(out: Path, runs: int, at_once: int) -> None:
    """Refuse a folder without room for so many runs."""
    needed = RUNNING_BYTES * min(runs, at_once) + FINISHED_BYTES * runs
    if (free := shutil.disk_usage(out).free) < needed:
        raise UsageError(
            f"{out} has {free / 1e9:.2f} GB of free disk and this may take {needed / 1e9:.2f} GB: "
            "make room, or choose another --out"
        )
