"""mini-ImageNet: 100 classes of ImageNet at 84×84 pixels (Vinyals et al., 2016; Ravi and Larochelle, 2017).

A folder of JPEGs for each class, 500 of them under `train` and 100 under `val`. `get` fetches a public copy, whose
files have to be those that we know; a folder that a user has put there by hand is taken as it is. ImageNet's terms
allow research only. Decoding takes a minute, so the pixels are kept beside the images in one file.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cler.data import download, unpack
from cler.data.decoding import Pixels, kept_pixels
from cler.data.images import Advance, ImageData, Status, register
from cler.errors import DamagedError, UsageError
from cler.files import read_bytes

MOST_BYTES = 100_000
"""Bytes of a JPEG at most: several times what its pixels take, so that none takes long to decode."""
LARGEST = 500_000_000
"""Bytes of the archive, and of what it holds: about 250 and 300 million."""
CACHE = "mini-imagenet.pixels"
"""The file of all pixels."""


class ImageFile(NamedTuple):
    """An image file as it was when it was seen; one that is rewritten counts as another."""

    path: Path
    size: int
    modified: int

    @property
    def key(self) -> tuple[str, str]:
        """Class and file name, which identify an image of the dataset."""
        return self.path.parent.name, self.path.name


@dataclass(frozen=True)
class MiniImageNet:
    """A dataset of color images in `train/CLASS/*.jpg` and `val/CLASS/*.jpg`."""

    name: str
    title: str
    description: str
    base_url: str
    folder: str
    """What the archive unpacks to; the archive is named after it."""
    wordnet_ids: tuple[str, ...]
    """The folders of the classes, sorted."""
    train: int
    """Training images of each class."""
    test: int
    """Test images of each class."""
    pixels: int
    """Height and width of an image."""
    sha256: str
    """Checksum of the output of `sha256sum train/*/*.jpg val/*/*.jpg` in what the archive unpacks to."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of settings for runs on this dataset."""

    @property
    def url(self) -> str:
        """Where the archive to fetch is."""
        return self.base_url + self.archive

    @property
    def archive(self) -> str:
        """The name of the file to fetch."""
        return self.folder + ".tar.gz"

    @property
    def classes(self) -> tuple[str, ...]:
        """The WordNet ids, shuffled once and for all: neighbors are look-alikes, which must not share a task."""
        numbers = np.random.RandomState(0).permutation(len(self.wordnet_ids))
        return tuple(self.wordnet_ids[position] for position in np.argsort(numbers))

    def load(self, folder: Path) -> ImageData:
        """Read the images, from the file of their pixels if it is there and as it was written."""
        root = self._find(folder)
        if root is None:
            raise UsageError(self._missing(folder))
        try:
            images = torch.from_numpy(self._read(root))
        except DamagedError as problem:
            raise UsageError(f"{problem}: delete it and run `cler data get {self.name}`") from problem
        except OSError as error:
            raise UsageError(f"cannot read {error.filename or root} ({error.strerror})") from error
        labels = torch.arange(len(self.classes))
        train = self.train * len(self.classes)
        return ImageData(
            name=self.name,
            train_images=images[:train],
            train_labels=labels.repeat_interleave(self.train),
            test_images=images[train:],
            test_labels=labels.repeat_interleave(self.test),
            classes=self.classes,
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
        )

    def check(self, folder: Path) -> Status:
        """Look for every file, and decode it or read its pixels."""
        root = self._find(folder)
        if root is None:
            return Status("missing", self._missing(folder), folder)
        try:
            self.load(folder)
        except UsageError as error:
            return Status("damaged", str(error), root)
        return Status("present", f"{self.title} is complete in {root}", root)

    def get(self, folder: Path, progress: Advance | None = None) -> Status:
        """Fetch and unpack the archive, unless the dataset is there and complete."""
        target = folder / self.archive
        with download.alone(target, progress):
            status = self.check(folder)
            if status.state != "present":
                unpack.extract(download.fetch(self.url, target, None, progress, most=LARGEST), folder, limit=LARGEST)
                status = self.check(folder)
                if status.state != "present":
                    told = f"unpacked {target}, but {status.reason}; delete the archive too, to fetch it again"
                    raise UsageError(told)
        return status

    def _find(self, folder: Path) -> Path | None:
        """What the archive unpacks to, or where a user may have put the images."""
        for root in (folder / self.folder, folder / self.name, folder):
            if os.path.isdir(root / "train") and os.path.isdir(root / "val"):
                return root
        return None

    def _missing(self, folder: Path) -> str:
        return (
            f"{self.title} is not in {folder}: run {download.get_command(self.name, folder)}, look in another "
            f"data folder, or put its folders train and val in {folder / self.name} by hand"
        )

    def _read(self, root: Path) -> np.ndarray:
        """All images, N×3×H×W: the training images of class 0, of class 1, ..., then the test images."""
        train, test = [*self._list(root / "train", self.train)], [*self._list(root / "val", self.test)]
        if leaked := {file.key for file in train} & {file.key for file in test}:
            raise DamagedError(f"{root.joinpath('val', *min(leaked))} is a training image too")
        files = train + test
        listed = repr([(str(file.path.relative_to(root)), file.size, file.modified) for file in files]).encode()
        kept = kept_pixels(root / CACHE, listed, len(files), lambda: Pixels(self._decode_all(root, files), {}))
        return kept.images

    def _decode_all(self, root: Path, files: list[ImageFile]) -> np.ndarray:
        """The images of these files; the published ones have to be as they were published."""
        images, digests = np.empty((len(files), 3, self.pixels, self.pixels), np.uint8), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about oddities of files that it can read
            for image, file in zip(images, files, strict=True):
                content = _content(file)
                digests.append((file.path.relative_to(root).as_posix(), hashlib.sha256(content).hexdigest()))
                image[:] = _decode(file.path, content, self.pixels)
        told = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests))
        if root.name == self.folder and hashlib.sha256(told.encode()).hexdigest() != self.sha256:
            raise DamagedError(f"{root} does not hold the images that were published (a checksum is wrong)")
        return images

    def _list(self, split: Path, count: int) -> Iterator[ImageFile]:
        """The files of a split, class after class."""
        with os.scandir(split) as found:
            folders = {each.name for each in found if each.is_dir() and not each.name.startswith(".")}
        if strange := folders.difference(self.wordnet_ids):
            raise DamagedError(f"{split / min(strange)} is not a class of {self.title}")
        for name in self.classes:
            files = _list_images(split / name)
            if len(files) != count:
                raise DamagedError(f"{split / name} has {len(files)} images instead of {count}")
            yield from files


def _list_images(folder: Path) -> list[ImageFile]:
    """The JPEGs in a folder by name, hidden ones left out; none if there is no such folder."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as found:
        files = [each for each in found if each.name.endswith(".jpg") and not each.name.startswith(".")]
        if strange := [each.name for each in files if not each.is_file()]:
            raise DamagedError(f"{folder / min(strange)} is not a file")
        entries = [ImageFile(folder / each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in files]
    return sorted(entries)


def _content(file: ImageFile) -> bytes:
    """The bytes of an image; their number is checked before anything is decoded."""
    if file.size > MOST_BYTES:
        raise DamagedError(f"{file.path} has {file.size} bytes, more than {MOST_BYTES}")
    return read_bytes(file.path, MOST_BYTES)


def _decode(path: Path, content: bytes, pixels: int) -> np.ndarray:
    """A JPEG as 3×H×W; its size is checked before anything is decoded."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=("JPEG",)) as picture:
            if picture.size == (pixels, pixels):
                return np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
            size = f"{picture.width}×{picture.height}"
    except Exception as error:  # Pillow raises errors of many kinds for broken files
        raise DamagedError(f"{path} is not a JPEG, or is incomplete") from error
    raise DamagedError(f"{path} has {size} pixels instead of {pixels}×{pixels}")


COMMIT = "557ebcae0db23651f9370f54a5f31b1f0fd4064d"

mini_imagenet = register(
    MiniImageNet(
        name="mini-imagenet",
        title="mini-ImageNet",
        description="60,000 photographs of 84×84 pixels in 100 classes, for research only (250 MB to fetch)",
        base_url=f"https://github.com/Deo0330/split_minidataset/archive/{COMMIT}/",
        folder=f"split_minidataset-{COMMIT}",
        wordnet_ids=tuple(
            """
            n01532829 n01558993 n01704323 n01749939 n01770081 n01843383 n01855672 n01910747 n01930112 n01981276
            n02074367 n02089867 n02091244 n02091831 n02099601 n02101006 n02105505 n02108089 n02108551 n02108915
            n02110063 n02110341 n02111277 n02113712 n02114548 n02116738 n02120079 n02129165 n02138441 n02165456
            n02174001 n02219486 n02443484 n02457408 n02606052 n02687172 n02747177 n02795169 n02823428 n02871525
            n02950826 n02966193 n02971356 n02981792 n03017168 n03047690 n03062245 n03075370 n03127925 n03146219
            n03207743 n03220513 n03272010 n03337140 n03347037 n03400231 n03417042 n03476684 n03527444 n03535780
            n03544143 n03584254 n03676483 n03770439 n03773504 n03775546 n03838899 n03854065 n03888605 n03908618
            n03924679 n03980874 n03998194 n04067472 n04146614 n04149813 n04243546 n04251144 n04258138 n04275548
            n04296562 n04389033 n04418357 n04435653 n04443257 n04509417 n04515003 n04522168 n04596742 n04604644
            n04612504 n06794110 n07584110 n07613480 n07697537 n07747607 n09246464 n09256479 n13054560 n13133613
            """.split()  # noqa: SIM905  a hundred quoted names are harder to read
        ),
        train=500,
        test=100,
        pixels=84,
        sha256="399528ee9c3895cd787e8e534d4ce65dbc6ed2207b2dcec6295ff64e87871ac4",
        defaults={"tasks": 20},
    )
)
