"""Tiny-ImageNet: 200 classes of ImageNet at 64×64 pixels, in the layout in which it is published.

`train/WNID/images/*.JPEG`, and `val/images/*.JPEG` with the classes in `val/val_annotations.txt`; `wnids.txt` has the
classes in their order. `get` fetches the official archive; a folder that a user has put there is taken as it is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cler.data import download, unpack
from cler.data.decoding import Encoded
from cler.data.image_folder import below, folders
from cler.data.images import Advance, Status, register
from cler.data.source import Listing, Pictures
from cler.errors import UsageError
from cler.files import read_text, reading

LARGEST = 600_000_000
"""Bytes of the archive, and of what it holds: about 250 and 240 million, before its files are rounded up to blocks."""
MOST_FILES = 200_000
"""Files and folders in the archive: about 121,000."""


@dataclass(frozen=True)
class TinyImageNet(Pictures):
    """The training and the validation images of Tiny-ImageNet; the latter, which have labels, are to test on."""

    where: str = ""
    url: str = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    md5: str = "90528d7ca1a48142e341f4ef8d21d0de"
    name: ClassVar[str] = "tiny-imagenet"
    description: ClassVar[str] = (
        "110,000 photographs of 64×64 pixels in 200 classes, for research only (248 MB to fetch)"
    )
    takes: ClassVar[tuple[str, ...]] = ("size", "fit", "skip_broken")
    layout: ClassVar[str] = "tiny-imagenet-200"
    """The folder that the archive unpacks to; the archive is named after it."""

    def count(self) -> tuple[int, int]:
        """As many classes as are published: a folder with fewer is a user's own."""
        return 200, 0

    def listing(self, folder: Path) -> Listing:
        """The training images of each class in its order, then the test images."""
        root = self._find(folder)
        if root is None:
            raise UsageError(self._missing(folder))
        with reading(root):
            train = root / "train"
            classes = _order(root, folders(train))
            found, labels = [], []
            for number, name in enumerate(classes):
                found += (more := below(root, train / name))
                labels += [number] * len(more)
            tested = [False] * len(found)
            for each, name in _annotated(root):
                if name not in classes:
                    raise UsageError(f"{root / each.name} is of class {name}, which has no images to train on")
                found.append(each)
                labels.append(classes.index(name))
                tested.append(True)
        return Listing(found, labels, classes, lambda number: root / found[number].name, tested)

    def check(self, folder: Path) -> Status:
        """Decode every picture, or read its pixels."""
        if self._find(folder) is None:
            return Status("missing", self._missing(folder), folder)
        return super().check(folder)

    def get(self, folder: Path, progress: Advance | None = None) -> Status:
        """Fetch and unpack the archive, unless the dataset is there and can be read."""
        target = folder / f"{self.layout}.zip"
        with download.alone(target, progress):
            status = self.check(folder)
            if status.state != "present":
                archive = download.fetch(self.url, target, self.md5, progress, most=LARGEST)
                unpack.extract_zip(archive, folder, limit=LARGEST, members=MOST_FILES)
                status = self.check(folder)
        return status

    def _find(self, folder: Path) -> Path | None:
        """What the archive unpacks to, or where a user may have put the images."""
        for root in (folder / self.layout, folder / self.name, folder):
            if os.path.isdir(root / "train") and os.path.isfile(root / "val" / "val_annotations.txt"):
                return root
        return None

    def _missing(self, folder: Path) -> str:
        return (
            f"Tiny-ImageNet is not in {folder}: run {download.get_command(self.name, folder)}, look in another "
            f"data folder, or fetch {self.url} by hand and unpack it in {folder}"
        )


def _order(root: Path, found: list[str]) -> list[str]:
    """The classes in the order of `wnids.txt`, where neighbors do not look alike; those that it lacks come last."""
    listed = read_text(root / "wnids.txt").split() if (root / "wnids.txt").is_file() else []
    return [*(name for name in dict.fromkeys(listed) if name in found), *(name for name in found if name not in listed)]


def _annotated(root: Path) -> list[tuple[Encoded, str]]:
    """The test images, by name, with their classes."""
    lines = read_text(root / "val" / "val_annotations.txt").splitlines()
    of_file = {columns[0]: columns[1] for columns in (line.split() for line in lines) if len(columns) > 1}
    found = below(root, root / "val" / "images")
    if nameless := [each.name for each in found if os.path.basename(each.name) not in of_file]:
        raise UsageError(f"{root / nameless[0]} has no line in {root / 'val' / 'val_annotations.txt'}")
    return [(each, of_file[os.path.basename(each.name)]) for each in found]


tiny_imagenet = register(TinyImageNet())
