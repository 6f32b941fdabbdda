"""Give a small learner 100,000 batches, and see that the memory of the process stays a flat line.

python tools/memory_test.py --log tools/memory_test.log --figure docs/memory.png

Each batch is a call of `partial_fit`. Now and then the learner is asked, saved, loaded and copied, a call is refused,
and one is interrupted.
"""

from __future__ import annotations

import argparse
import copy
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import nn

import cler
from cler.report.figures import COLORS, finish_panel, new_figure

SIZE = 8
BATCH = 4
CLASSES = 12
WARM_UP = 0.1
"""Share of the batches before memory is measured: caches fill, and the allocator finds its size."""
MOST_GROWTH = 1.0
"""Megabytes that the line may rise by over all of the batches."""


def network(n_classes: int) -> cler.Backbone:
    """As small as a network can be that has all parts."""
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten()),
        nn.Linear(8, n_classes),
    )
    return cler.backbone(module, tap="0", head="1", classifier="2")


def occupied() -> float:
    """Megabytes of main memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Interruption(BaseException):
    """What the handler of a signal raises."""


def interrupt(*_: object) -> None:
    raise Interruption


def use(learner: cler.Learner, images: np.ndarray, file: Path) -> None:
    """All that may be done with a learner but to teach it."""
    learner.predict(images)
    learner.save(file)
    copy.deepcopy(cler.Learner.load(file, network=network)).partial_fit(images, [0] * len(images))
    with suppress(cler.UsageError):
        learner.partial_fit(images, [0.5] * len(images))
    with suppress(Interruption):
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.002)
        learner.partial_fit(np.concatenate([images] * 100), [0] * 100 * len(images))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def measure(batches: int, every: int) -> tuple[list[int], list[float]]:
    """How many batches were learned, and the memory occupied then."""
    learner = cler.Learner("er-ace", "rotation", network=network, image_size=SIZE, batch=BATCH, replay_batch=BATCH,
                           buffer=50, device="cpu")  # fmt: skip
    generator = np.random.default_rng(0)
    learned, memory = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, batches + 1):
            images = generator.integers(0, 256, (BATCH, SIZE, SIZE, 3), dtype=np.uint8)
            learner.partial_fit(images, generator.integers(0, CLASSES, BATCH))
            if number % every == 0:
                use(learner, images, Path(folder) / "learner.safetensors")
                learned.append(number)
                memory.append(occupied())
    return learned, memory


def rise(learned: list[int], memory: list[float]) -> float:
    """Megabytes that a straight line through the memory rises by over all batches, the first ones left out."""
    first = int(WARM_UP * len(learned))
    slope = np.polyfit(learned[first:], memory[first:], 1)[0]
    return float(slope * learned[-1])


def draw(learned: list[int], memory: list[float], path: Path) -> None:
    figure = new_figure(6.4, 3.2)
    panel = figure.subplots()
    panel.plot(learned, memory, color=COLORS[0])
    panel.set_ylim(0, 1.3 * max(memory))
    panel.set_xlim(0, learned[-1])
    panel.set_ylabel("Memory of the process, MB")
    finish_panel(panel, f"A learner over {learned[-1]:,} batches", "Batches learned")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=1000, help="batches between two looks")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGVTALRM, interrupt)
    began = time.monotonic()
    learned, memory = measure(options.batches, options.every)
    rises = rise(learned, memory)
    flat = rises <= MOST_GROWTH
    lines = [f"{number} batches: {size:.1f} MB" for number, size in zip(learned, memory, strict=True)]
    lines.append(
        f"{options.batches} batches in {time.monotonic() - began:.0f} s: from {memory[0]:.1f} to {memory[-1]:.1f} MB; "
        f"a straight line through all but the first {WARM_UP:.0%} rises by {rises:+.2f} MB: "
        f"{'flat' if flat else f'not flat, more than {MOST_GROWTH:g} MB'}"
    )
    print(lines[-1])
    if options.log:
        options.log.write_text("\n".join(lines) + "\n")
    if options.figure:
        draw(learned, memory, options.figure)
    sys.exit(not flat)


if __name__ == "__main__":
    main()
