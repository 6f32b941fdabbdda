"""Where a step's time goes: its kernels by name, and how long it takes with several runs side by side.

    python benchmarks/kernels.py [--runs 1,10] [--steps 30] [--top 25] SETTINGS [SETTINGS ...]

SETTINGS are those of a run, as in method=cope,regularizer=rotation,dataset=mini-imagenet. Images are random, of the
dataset's size; steps are those of the second task.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from cler.config.making import make_settings
from cler.config.reading import parse_options, parse_settings
from cler.config.schema import settings_of
from cler.config.settings import Settings
from cler.data.images import ImageData
from cler.engine.bundles import begin_second_task, release_memory
from cler.engine.run import matmul_precision
from cler.engine.steps import synchronize
from cler.runs.bench import random_images, time_steps
from cler.runs.build import build_run
from cler.runs.machine import default_precision, find_device

SIZES = {"mini-imagenet": 84}
"""Pixels of a side of the images, for datasets that do not have CIFAR-100's 32."""


def parsed(text: str, precision: str) -> Settings:
    """Settings from the command line."""
    given = dict(each.split("=", 1) for each in text.split(","))
    of_all = {name: value for name, value in given.items() if name in settings_of(Settings)}
    chosen = {"dataset": "cifar100", "precision": precision} | parse_settings(of_all)
    own = parse_options([f"{name}={value}" for name, value in given.items() if name not in of_all], chosen)
    return make_settings(**chosen, **own)


def kernels_of_a_step(settings: Settings, data: ImageData) -> dict[str, tuple[int, float]]:
    """How often a step starts each kernel, and the microseconds that these take together."""
    runs = [build_run(settings, 0, data)]
    begin_second_task(runs)
    while not runs[0].method.settled:
        runs[0].step()
    for _ in range(3):
        runs[0].step()
    synchronize(runs[0].device)
    on_gpu = runs[0].device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        runs[0].step()
        synchronize(runs[0].device)
    found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for event in profiler.events():
        kernel = event.device_type == torch.autograd.DeviceType.CUDA
        if kernel or not on_gpu:
            count, taken = found[event.name]
            found[event.name] = count + 1, taken + (event.device_time if on_gpu else event.self_cpu_time_total)
    return dict(found)


def report(text: str, counts: list[int], steps: int, top: int, device: torch.device) -> None:
    """Print what one line of settings gives."""
    settings = parsed(text, default_precision(device))
    data = random_images(device, steps * len(counts), size=SIZES.get(settings.dataset, 32))
    with matmul_precision(settings.precision):
        for count in counts:
            runs = [build_run(replace(settings, epochs=2), seed, data) for seed in range(count)]
            begin_second_task(runs)
            milliseconds, gigabytes = time_steps(runs, steps)
            print(f"{text}: {count} at once, {milliseconds:.3f} ms per step and run, {gigabytes:.1f} GB", flush=True)
            del runs
            release_memory()
        found = kernels_of_a_step(settings, data)
        release_memory()
    total = sum(taken for _, taken in found.values())
    print(f"  one step: {sum(count for count, _ in found.values())} kernels, {total / 1000:.3f} ms")
    for name, (count, taken) in sorted(found.items(), key=lambda item: -item[1][1])[:top]:
        print(f"  {taken / total:6.1%} {taken:9.0f} µs {count:5d} × {name[:150]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", default="1,10")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--top", type=int, default=25)
    given = parser.parse_args()
    for text in given.settings:
        report(text, [int(count) for count in given.runs.split(",")], given.steps, given.top, find_device(given.device))


if __name__ == "__main__":
    main()
