"""What it costs that images stay in main memory, where the GPU reads them, instead of lying on the GPU.

    python benchmarks/host_images.py [--sizes 32,84,224] [--steps 40] [--runs 10] [--only PART] [--json FILE]

*reads*: the rows of a batch for each of ten runs, by themselves, in a recorded graph: from the GPU's own memory, and
from main memory by PyTorch's indexing and by a kernel of our own. *steps*: a step of ER-ACE and ER-ACE + CLER with the
images on the GPU, in main memory, and in main memory with the rows of the next step fetched on another stream while
this one computes. *larger*: with little of the GPU's memory left free, a dataset that `--images auto` keeps on the GPU,
and one of twice the size of what it would keep there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cler.config.making import make_settings
from cler.data.host import MOST_OF_THE_DEVICE, Pinned
from cler.data.images import ImageData
from cler.engine import Run
from cler.engine.bundles import begin_second_task, release_memory
from cler.engine.run import matmul_precision
from cler.engine.steps import synchronize
from cler.runs.bench import CLASSES, MOST_UNTIMED, TASKS, time_steps
from cler.runs.build import build_run
from cler.runs.machine import default_precision, environment, find_device
from cler.streams import Batch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

WIDTHS = {32: 64, 84: 64, 224: 16}
"""Filters of the first layer for each size of images: as many as leave room for ten runs."""
BATCH = 10
METHODS = {"er-ace": "none", "er-ace+jigsaw": "jigsaw"}
READS = 200
"""Recorded reads that are timed."""


def random_data(images: int, size: int, tested: int) -> ImageData:
    """Random images in as many classes as CIFAR-100 has, a block of them over and over."""
    block = torch.randint(256, (min(images, 1000), 3, size, size), dtype=torch.uint8)
    pixels = torch.empty(images, 3, size, size, dtype=torch.uint8)
    for some in pixels.split(len(block)):
        some.copy_(block[: len(some)])
    labels, test_labels = torch.arange(images) % CLASSES, torch.arange(tested) % CLASSES
    names = tuple(f"class {number}" for number in range(CLASSES))
    test = pixels[torch.arange(tested) % images]
    return ImageData("random", pixels, labels, test, test_labels, names, (0.5,) * 3, (0.25,) * 3)


if triton is not None:

    @triton.jit
    def _rows(source, indices, out, WORDS: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        words = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        index = tl.load(indices + row)
        values = tl.load(source + index * WORDS + words, words < WORDS)
        tl.store(out + row * WORDS + words, values, words < WORDS)


def read_by_triton(images: Tensor, indices: Tensor) -> Tensor:
    """Rows of images, eight bytes a thread."""
    out = torch.empty(len(indices), *images.shape[1:], dtype=images.dtype, device=indices.device)
    words = images[0].numel() // 8
    grid = len(indices), triton.cdiv(words, 512)
    _rows[grid](images.view(-1).view(torch.int64), indices, out.view(-1).view(torch.int64), words, 512, num_warps=4)
    return out


def read_by_indexing(images: Tensor, indices: Tensor) -> Tensor:
    return images[indices]


def time_reads(images: Tensor, read: Callable[[Tensor, Tensor], Tensor], branches: int) -> float:
    """Microseconds of one batch for each of so many branches of a recorded graph, rows that come once each."""
    order = torch.randint(len(images), (branches, READS + 10, BATCH), device=images.device)
    positions = torch.zeros(branches, 1, dtype=torch.int64, device=images.device)
    streams = [torch.cuda.Stream() for _ in range(branches)]

    def step() -> None:
        current = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(current)
        for rows, position, stream in zip(order, positions, streams, strict=True):
            with torch.cuda.stream(stream):
                read(images, rows.index_select(0, position)[0])
                position.add_(1)
        for stream in streams:
            current.wait_stream(stream)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(READS):
        graph.replay()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start) / READS


def reads(sizes: list[int], device: torch.device, runs: int) -> Iterator[dict[str, Any]]:
    """Reading alone."""
    yield {"pinned in place": Pinned((1000, 1_000_000)).registered}
    for size in sizes:
        data = random_data(2_000_000_000 // (3 * size * size), size, CLASSES)
        ways = {"device": ("device", read_by_indexing), "host, indexing": ("host", read_by_indexing)}
        if triton is not None:
            ways |= {"host, Triton": ("host", read_by_triton)}
        expected, rows = None, torch.arange(0, 1000, 37)
        for name, (place, read) in ways.items():
            start = time.perf_counter()
            images = data.to(device, place).train_images
            seconds = time.perf_counter() - start
            found = read(images, rows.to(device)).cpu()
            expected = found if expected is None else expected
            assert torch.equal(found, expected), name
            microseconds = time_reads(images, read, runs)
            rate = runs * BATCH * images[0].numel() / microseconds / 1e3
            yield {
                "size": size, "way": name, "microseconds": microseconds, "GB/s": rate, "placing GB/s": 2 / seconds
            }  # fmt: skip
            del images
            release_memory()


class Fetched:
    """In place of a run's own reading: the rows of a step were fetched on another stream during the step before."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.stream = torch.cuda.Stream(run.device) if run.device.type == "cuda" else None
        self.pixels = self._read(run._position)
        self.step = run.step
        run._batch = self.batch
        run.step = self.fetching_step

    def _read(self, position: Tensor) -> Tensor:
        order = self.run._order
        return self.run.stream.data.train_images[order.index_select(0, position.clamp(max=len(order) - 1))[0]]

    def batch(self, indices: Tensor) -> Batch:
        pixels = self.pixels.clone()
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            self.pixels.copy_(self._read(self.run._position + 1))
        return Batch(pixels, self.run.views.augmented(pixels), self.run.stream.train_labels[indices])

    def fetching_step(self) -> None:
        self.step()
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


def evaluation_seconds(run: Run) -> float:
    """Seconds to evaluate a run on all test images."""
    run._evaluated(range(1))
    synchronize(run.device)
    start = time.perf_counter()
    run._evaluated(range(run.stream.n_tasks))
    return time.perf_counter() - start


def settings_of(regularizer: str, precision: str, width: int, epochs: int) -> Any:
    settings = make_settings(
        method="er-ace", regularizer=regularizer, dataset="cifar100", precision=precision, width=width
    )
    return replace(settings, epochs=epochs)


def steps(
    sizes: list[int], device: torch.device, runs: int, count: int, widths: dict[int, int]
) -> Iterator[dict[str, Any]]:
    """Whole steps."""
    precision = default_precision(device)
    for size in sizes:
        data = random_data(TASKS * BATCH * (count + MOST_UNTIMED), size, 2000 if device.type == "cuda" else CLASSES)
        for name, regularizer in METHODS.items():
            settings = settings_of(regularizer, precision, widths[size], epochs=3)
            placed = data.to(device)
            group = [build_run(settings, seed, placed) for seed in range(runs)]
            begin_second_task(group)
            for place in ("device", "host", "host, fetched ahead"):
                if place == "host":
                    placed = data.to(device, "host")
                    for run in group:
                        run.stream.data = placed
                if place == "host, fetched ahead":
                    for run in group:
                        Fetched(run)
                milliseconds, gigabytes = time_steps(group, count)
                evaluation = evaluation_seconds(group[0])
                yield {
                    "size": size, "width": widths[size], "method": name, "runs": runs, "images": place,
                    "ms": milliseconds, "GB on the GPU": gigabytes, "evaluation s": evaluation,
                }  # fmt: skip
            group = []
            del placed, run
            release_memory()


def larger(device: torch.device, runs: int, count: int, free: float, width: int) -> Iterator[dict[str, Any]]:
    """A dataset that fits beside one of twice the size of what is kept on the GPU, with so many GB of it free."""
    kept = MOST_OF_THE_DEVICE * free
    ballast = None
    if device.type == "cuda":
        release_memory()
        ballast = torch.empty(int(torch.cuda.mem_get_info(device)[0] - free * 1e9), dtype=torch.uint8, device=device)
    settings = settings_of("jigsaw", default_precision(device), width, epochs=1)
    for share in (0.9, 2.0):
        data = random_data(int(share * kept * 1e9) // (3 * 32 * 32), 32, 10 * CLASSES)
        start = time.perf_counter()
        placed = data.to(device, "auto")
        synchronize(device)
        seconds, size = time.perf_counter() - start, data.train_images.nbytes / 1e9
        del data
        group = [build_run(settings, seed, placed) for seed in range(runs)]
        begin_second_task(group)
        milliseconds, gigabytes = time_steps(group, count)
        yield {
            "free GB": free, "dataset GB": size, "on the host": placed.on_host, "runs": runs, "ms": milliseconds,
            "GB on the GPU": gigabytes - (ballast.nbytes / 1e9 if ballast is not None else 0), "placing s": seconds,
        }  # fmt: skip
        group = []
        del placed
        release_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sizes", default="32,84,224")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--width", type=int, help="filters of the first layer, for all sizes")
    parser.add_argument("--free", type=float, default=16.0, help="GB that 'larger' leaves free on the GPU")
    parser.add_argument("--only", choices=("reads", "steps", "larger"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device, sizes = find_device(arguments.device), [int(size) for size in arguments.sizes.split(",")]
    widths = {size: arguments.width or WIDTHS.get(size, 64) for size in sizes}
    on_gpu = device.type == "cuda"
    parts = {
        "reads": lambda: reads(sizes, device, arguments.runs) if on_gpu else iter(()),
        "steps": lambda: steps(sizes, device, arguments.runs, arguments.steps, widths),
        "larger": lambda: larger(device, arguments.runs, arguments.steps, arguments.free, arguments.width or 64),
    }
    found: dict[str, Any] = {"environment": environment(device)}
    with matmul_precision(default_precision(device)):
        for name in [arguments.only] if arguments.only else parts:
            print(name, flush=True)
            for line in parts[name]():
                found.setdefault(name, []).append(line)
                told = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in line.items()}
                print("  " + ", ".join(f"{key} {value}" for key, value in told.items()), flush=True)
                if arguments.json:
                    arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
