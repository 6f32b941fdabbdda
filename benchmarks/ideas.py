"""What single ideas give: an ER-ACE step with or without them, timed like `cler bench`.

    python benchmarks/ideas.py [--compile | --several | --prefer-shared] [--device cuda] [--width 64] [--steps 60]

These are for timing only: what leaves work out does not train as the real method does.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

from torch import Tensor

from cler.config.making import make_settings
from cler.data.images import ImageData
from cler.engine.bundles import begin_second_task, release_memory
from cler.engine.run import matmul_precision
from cler.engine.steps import GraphStepper
from cler.methods.base import register
from cler.methods.er_ace import ErAce
from cler.methods.loss import backward, total
from cler.methods.setup import Setup
from cler.runs import bench
from cler.runs.bench import random_images, time_steps
from cler.runs.build import build_run
from cler.runs.machine import find_device

IDEAS = {
    "compile": "the network compiled by torch.compile",
    "several": "several steps in one graph",
    "prefer_shared": "CUDA told to prefer shared memory to cache",
}
"""Tried on the real step."""


@register
class Apart(ErAce):
    """The pretext batch in a pass of its own."""

    name = "apart"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        for each in self.regularizers:
            each.pretext_images = lambda *_: None


@register
class WithoutOptimizer(ErAce):
    """Forward and backward pass only."""

    name = "without-optimizer"

    def descend(self, terms: Mapping[str, Tensor], *_: object, **__: object) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        backward(total(terms))
        for copy in self.working_copies.copies:
            copy.grad = None


@register
class ForwardOnly(ErAce):
    """No backward pass either."""

    name = "forward-only"

    def descend(self, terms: Mapping[str, Tensor], *_: object, **__: object) -> None:
        pass


class Several(GraphStepper):
    """So many steps of every run in one recorded graph, in which no run waits for the others between its steps."""

    STEPS = 5

    def _side_by_side(self) -> None:
        runs = self.runs
        self.runs = [SimpleNamespace(step=lambda run=run: [run.step() for _ in range(self.STEPS)]) for run in runs]
        try:
            super()._side_by_side()
        finally:
            self.runs = runs


def report(kind: type[ErAce], regularizer: str, runs: int, data: ImageData, arguments: argparse.Namespace) -> None:
    settings = make_settings(
        method="er-ace",
        regularizer=regularizer,
        dataset="cifar100",
        precision="bf16",
        width=arguments.width,
        compile=arguments.compile,
    )
    group = [build_run(replace(settings, method=kind.name), seed, data) for seed in range(runs)]
    begin_second_task(group)
    milliseconds, gigabytes = time_steps(group, arguments.steps)
    if arguments.several:
        milliseconds /= Several.STEPS
    ideas = [name for name in IDEAS if getattr(arguments, name)]
    name = " + ".join([kind.__name__, *ideas])
    print(f"{name:17s} {regularizer:7s} {runs:2d} runs: {milliseconds:.3f} ms, {gigabytes:.1f} GB", flush=True)
    release_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    for name, what in IDEAS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=f"only the real step, {what}")
    arguments = parser.parse_args()
    real = ((ErAce, "jigsaw", 1), (ErAce, "jigsaw", 10), (ErAce, "none", 10))
    others = (
        (ErAce, "jigsaw", 20), (ErAce, "none", 20), (Apart, "jigsaw", 1), (Apart, "jigsaw", 10),
        (WithoutOptimizer, "none", 10), (ForwardOnly, "none", 10),
    )  # fmt: skip
    if arguments.several:
        bench.make_stepper = Several
    graphs = arguments.steps + bench.MOST_UNTIMED
    data = random_images(
        find_device(arguments.device), graphs * Several.STEPS if arguments.several else arguments.steps
    )
    if arguments.prefer_shared:
        ctypes.CDLL("libcuda.so.1").cuCtxSetCacheConfig(1)
    trying = any(getattr(arguments, name) for name in IDEAS)
    with matmul_precision("bf16"):
        for kind, regularizer, runs in real if trying else real + others:
            report(kind, regularizer, runs, data, arguments)


if __name__ == "__main__":
    main()
