"""How fast a GPU begins kernels that do little, in one branch or several of a CUDA graph.

python benchmarks/kernel_rate.py
"""

from __future__ import annotations

import time

import torch

import cler.engine.steps  # noqa: F401  opens all of the GPU's queues, before there is any use of it

KERNELS = 300
"""In a branch, one after the other."""
REPLAYS = 20


def record(branches: int, values: int) -> torch.cuda.CUDAGraph:
    """A graph whose branches each add one to some values, again and again."""
    tensors = [torch.zeros(values, device="cuda") for _ in range(branches)]
    streams = [torch.cuda.Stream() for _ in range(branches)]
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        current = torch.cuda.current_stream()
        for tensor, stream in zip(tensors, streams, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                for _ in range(KERNELS):
                    tensor.add_(1)
        for stream in streams:  # not before all have begun, or one branch would wait for the one before it
            current.wait_stream(stream)
    return graph


def microseconds(branches: int, values: int) -> float:
    """Per kernel."""
    graph = record(branches, values)
    graph.replay()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start) / (REPLAYS * branches * KERNELS)


def main() -> None:
    for values in (32, 1 << 18):
        for branches in (1, 2, 5, 10, 20):
            print(
                f"{values} values, {branches} branches: {microseconds(branches, values):.2f} µs per kernel", flush=True
            )


if __name__ == "__main__":
    main()
