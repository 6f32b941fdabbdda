"""A small made-up stream, and runs on it that take a moment on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from cler.config.making import make_settings
from cler.config.settings import own_settings
from cler.data.images import ImageData
from cler.engine import Run, train
from cler.methods import METHODS
from cler.nets.adapter import backbone
from cler.nets.backbone import Backbone
from cler.nets.build import NetworkLike
from cler.runs.build import build_run

LOOPS: Mapping[str, int] = {
    "inner": 2, "slow_steps": 1, "fast_steps": 2, "inversion_steps": 3, "refinement_epochs": 1, "noise": 8,
}  # fmt: skip
"""Shorter loops inside a step, of the methods that have them."""


@cache
def colors(size: int = 12, train_images: int = 24) -> ImageData:
    """Four classes of different color, brighter below so that turns and shuffled quadrants show."""
    generator = torch.Generator().manual_seed(0)
    palette = torch.tensor([[200, 60, 60], [60, 200, 60], [60, 60, 200], [200, 200, 60]]).view(4, 1, 3, 1, 1)
    ramp = torch.linspace(-50, 50, size).view(size, 1)

    def some(count: int) -> Tensor:
        grain = 30 * torch.randn(4, count, 3, size, size, generator=generator)
        return (palette + ramp + grain).clamp(0, 255).to(torch.uint8).flatten(0, 1)

    train_pixels, test_pixels = some(train_images), some(10)
    labels, test_labels = (torch.arange(4).repeat_interleave(count) for count in (train_images, 10))
    names = ("red", "green", "blue", "yellow")
    return ImageData("toy", train_pixels, labels, test_pixels, test_labels, names, (0.5,) * 3, (0.25,) * 3)


def small_network(n_outputs: int, *, channels: int = 3) -> Backbone:
    """Two convolutions with batch norm, which take a tenth of the time of ResNet-18."""
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, n_outputs)),
    )
    return backbone(module, tap="0", head="1", classifier="2.2")


def make_run(
    method: str,
    regularizer: str = "none",
    seed: int = 0,
    *,
    data: ImageData | None = None,
    loops: Mapping[str, int] = LOOPS,
    network: NetworkLike | None = None,
    **changes: Any,
) -> Run:
    """A run over two tasks of two colors, with a narrow network, small batches and a small buffer."""
    options: dict[str, Any] = {"tasks": 2, "width": 4, "lr": 0.02, "batch": 8, "replay_batch": 8, "buffer": 16}
    options |= {name: count for name, count in loops.items() if name in own_settings({"method": method})} | changes
    if not METHODS[method].replays:
        del options["buffer"], options["replay_batch"]
    settings = make_settings(method=method, regularizer=regularizer, **options)
    return build_run(settings, seed, data or colors(), network=network)


def make_short_run(
    method: str, regularizer: str = "none", seed: int = 0, *, data: ImageData | None = None, **changes: Any
) -> Run:
    """A run to be trained to its end: in few steps, of a small network where the method takes any."""
    quicker: dict[str, Any] = {"batch": 16}
    images = data or colors()
    if METHODS[method].own_network is None:
        quicker["network"] = partial(small_network, channels=images.train_images.shape[1])
    return make_run(method, regularizer, seed, data=images, **quicker | changes)


def trained(method: str, regularizer: str = "none", seed: int = 0, **changes: Any) -> Run:
    """Such a run, at its end."""
    run = make_short_run(method, regularizer, seed, **changes)
    train([run])
    return run


def in_later_task(run: Run, steps: int = 2) -> Run:
    """A run in its last task, a few steps on, so that everything it allocates is allocated."""
    last = len(run.schedule) - 1
    for task in range(last):
        run.begin_task(task)
        for _ in range(steps):
            run.step()
        run.end_task(task)
    run.begin_task(last)
    for _ in range(steps):
        run.step()
    return run
