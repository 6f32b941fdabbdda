"""What single ideas give: an ER-ACE step without them, timed like `cler bench`.

    python benchmarks/ideas.py [--device cuda] [--width 64] [--steps 60]

These are for timing only: what leaves work out does not train as the real method does.
"""

from __future__ import annotations

import argparse

from torch import Tensor

from cler.data.images import ImageData
from cler.engine.groups import begin_second_task, release_memory
from cler.engine.run import matmul_precision
from cler.experiments.bench import random_images, time_steps
from cler.experiments.build import build_run
from cler.experiments.machine import find_device
from cler.experiments.settings import make_settings
from cler.methods import METHODS
from cler.methods.base import Setup
from cler.methods.er_ace import ErAce


class Apart(ErAce):
    """The pretext batch in a pass of its own."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        for each in self.regularizers:
            each.invite = lambda *_: None


class WithoutOptimizer(ErAce):
    """Forward and backward pass only."""

    def descend(self, loss: Tensor, *_: object, **__: object) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for copy in self.working_copies.copies:
            copy.grad = None


class ForwardOnly(ErAce):
    """No backward pass either."""

    def descend(self, loss: Tensor, *_: object, **__: object) -> None:
        pass


def report(kind: type[ErAce], regularizer: str, runs: int, data: ImageData, width: int, steps: int) -> None:
    METHODS["er-ace"] = kind
    settings = make_settings(
        method="er-ace", regularizer=regularizer, dataset="cifar100", precision="bf16", width=width
    )
    group = [build_run(settings, seed, data) for seed in range(runs)]
    begin_second_task(group)
    milliseconds, gigabytes = time_steps(group, steps)
    print(f"{kind.__name__:17s} {regularizer:7s} {runs:2d} runs: {milliseconds:.3f} ms, {gigabytes:.1f} GB", flush=True)
    release_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    data = random_images(find_device(arguments.device), arguments.steps)
    with matmul_precision("bf16"):
        for kind, regularizer, runs in (
            (ErAce, "jigsaw", 1), (ErAce, "jigsaw", 10), (ErAce, "jigsaw", 20), (Apart, "jigsaw", 1),
            (Apart, "jigsaw", 10), (ErAce, "none", 10), (ErAce, "none", 20), (WithoutOptimizer, "none", 10),
            (ForwardOnly, "none", 10),
        ):  # fmt: skip
            report(kind, regularizer, runs, data, arguments.width, arguments.steps)


if __name__ == "__main__":
    main()
