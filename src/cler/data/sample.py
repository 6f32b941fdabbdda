"""A part of CIFAR-10 that comes with the package, so that the library can be tried without a download.

The first 500 training and 100 test images of each class, bit for bit, in one file per class (`sample/README.md`).
Loading takes about a second on one core. The codec below is that of lossless JPEG in spirit: red and blue become
differences from green, each value is predicted from its left, upper and upper-left neighbors, and xz packs the errors.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cler.data.cifar import cifar10
from cler.data.images import Advance, ImageData, Status, register
from cler.errors import UsageError

RED, GREEN, BLUE = range(3)
XZ_FILTERS: list[dict[str, Any]] = [
    # The errors repeat nothing: all that helps is how the previous byte (literal context) predicts the next.
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 21, "lc": 4, "lp": 0, "pb": 0}
]


def pack(images: np.ndarray) -> bytes:
    """Compress uint8 images, N×3×H×W, without loss."""
    values = images.astype(np.int16)
    values[:, (RED, BLUE)] -= values[:, GREEN, None]
    padded = np.pad(values, ((0, 0), (0, 0), (1, 0), (1, 0)))
    errors = values - predict(padded[..., 1:, :-1], padded[..., :-1, 1:], padded[..., :-1, :-1])
    # One color after the other: their errors are distributed differently.
    planes = np.ascontiguousarray(errors.astype(np.uint8).swapaxes(0, 1))
    return lzma.compress(planes.tobytes(), filters=XZ_FILTERS)


def unpack_errors(path: Path, shape: tuple[int, int, int, int]) -> np.ndarray:
    """The prediction errors that `pack` stored for images of this shape; a ValueError names a damaged file."""
    count, channels, height, width = shape
    try:
        content = lzma.decompress(path.read_bytes())
        return np.frombuffer(content, np.uint8).reshape(channels, count, height, width).swapaxes(0, 1)
    except (lzma.LZMAError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from error


def restore(errors: np.ndarray) -> np.ndarray:
    """The images, N×3×H×W, that have these prediction errors.

    Works pixel by pixel, on all images at once. Sums are modulo 256, as the errors are.
    """
    count, channels, height, width = errors.shape
    errors = np.ascontiguousarray(errors.transpose(2, 3, 1, 0)).astype(np.int16)
    values = np.zeros((height + 1, width + 1, channels, count), np.int16)
    for row in range(height):
        for column in range(width):
            value = errors[row, column]
            value += predict(values[row + 1, column], values[row, column + 1], values[row, column])
            value[GREEN] &= 255
            for color in (RED, BLUE):
                value[color] = ((value[color] + value[GREEN]) & 255) - value[GREEN]
            values[row + 1, column + 1] = value
    images = values[1:, 1:]
    images[:, :, (RED, BLUE)] += images[:, :, GREEN, None]
    return np.ascontiguousarray(images.astype(np.uint8).transpose(3, 2, 0, 1))


def predict(left: np.ndarray, above: np.ndarray, corner: np.ndarray) -> np.ndarray:
    """The median edge detector of LOCO-I: the median of left, above and left + above - corner."""
    low, high = np.minimum(left, above), np.maximum(left, above)
    return np.minimum(np.maximum(left + above - corner, low), high)


@dataclass(frozen=True)
class Sample:
    """The images in the files of `files`, listed in its `index.json`."""

    files: Path
    name: str = "cifar10-sample"
    description: str = "6,000 images of CIFAR-10, 600 of each class, that come with the package"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of settings for runs on this dataset."""

    def load(self, folder: Path) -> ImageData:
        """Unpack and verify the images, class after class; the data folder is not used."""
        try:
            train, test, labels = self._read()
        except (ValueError, LookupError, RuntimeError, TypeError, OSError) as error:
            raise UsageError(f"the images that come with cler are damaged ({error}): install cler again") from error
        return ImageData(
            name=self.name,
            train_images=torch.from_numpy(train.reshape(-1, *train.shape[2:])),
            train_labels=labels.repeat_interleave(train.shape[1]),
            test_images=torch.from_numpy(test.reshape(-1, *test.shape[2:])),
            test_labels=labels.repeat_interleave(test.shape[1]),
            classes=cifar10.classes,
            mean=cifar10.mean,
            std=cifar10.std,
        )

    def _read(self) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
        """Training and test images, each classes×N×3×H×W, and the label of each class."""
        index = json.loads((self.files / "index.json").read_text("utf-8"))
        shards, train = index["shards"], index["train_per_class"]
        shape = (train + index["test_per_class"], 3, index["height"], index["width"])
        errors = [unpack_errors(self.files / shard["file"], shape) for shard in shards]
        images = restore(np.concatenate(errors)).reshape(len(shards), *shape)
        for shard, pixels in zip(shards, images, strict=True):
            if hashlib.sha256(pixels.tobytes()).hexdigest() != shard["sha256"]:
                raise ValueError(f"{shard['file']} does not hold the images it should")
        return images[:, :train], images[:, train:], torch.tensor([shard["label"] for shard in shards])

    def check(self, folder: Path) -> Status:
        """Unpack and verify the images."""
        try:
            self.load(folder)
        except UsageError as error:
            return Status("damaged", str(error), self.files)
        return Status("present", "comes with the package: there is nothing to fetch", self.files)

    def get(self, folder: Path, progress: Advance | None = None) -> Status:
        """Fetch nothing, and say so."""
        return self.check(folder)


register(
    Sample(
        Path(__file__).parent / "sample",
        defaults={"tasks": 5, "buffer": 200, "width": 16, "lr": 0.03},  # chosen by benchmarks/demo_study.py
    )
)
