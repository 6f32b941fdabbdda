"""What the runs that a table lacks will take: time, from earlier runs or a few steps, and room on the disk."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import statistics
import time
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
from cler.paper.reproduce import Work
from cler.paper.tables import Cell
from cler.runs.bench import MOST_UNTIMED, random_images, steps_of_a_run, time_steps
from cler.runs.build import build_run
from cler.runs.compare import Group
from cler.runs.machine import environment, threads, workers_that_fit

IMAGE_SIZES = {"mini-imagenet": 84}
"""In pixels, where it is not 32."""
FINISHED_BYTES = 100_000
"""On disk for a run that has ended."""
MEASURED_AT_ONCE = 4
"""Runs side by side whose steps are timed on a GPU: more of them would cost more to begin than they tell."""
MEASURED_STEPS = 20
"""Of them."""
MOST_STEPS, MOST_SECONDS = 3, 3.0
"""Of a measurement on a CPU."""
LEISURE = frozenset({"lr", "weight", "buffer", "class_order"})
"""Settings that do not decide how long a run takes; a method's own do where they are whole numbers."""


def runs_at_once(device: torch.device, workers: int | None = None) -> int:
    """How many runs a group has: what fills a GPU, or a run for each process."""
    return MOST_AT_ONCE if device.type == "cuda" else workers or workers_that_fit()


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
    measured: dict[tuple[str, ...], dict[str, float]] = {}
    seconds = {}
    for number, work in enumerate(missing, 1):
        settings = work.jobs[0].settings
        if (known := _seconds_of_earlier_runs(settings, groups, device, at_once)) is not None:
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


def _seconds_of_earlier_runs(
    settings: Settings, groups: Sequence[Group], device: torch.device, at_once: int
) -> float | None:
    """The median of runs with the same amount of work on the same hardware, on a GPU with as much beside them."""
    wanted, hardware = _work(settings.to_dict()), environment(device)["hardware"]
    on_cpu = device.type == "cpu"
    fewest = 1 if on_cpu else min(at_once, MEASURED_AT_ONCE)
    times = [
        run.seconds / (at_once if on_cpu else run.at_once)
        for run in itertools.chain.from_iterable(group.runs for group in groups)
        if run.at_once is not None and run.at_once >= fewest and run.environment.get("hardware") == hardware
        if _work(run.settings) == wanted
    ]
    return statistics.median(times) if times else None


def _work(settings: dict[str, Any]) -> dict[str, Any]:
    """Those of a run's settings that decide how long it takes."""
    common = {each.name for each in dataclasses.fields(Settings)} - LEISURE
    own = {name for name, value in settings.items() if isinstance(value, int)} - LEISURE
    return {name: value for name, value in settings.items() if name in common | own}


def cheapest_first(missing: Sequence[Work], seconds: dict[Cell, float]) -> list[Work]:
    """In the order of what is left to do of each cell, so that a long one holds up no other."""
    return sorted(missing, key=lambda work: seconds[work.cell] * len(work.jobs))


def _seconds_per_step(settings: Settings, data: ImageData, at_once: int) -> dict[str, float]:
    """Of each phase, for one run among so many: on a GPU beside others; on a CPU as if cores did not disturb others."""
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
            milliseconds, _ = time_steps(runs, MEASURED_STEPS, message=lambda text: None)
            seconds[phase] = milliseconds / 1000
        del runs
        release_memory()
        return seconds


def _time_of_a_step(run: Run, phase: str) -> float:
    """The shortest of a few, in the second task, where every method does all it does, if there is one."""
    begin_second_task([run], phase)
    times: list[float] = []
    while len(times) < MOST_STEPS and sum(times) < MOST_SECONDS:
        start = time.perf_counter()
        run.step()
        times.append(time.perf_counter() - start)
    return min(times)


def check_disk(out: Path, missing: Sequence[Work], at_once: int) -> None:
    """Refuse a folder without room for these runs."""
    runs = sum(len(work.jobs) for work in missing)
    largest = max(find_method(work.cell.method).about.running_bytes for work in missing)
    needed = largest * min(runs, at_once) + FINISHED_BYTES * runs
    if (free := shutil.disk_usage(out).free) < needed:
        raise UsageError(
            f"{out} has {free / 1e9:.2f} GB of free disk and this may take {needed / 1e9:.2f} GB: "
            "make room, or choose another --out"
        )
