"""Small stand-ins that many tests use: datasets that are made and not read, views whose draws are given, waiting.

Also on the path of processes that tests start: there `register()` makes the dataset `toy` known.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from cler.data import images
from cler.data.images import ImageData, Status
from cler.data.views import crop_and_flip
from cler.engine.run import Run
from cler.nets.resnet import Stage

DIES_AFTER = "TOY_DIES_AFTER"
"""Variable of the environment: after how many steps a process is killed."""


CIFAR = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
"""Mean and deviation of CIFAR-100, with which the golden files are normalized."""


def ours(name: str) -> str:
    """The name that our networks have for a tensor of the golden files."""
    head, _, tail = name.rpartition(".")
    if tail in ("mean", "var"):
        return f"{head}.running_{tail}"
    return f"{name}.weight" if tail in ("conv", "conv1", "conv2", "fc1", "fc2") else name


def given_crops(*crops):
    """In place of `Views.view`: crops and flips by one stored draw after the other, whichever view is asked for."""
    coming = iter(crops)
    return lambda pixels, augment=None: crop_and_flip(pixels, next(coming))


def _data(train, test, labels, test_labels, n_classes) -> ImageData:
    names = tuple(f"class {number}" for number in range(n_classes))
    return ImageData("toy", train, labels, test, test_labels, names, (0.5,) * 3, (0.3,) * 3)


def noise(n_classes=4, per_class=10, *, size=8) -> ImageData:
    """Random pixels, of which nothing can be learned; five test images of each class."""
    generator = torch.Generator().manual_seed(0)
    labels, test_labels = (torch.arange(n_classes).repeat(count) for count in (per_class, 5))
    train, test = (
        torch.randint(256, (len(each), 3, size, size), generator=generator).to(torch.uint8)
        for each in (labels, test_labels)
    )
    return _data(train, test, labels, test_labels, n_classes)


def shades(n_classes=4, per_class=20, *, test_per_class=5) -> ImageData:
    """Classes that are told by their brightness; the first training images are those of the test."""
    labels = torch.arange(n_classes).repeat(per_class)
    grain = torch.randint(60, (len(labels), 3, 8, 8), generator=torch.Generator().manual_seed(0))
    pixels = (grain + 240 // n_classes * labels.view(-1, 1, 1, 1)).clamp(0, 255).to(torch.uint8)
    tested = slice(test_per_class * n_classes)
    return _data(pixels, pixels[tested], labels, labels[tested], n_classes)


class SmallCnn(nn.Module):
    """A small network as anybody writes it, with PyTorch's own batch norm."""

    def __init__(self, n_classes: int, channels: int = 3) -> None:
        super().__init__()
        self.early = nn.Sequential(nn.Conv2d(channels, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.late = nn.Sequential(
            nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.fc = nn.Linear(8, n_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.late(self.early(images)))


def make_shallow(monkeypatch) -> None:
    """Have the stages of our networks be made of one block instead of two."""
    build = Stage.__init__
    monkeypatch.setattr(Stage, "__init__", lambda stage, *sizes: [build(stage, *sizes), stage.pop(1)][0])


class Toy:
    """A registered dataset: four shades, or what a subclass makes."""

    name: ClassVar[str] = "toy"
    description: ClassVar[str] = "four shades"
    defaults: ClassVar[dict] = {}
    fetched: ClassVar[int] = 0

    def load(self, folder) -> ImageData:
        return shades()

    def check(self, folder) -> Status:
        return Status("present", "made, not read", folder)

    def get(self, folder, progress) -> Status:
        type(self).fetched += 1
        return self.check(folder)


class EveryTenth:
    """A registered dataset, with every tenth of its images."""

    def __init__(self, whole) -> None:
        self.whole = whole

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def load(self, folder) -> ImageData:
        data = self.whole.load(folder)
        parts = ("train_images", "train_labels", "test_images", "test_labels")
        return replace(data, **{name: getattr(data, name)[::10] for name in parts})


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Inside, torch's default dtype is another one; and still so at the end."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
        assert torch.get_default_dtype() is dtype
    finally:
        torch.set_default_dtype(before)


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "float16": lambda: default_dtype(torch.float16),
    "device": lambda: torch.device("meta"),
}
"""Modes of a caller."""


def register() -> None:
    """Make the dataset `toy` known to this process, and have it die where its environment says so."""
    images.register(Toy())
    if DIES_AFTER in os.environ:
        _die_after(int(os.environ[DIES_AFTER]))


def _die_after(steps: int) -> None:
    """Have this process killed after so many steps: at any moment of the next twenty, and no later than that."""
    take, counted = Run.step, itertools.count(1)

    def kill_soon() -> None:
        time.sleep(random.uniform(0, 0.3))
        os.kill(os.getpid(), signal.SIGKILL)

    def step(run: Run) -> None:
        take(run)
        taken = next(counted)
        if taken == steps:
            threading.Thread(target=kill_soon, daemon=True).start()
        if taken == steps + 20:
            signal.pause()

    Run.step = step


def wait_until(condition, process=None, *, most=600.0) -> None:
    """Look again and again until it holds; `most` seconds are far beyond what any machine takes, they end a hang."""
    end = time.monotonic() + most
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def visible_gpus(run, task):
    """A probe that finds the GPUs that its process may use."""
    return {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}


def close(actual, expected) -> bool:
    """Whether numbers are those of a golden file: max|a−b| / (1 + max|b|) is next to nothing."""
    expected = np.asarray(expected)
    return np.max(np.abs(np.asarray(actual) - expected)) / (1 + np.max(np.abs(expected))) <= 1e-9


def tensors(method):
    """Every tensor of a method's network and regularizers, by name."""
    state = dict(method.network.state_dict())
    for regularizer in method.regularizers:
        state |= {f"pretext.{name}": value for name, value in regularizer.state_dict().items()}
    return copy.deepcopy(state)
