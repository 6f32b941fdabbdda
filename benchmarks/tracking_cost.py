"""What curves cost: the step rate with and without a tracker, in turns, while the same runs train.

    python benchmarks/tracking_cost.py [--track tensorboard] [--method er-ace] [--runs 10] [--seconds 48] [--turn 4]

Runs on random images in the shape of CIFAR-100 train side by side, in one process. Every few seconds the tracker is let
in or kept out, in the order in, out, out, in, so that a GPU that gets slower counts against both. A turn begins and
ends when the device has done all that was asked of it. Prints the mean rate of both and the difference with its
standard error, the figures of the machine as a tracker gets them, and a line of JSON for programs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import fmean, stdev

from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.engine import Control, RunName, train
from cler.engine.bundles import begin_second_task
from cler.engine.events import Event, Progress
from cler.engine.steps import synchronize
from cler.runs.bench import random_images
from cler.runs.build import build_run
from cler.runs.machine import default_precision, environment, find_device
from cler.tracking import Tracking
from cler.tracking.figures import of_the_machine

PATTERN = (True, False, False, True)
"""Whether the tracker is let in, turn by turn."""


class Enough(Exception):  # noqa: N818 - no error
    """The time is over."""


class Turns(Control):
    """Lets a tracker hear events in every other turn, and keeps the rate of each turn."""

    def __init__(self, tracking: Tracking, device, turn: float, seconds: float) -> None:
        self.tracking, self.device, self.turn, self.seconds = tracking, device, turn, seconds
        self.rates: dict[bool, list[float]] = {True: [], False: []}
        self.number = -1
        """The first turn is not counted: there the steps are recorded."""
        self.begun: tuple[float, int] | None = None

    @property
    def tracked(self) -> bool:
        return self.number < 0 or PATTERN[self.number % len(PATTERN)]

    def hear(self, event: Event) -> None:
        if self.tracked or not isinstance(event, Progress):
            self.tracking.hear(event)
        if isinstance(event, Progress):
            self.count(event)

    def count(self, progress: Progress) -> None:
        if self.begun is None:
            self.begun = time.perf_counter(), progress.step
        if time.perf_counter() - self.begun[0] < self.turn:
            return
        synchronize(self.device)
        now = time.perf_counter()
        if self.number >= 0:
            self.rates[self.tracked].append((progress.step - self.begun[1]) / (now - self.begun[0]))
        self.number, self.begun = self.number + 1, (now, progress.step)
        if self.number * self.turn >= self.seconds and self.number % len(PATTERN) == 0:
            self.stop = Enough()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--track", default="tensorboard")
    parser.add_argument("--method", default="er-ace")
    parser.add_argument("--regularizer", default="none")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=48.0, help="of turns")
    parser.add_argument("--turn", type=float, default=4.0)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    machine = Machine(device=arguments.device, track=arguments.track)
    device = find_device(machine.device)
    settings = make_settings(
        method=arguments.method, regularizer=arguments.regularizer, dataset="cifar100", tasks="1+99", epochs=10,
        width=arguments.width, precision=default_precision(device),
    )  # fmt: skip
    data = random_images(device, 1000)
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder, f"seed-{seed}") for seed in range(arguments.runs)]
        names = [RunName(each.name, settings.pair, seed, each) for seed, each in enumerate(folders)]
        runs = [build_run(settings, name.seed, data, name) for name in names]
        begin_second_task(runs)
        for run in runs:
            run.task = 1
        for each in folders:
            each.mkdir()
        tracking = Tracking(said.append)
        for name in names:
            tracking.follow(name, machine.track)
        turns = Turns(tracking, device, arguments.turn, arguments.seconds)
        with suppress(Enough):
            train(runs, turns.hear, turns)
        tracking.close()
        kilobytes = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1024
    told = {kind: fmean(turns.rates[kind]) for kind in (True, False)}
    pairs = [1 - on / off for on, off in zip(turns.rates[True], turns.rates[False], strict=True)]
    cost, error = 100 * fmean(pairs), 100 * stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else float("nan")
    hardware = environment(device)["hardware"]
    print(f"{settings.pair}, {arguments.runs} runs side by side, {hardware}, {settings.precision}")
    print(f"with {machine.track}: {told[True]:.2f} steps/s of each run; without: {told[False]:.2f}")
    print(f"cost: {cost:.2f} % ± {error:.2f} (standard error of {len(pairs)} pairs of turns of {arguments.turn:g} s)")
    print(f"written: {kilobytes:.0f} KiB; the machine: {of_the_machine(told[True])}; said: {said or 'nothing'}")
    values = {"track": machine.track, "with": turns.rates[True], "without": turns.rates[False], "cost_percent": cost}
    print(json.dumps(values | {"standard_error": error, "environment": environment(device)}))


if __name__ == "__main__":
    main()
