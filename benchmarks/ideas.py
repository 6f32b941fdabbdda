"""What single ideas would give: prototypes and ablations of an ER-ACE step, timed like `cler bench`.

    python benchmarks/ideas.py [--device cuda] [--width 64] [--steps 60]

These are for timing only: the fused step moves the running statistics by its pretext batch, and the ablations leave
work out, so none of them trains as the real methods do.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

from cler.data.images import ImageData
from cler.data.stream import Batch
from cler.engine.groups import release_memory
from cler.engine.run import matmul_precision
from cler.experiments.bench import begin_second_task, random_images, time_steps
from cler.experiments.execute import build_run, find_device
from cler.experiments.settings import make_settings
from cler.methods import METHODS
from cler.methods.er_ace import ErAce, allowed_classes, masked_cross_entropy
from cler.nets.resnet import linear_in_full, pool


class Fused(ErAce):
    """Stream, replay and pretext batch in one pass of the convolutions."""

    def observe(self, batch: Batch) -> Tensor:
        pixels, images, labels = batch
        self.seen.index_fill_(0, labels, True)
        network, regularizer = self.network, self.regularizers[0]
        sizes = [len(labels)]
        if self.task > 0:
            replay = self.memory.sample(self.setup.replay_batch)
            images = torch.cat([images, self.views.augmented(replay.pixels)])
            pixels = torch.cat([pixels, replay.pixels])
            sizes.append(len(replay.labels))
        turns = regularizer.draw_labels(len(pixels), pixels.device)
        pretext = regularizer.transforms.apply(self.views.plain(pixels), turns)
        groups = [*sizes, len(pretext)]
        maps = torch.cat([images, pretext]).contiguous(memory_format=torch.channels_last)
        for stage in (network.stem, network.layer1, network.layer2, network.layer3):
            maps = stage(maps, groups)
        own, guests = maps.split([sum(sizes), len(pretext)])
        logits = linear_in_full(network.classifier, pool(network.layer4(own, sizes))).split(sizes)
        guessed = linear_in_full(regularizer.linear, pool(regularizer.stage(guests)))
        loss = regularizer.weight * F.cross_entropy(guessed, turns)
        if self.task == 0:
            loss = loss + F.cross_entropy(logits[0], labels)
        else:
            loss = loss + masked_cross_entropy(logits[0], labels, allowed_classes(labels, self.seen))
            loss = loss + F.cross_entropy(logits[1], replay.labels)
        self.descend(loss)
        self.memory.add(batch.pixels, batch.labels)
        return loss


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
            (ErAce, "jigsaw", 1), (ErAce, "jigsaw", 10), (Fused, "jigsaw", 1), (Fused, "jigsaw", 10),
            (Fused, "jigsaw", 20), (ErAce, "none", 10), (ErAce, "none", 20), (WithoutOptimizer, "none", 10),
            (ForwardOnly, "none", 10),
        ):  # fmt: skip
            report(kind, regularizer, runs, data, arguments.width, arguments.steps)


if __name__ == "__main__":
    main()
