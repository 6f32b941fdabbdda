"""How images of one's own become a dataset: their size, which of them are for the test, what they are normalized by."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cler.config.schema import settings_of
from cler.config.settings import Settings, check_fit_has_size
from cler.data.images import ImageData
from cler.errors import UsageError

SMALL = 16
"""Pixels: images below it lose too much by being shifted."""
COUNTED = 64
"""Images whose pixels are counted at a time: numpy makes eight bytes of each."""
MANY_CLASSES = 50
"""From so many on, ten tasks are usual."""


class Reading(NamedTuple):
    """How a dataset of one's own is read; the settings of these names say what each means."""

    size: int | None = None
    fit: str | None = None
    test_share: float | None = None
    skip_broken: bool = False

    @classmethod
    def checked(cls, **given: Any) -> Reading:
        """A reading of these values, each checked by the setting of its name."""
        declared = settings_of(Settings)
        check_fit_has_size(given)
        return cls(**{name: declared[name].checked(value) for name, value in given.items()})

    @property
    def fitted(self) -> str:
        """How images are made square."""
        return self.fit or "crop"

    @property
    def held_back(self) -> float:
        """The share of images to test on, where the dataset does not say which."""
        return 0.2 if self.test_share is None else self.test_share


def split(names: Sequence[str], labels: Sequence[int], classes: Sequence[str], share: float) -> list[bool]:
    """Which images to test on: a share of each class, at least one, drawn by their names.

    An image that is added or taken away changes little about the others.
    """
    members = defaultdict(list)
    for number, label in enumerate(labels):
        members[label].append(number)
    tested = [False] * len(labels)
    for label, numbers in members.items():
        if len(numbers) < 2:
            raise UsageError(f"class {classes[label]} has one image: it needs one to train on and one to test on")
        count = min(max(1, round(share * len(numbers))), len(numbers) - 1)
        for number in sorted(numbers, key=lambda each: _lot(names[each]))[:count]:
            tested[number] = True
    return tested


def _lot(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


def image_data(
    name: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: Sequence[str],
    defaults: Mapping[str, Any],
) -> ImageData:
    """Images and labels as a dataset, normalized by its training images; every class needs some of these."""
    if len(classes) < 2:
        raise UsageError(f"{name} has {len(classes)} class: it needs at least two to tell apart")
    counts = train[1].bincount(minlength=len(classes))
    if not int(counts.min()):
        raise UsageError(f"{name}: class {classes[int(counts.argmin())]} has no image to train on")
    mean, std = _normalization(train[0])
    return ImageData(name, *train, *test, tuple(classes), mean, std, dict(defaults))


def _normalization(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, of pixels from 0 to 1, by counts: the same on every machine."""
    mean, std = [], []
    values = np.arange(256) / 255
    for counts in _counts(images):
        mean.append(float(round(np.average(values, weights=counts), 4)))
        spread = np.average(np.square(values - mean[-1]), weights=counts) ** 0.5
        std.append(float(round(max(spread, 1 / 255), 4)))
    return tuple(mean), tuple(std)


def _counts(images: Tensor) -> np.ndarray:
    """How many pixels of each channel have each value, C×256."""
    counts = np.zeros((images.shape[1], 256), np.int64)
    for some in images.split(COUNTED):
        for number, channel in enumerate(some.unbind(1)):
            counts[number] += np.bincount(channel.numpy().ravel(), minlength=256)
    return counts


def usual_tasks(n_classes: int) -> dict[str, Any]:
    """A number of tasks that divides the classes, with two or more in each; none where there is no such number."""
    if n_classes < 4:
        return {"tasks": max(n_classes, 1)}
    wanted = (10, 5, 4, 3, 2) if n_classes >= MANY_CLASSES else (5, 4, 3, 2)
    fitting = [number for number in wanted if n_classes % number == 0 and n_classes // number >= 2]
    return {"tasks": fitting[0]} if fitting else {}


def usual_view(channels: int, height: int, width: int) -> dict[str, Any]:
    """An augmentation that leaves images what they are: gray ones, which may be letters, are not mirrored."""
    return {"augment": "none" if min(height, width) < SMALL else "crop" if channels == 1 else "crop-flip"}


def as_labels(labels: Sequence[int]) -> Tensor:
    """Labels as ImageData has them."""
    return torch.tensor(labels, dtype=torch.int64, device="cpu")
