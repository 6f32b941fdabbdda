"""A dataset in memory, and the table of datasets by name."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from cler.config.registry import DATASETS
from cler.data.host import Pinned, fit, on_host
from cler.errors import UsageError

Advance = Callable[[int, int | None], None]
"""Called with the bytes, or the images, done and, where it is known, those in all."""
CHUNK = 1000
"""Images that are changed at a time where all of them are."""


@dataclass(frozen=True, eq=False)
class ImageData:
    """The training and test images of one dataset, with what is needed to normalize them."""

    name: str
    """The name of the dataset."""
    train_images: Tensor
    """uint8, N×C×H×W."""
    train_labels: Tensor
    """int64, N, from 0 to K-1."""
    test_images: Tensor
    """uint8, M×C×H×W."""
    test_labels: Tensor
    """int64, M, from 0 to K-1."""
    classes: tuple[str, ...]
    """K names; label k is classes[k]."""
    mean: tuple[float, ...]
    """Per channel, of pixels scaled to 0..1."""
    std: tuple[float, ...]
    """Per channel, of pixels scaled to 0..1."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of settings for runs on these images, by name, such as `augment`."""
    domains: tuple[str, ...] = ()
    """Names of the domains that images come from; none where there are no domains."""
    train_domains: Tensor | None = None
    """The domain of each training image, int64, N, where there are any."""
    test_domains: Tensor | None = None
    """The domain of each test image, int64, M, where there are any."""
    on_host: bool = False
    """Whether the images lie in main memory, where a GPU reads them, though their tensors are tensors of the GPU."""

    def __post_init__(self) -> None:
        _check_split(self, "train", self.train_images, self.train_labels)
        _check_split(self, "test", self.test_images, self.test_labels)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise UsageError(f"{self.name}: training and test images differ in shape")
        channels = self.train_images.shape[1]
        if not len(self.mean) == len(self.std) == channels:
            raise UsageError(f"{self.name}: mean and std need one number for each of the {channels} channels")
        if not all(map(math.isfinite, self.mean)) or not all(0 < each < math.inf for each in self.std):
            raise UsageError(f"{self.name}: mean and std must be finite numbers, and std above 0")

    def __repr__(self) -> str:
        train, test = self.train_images, self.test_images
        shape = "×".join(map(str, train.shape[1:]))
        return f"ImageData({self.name!r}, {len(train)} + {len(test)} images of {shape}, {self.n_classes} classes)"

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @property
    def image_size(self) -> int:
        """The height of an image in pixels."""
        return self.train_images.shape[2]

    def fingerprint(self) -> str:
        """A short hash of all images, labels and domains, to tell whether two runs saw the same data."""
        digest = hashlib.sha256()
        tensors = [self.train_images, self.train_labels, self.test_images, self.test_labels]
        tensors += [each for each in (self.train_domains, self.test_domains) if each is not None]
        for tensor in tensors:
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str, images: str = "device") -> ImageData:
        """The same data with its images and labels on `device`.

        Of a GPU, `images` says where the images lie: on the "device"; on the "host", in main memory, where it reads
        them; or "auto", on the device where they fit.
        """
        device = torch.device(device)
        size = self.train_images.nbytes + self.test_images.nbytes
        stay = device.type == "cuda" and (images == "host" or (images == "auto" and not fit(size, device)))
        place = on_host if stay else Tensor.to
        return dataclasses.replace(
            self,
            train_images=place(self.train_images, device),
            train_labels=self.train_labels.to(device),
            test_images=place(self.test_images, device),
            test_labels=self.test_labels.to(device),
            on_host=stay,
        )

    def with_training_images(self, shown: Callable[[Tensor], Tensor]) -> ImageData:
        """The same data, where it is, with other training images: `shown` gives those of some indices."""
        images, device = self.train_images, self.train_images.device
        others = Pinned(images.shape).seen_by(device) if self.on_host else torch.empty_like(images)
        for indices in torch.arange(len(images), device=device).split(CHUNK):
            others[indices] = shown(indices)
        return dataclasses.replace(self, train_images=others)


def _check_split(data: ImageData, split: str, images: Tensor, labels: Tensor) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4:
        raise UsageError(f"{data.name}: {split} images must be uint8 of shape N×C×H×W")
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise UsageError(f"{data.name}: {split} labels must be int64, one for each image")
    if not len(labels) or int(labels.min()) < 0 or int(labels.max()) >= len(data.classes):
        raise UsageError(f"{data.name}: {split} labels must lie in 0..{len(data.classes) - 1}, and there must be some")


@dataclass(frozen=True)
class Status:
    """Whether a dataset can be used, and why not."""

    state: Literal["present", "missing", "damaged"]
    reason: str
    """One line for the user."""
    path: Path
    """The file or folder that was looked at."""


class Dataset(Protocol):
    """A dataset as it is registered: name, description, defaults of settings, and how to load, check and fetch it."""

    @property
    def name(self) -> str:
        """What users type."""

    @property
    def description(self) -> str:
        """One line for the list of datasets."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Defaults of settings for runs on this dataset, by name, such as `augment`."""

    def load(self, folder: Path) -> ImageData:
        """Read and verify it; a UsageError says what to do when it is missing or damaged."""

    def check(self, folder: Path) -> Status:
        """Verify it without keeping it."""

    def get(self, folder: Path, progress: Advance | None) -> Status:
        """Fetch it, unless it is there and intact."""


register = DATASETS.add
"""Registers a dataset for the command line and the tests."""


def find(name: str) -> Dataset:
    """The registered dataset of this name."""
    found: Dataset = DATASETS.find(name)
    return found


@dataclass(frozen=True, eq=False)
class InMemory:
    """Images that a program has made or read itself, as a dataset under their own name."""

    data: ImageData

    @property
    def name(self) -> str:
        """What the images are called."""
        return self.data.name

    description = "images of your own, in memory"

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What runs on them take where nothing else is said."""
        return self.data.defaults

    def load(self, folder: Path) -> ImageData:
        """The images."""
        return self.data

    def check(self, folder: Path) -> Status:
        """They are there."""
        return Status("present", "in memory", folder)

    def get(self, folder: Path, progress: Advance | None) -> Status:
        """Check it: there is nothing to fetch."""
        return self.check(folder)
