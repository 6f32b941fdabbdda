"""Datasets that are pictures: each source lists them, and here they are decoded, kept, split and normalized."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from cler.config.settings import OF_READING
from cler.data.decoding import Content, Encoded, Pixels, decode, kept_pixels
from cler.data.images import Advance, ImageData, Status
from cler.data.reading import Reading, as_labels, image_data, split, usual_tasks
from cler.errors import UsageError

DECODED = "decoded"
"""The folder, in that of the datasets, of the pixels of pictures that lie elsewhere."""
LOOKED_AT = 64
"""Pixels to which images of different sizes are brought to be checked."""
NAMED = 3
"""Broken images that are named; of the others their number is."""


@dataclass(frozen=True)
class Listing:
    """The pictures of a dataset before they are decoded."""

    pictures: Sequence[Encoded]
    labels: Sequence[int]
    classes: Sequence[str]
    content: Content
    tested: Sequence[bool] | None
    """Which pictures are to test on; None where nobody has said that."""
    domains: Sequence[str] = ()
    """Names of the domains that pictures come from, if there are any."""
    of_domain: Sequence[int] = ()
    """The domain of each picture, if there are any."""


@dataclass(frozen=True)
class Pictures(ABC):
    """A dataset of pictures that a subclass lists.

    They are decoded once, into a file in the folder of the datasets. What identifies the dataset is its pixels: the
    file is made again when it is damaged, or when a picture, or the list of them, has changed.
    """

    where: str
    """What was written after the colon: a path, or a name."""
    reading: Reading = Reading()
    prefix: ClassVar[str]
    """What was written before the colon."""
    takes: ClassVar[tuple[str, ...]] = OF_READING
    """The settings of the reading that have an effect."""

    @abstractmethod
    def listing(self, folder: Path) -> Listing:
        """The pictures; a UsageError says what to do where there are none."""

    @property
    @abstractmethod
    def description(self) -> str:
        """One line for the list of datasets."""

    @property
    def name(self) -> str:
        """What users type."""
        return f"{self.prefix}:{self.where}"

    @property
    def identity(self) -> str:
        """What tells the file of its pixels from that of another dataset."""
        return self.name

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What runs on it take where nothing else is said; nothing where it cannot be looked at."""
        try:
            return self.usual(*self.count())
        except (UsageError, OSError):
            return {}

    @abstractmethod
    def count(self) -> tuple[int, int]:
        """How many classes and how many domains there are, found out without reading all pictures."""

    def usual(self, classes: int, domains: int) -> dict[str, Any]:
        """What runs take on a dataset of so many classes and domains."""
        return usual_tasks(classes)

    def read_as(self, reading: Reading) -> Self:
        """The same dataset, read in another way."""
        return replace(self, reading=reading)

    def load(self, folder: Path, progress: Advance | None = None) -> ImageData:
        """Decode the pictures, or read their pixels where that has been done."""
        listing = self.listing(folder)
        pixels = self._pixels(listing, folder, progress)
        if pixels.broken and not self.reading.skip_broken:
            raise UsageError(f"is needed to leave out images of {self.name}: {_told(listing, pixels)}", "skip_broken")
        return self._data(listing, pixels)

    def _pixels(self, listing: Listing, folder: Path, progress: Advance | None) -> Pixels:
        how = self.reading.size, self.reading.fitted if self.reading.size else None
        listed = repr((how, [(each.name, each.stamp) for each in listing.pictures])).encode()

        def make() -> Pixels:
            return decode(listing.pictures, listing.content, self.reading.size, self.reading.fitted, progress)

        return kept_pixels(self._file(folder, how), listed, len(listing.pictures), make)

    def _file(self, folder: Path, how: tuple[Any, ...]) -> Path:
        """Where the pixels are kept."""
        key = hashlib.sha256(repr((self.identity, how)).encode()).hexdigest()[:16]
        readable = re.sub(r"[^\w.+-]+", "-", self.name)[-60:].strip("-.")
        return folder / DECODED / f"{readable}-{key}.pixels"

    def _data(self, listing: Listing, pixels: Pixels) -> ImageData:
        """The dataset of the pictures that can be read, as if there were no others."""
        kept = [number for number in range(len(listing.labels)) if number not in pixels.broken]
        labels = [listing.labels[number] for number in kept]
        if listing.tested is None:
            names = [listing.pictures[number].name for number in kept]
            of_test = torch.tensor(split(names, *_groups(listing, kept), self.reading.held_back))
        elif self.reading.test_share is None:
            of_test = torch.tensor([listing.tested[number] for number in kept])
        else:
            raise UsageError(f"has no effect: {self.name} says itself which images are to test on", "test_share")
        if not of_test.any():
            raise UsageError(f"{self.name} has no image to test on that can be read")
        images = torch.from_numpy(pixels.images)
        numbers = as_labels(labels)
        data = image_data(
            self.name,
            (_chosen(images, ~of_test), numbers[~of_test]),
            (_chosen(images, of_test), numbers[of_test]),
            listing.classes,
            self.usual(len(listing.classes), len(listing.domains)),
        )
        if not listing.domains:
            return data
        domains = as_labels([listing.of_domain[number] for number in kept])
        return replace(
            data, domains=tuple(listing.domains), train_domains=domains[~of_test], test_domains=domains[of_test]
        )

    def check(self, folder: Path) -> Status:
        """Decode every picture, or read its pixels."""
        try:
            listing = self.listing(folder)
            pixels, sizes = self._looked_at(listing, folder)
            if pixels.broken:
                return Status("damaged", f"{_told(listing, pixels)}; runs can leave them out by --skip-broken", folder)
            data = self._data(listing, pixels)
        except UsageError as error:
            return Status("missing", str(error), folder)
        counts = data.train_labels.bincount()
        each = f"{counts.min()} to {counts.max()}" if counts.min() < counts.max() else str(counts.min().item())
        told = (
            f"{len(data.train_labels)} training images in {data.n_classes} classes of {each}, {len(data.test_labels)} "
            f"test images, {sizes}"
        )
        return Status("present", told, folder)

    def _looked_at(self, listing: Listing, folder: Path) -> tuple[Pixels, str]:
        """The pixels of all pictures, brought to a size if they differ in theirs, and their sizes in words."""
        try:
            pixels = self._pixels(listing, folder, None)
        except UsageError as error:
            if error.parameter != "size":
                raise
            how = self.reading._replace(size=LOOKED_AT)
            return self.read_as(how)._pixels(listing, folder, None), "of different sizes: runs need a size, such as 64"
        return pixels, f"of {pixels.images.shape[3]}×{pixels.images.shape[2]} pixels"

    def get(self, folder: Path, progress: Advance | None = None) -> Status:
        """Check it: there is nothing to fetch."""
        return self.check(folder)


def _groups(listing: Listing, kept: Sequence[int]) -> tuple[list[int], Sequence[str]]:
    """What a share is taken of: classes or, where there are domains, those of each domain; numbers and names."""
    if not listing.domains:
        return [listing.labels[number] for number in kept], listing.classes
    numbers = [listing.of_domain[each] * len(listing.classes) + listing.labels[each] for each in kept]
    return numbers, [f"{domain}/{name}" for domain in listing.domains for name in listing.classes]


def _chosen(images: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    """Some of the images: those at one end as they are, which shares memory with other processes."""
    places = which.nonzero().squeeze(1)
    first, count = int(places[0]) if len(places) else 0, len(places)
    contiguous = count > 0 and int(places[-1]) == first + count - 1
    return images[first : first + count] if contiguous else images[which]


def _told(listing: Listing, pixels: Pixels) -> str:
    """How many images are broken, and the first of them with what is wrong."""
    named = ", ".join(f"{listing.pictures[number].name} ({why})" for number, why in [*pixels.broken.items()][:NAMED])
    more = f" and {len(pixels.broken) - NAMED} more" if len(pixels.broken) > NAMED else ""
    return f"{len(pixels.broken)} of {len(listing.pictures)} cannot be read, {named}{more}"
