"""A folder of pictures: a folder for each class, below `train` and `test` or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from cler.config.registry import DATASETS
from cler.config.settings import Settings
from cler.data.decoding import Encoded
from cler.data.reading import usual_tasks
from cler.data.source import Listing, Pictures
from cler.errors import UsageError
from cler.files import as_path, reading
from cler.pictures import is_picture

TRAIN = ("train", "training")
"""Names of the folder of training images, in small or capital letters; the first that is there."""
TEST = ("test", "testing", "val", "valid", "validation")
"""Names of the folder of test images, likewise."""


@dataclass(frozen=True)
class ImageFolder(Pictures):
    """Pictures in `PATH/CLASS/`, of which a share is to test on; or in `PATH/train/CLASS/` and `PATH/test/CLASS/`."""

    prefix: ClassVar[str] = "folder"
    description: ClassVar[str] = "your own image files, with a folder for each class"
    holds: ClassVar[str] = "a folder for each class"
    """What is in the folder."""

    @property
    def root(self) -> Path:
        """The folder of the dataset."""
        return as_path(self.where)

    @property
    def identity(self) -> str:
        """The absolute path of the folder, which is the same from wherever it is looked at."""
        return f"{self.prefix}:{os.path.abspath(self.root)}"

    def _checked(self) -> Path:
        """The folder of the dataset; refuses one that is not there."""
        root = self.root
        if not root.is_dir():
            raise UsageError(f"there is no folder {root}: {self.prefix}:PATH takes one with {self.holds}")
        return root

    def listing(self, folder: Path) -> Listing:
        """The pictures, class after class in the order of their names."""
        root = self._checked()
        with reading(root):
            train, test = _parts(root)
            classes = _classes(train)
            if not classes:
                raise UsageError(f"there are no images in {train}: they are looked for in {train / 'CLASS'}/")
            of_train = [(each, number) for number, name in enumerate(classes) for each in below(root, train / name)]
            of_test = [] if test is None else _of_test(root, test, classes)
        found = [each for each, _ in (*of_train, *of_test)]
        labels = [number for _, number in (*of_train, *of_test)]
        tested = None if test is None else [False] * len(of_train) + [True] * len(of_test)
        return Listing(found, labels, classes, lambda number: root / found[number].name, tested)

    def count(self) -> tuple[int, int]:
        """How many folders have pictures."""
        train, _ = _parts(self.root)
        return len(_found(train)), 0


@dataclass(frozen=True)
class ImageDomains(ImageFolder):
    """Pictures in `PATH/DOMAIN/CLASS/`, or in `PATH/train/DOMAIN/CLASS/` and `PATH/test/DOMAIN/CLASS/`."""

    prefix: ClassVar[str] = "domains"
    description: ClassVar[str] = "your own image files from several domains, in DOMAIN/CLASS"
    holds: ClassVar[str] = "a folder for each domain, and in it one for each class"

    def listing(self, folder: Path) -> Listing:
        """The pictures, domain after domain in the order of their names."""
        root = self._checked()
        with reading(root):
            train, test = _parts(root)
            domains = _classes(train)
            classes = sorted({name for domain in domains for name in _classes(train / domain)})
            if len(domains) < 2 or not classes:
                raise UsageError(f"{train} needs two domains with images or more: they are looked for in DOMAIN/CLASS/")
            found = [(*each, False) for each in _of_domains(root, train, domains, classes)]
            if test is not None:
                found += [(*each, True) for each in _of_domains(root, test, domains, classes)]
        pictures, labels, of_domain, tested = map(list, zip(*found, strict=True))
        return Listing(
            pictures,
            labels,
            classes,
            lambda number: root / pictures[number].name,
            tested if test is not None else None,
            domains,
            of_domain,
        )

    def count(self) -> tuple[int, int]:
        """How many classes the domains have, and how many domains there are."""
        train, _ = _parts(self.root)
        domains = _found(train)
        return len({name for domain in domains for name in _found(train / domain)}), len(domains)

    def usual(self, classes: int, domains: int) -> dict[str, Any]:
        """A task for each domain; on other streams, tasks of classes."""
        of_classes = usual_tasks(classes).get("tasks", Settings.tasks)
        return {
            "stream": "domain-incremental", "domains": "folders", "tasks": domains, "tasks_elsewhere": of_classes
        }  # fmt: skip


DATASETS.register_family("folder:PATH", ImageFolder, likely=os.path.isdir)
DATASETS.register_family("domains:PATH", ImageDomains)


def _of_domains(root: Path, part: Path, domains: list[str], classes: list[str]) -> list[tuple[Encoded, int, int]]:
    """The pictures of a part of the dataset, with the numbers of their classes and of their domains."""
    for domain in _classes(part):
        for name in _classes(part / domain):
            if domain not in domains or name not in classes:
                raise UsageError(f"{part / domain / name} has a domain or class that has no images to train on")
    return [
        (each, label, number)
        for number, domain in enumerate(domains)
        for label, name in enumerate(classes)
        for each in below(root, part / domain / name)
    ]


def _found(folder: Path) -> list[str]:
    """The classes, or domains, in a folder; it is looked through again when it, or a folder in it, has changed."""
    inside = (folder, *(folder / name for name in folders(folder)))
    return _found_then(folder, tuple(each.stat().st_mtime_ns for each in inside))


@lru_cache(maxsize=64)
def _found_then(folder: Path, changed: tuple[int, ...]) -> list[str]:
    return _classes(folder)


def _parts(root: Path) -> tuple[Path, Path | None]:
    """Where the classes to train on are, and where those to test on; None where these are not apart."""
    there = {name.lower(): root / name for name in folders(root)}
    train = next((there[name] for name in TRAIN if name in there and folders(there[name])), None)
    if train is None:
        return root, None
    return train, next((there[name] for name in TEST if name in there and _classes(there[name])), None)


def _of_test(root: Path, test: Path, classes: list[str]) -> list[tuple[Encoded, int]]:
    """The pictures to test on, with the numbers of their classes."""
    numbers = {name: number for number, name in enumerate(classes)}
    if (test / "val_annotations.txt").is_file():
        raise UsageError(
            f"{root} is laid out like tiny-imagenet: give that name, and {root} as the data folder", "dataset"
        )
    if strange := [name for name in _classes(test) if name not in numbers]:
        raise UsageError(f"{test / strange[0]} is a class that has no images to train on")
    return [(each, numbers[name]) for name in _classes(test) for each in below(root, test / name)]


def folders(folder: Path) -> list[str]:
    """The folders in one, by name, hidden ones left out; none if there is no such folder."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as found:
        return sorted(each.name for each in found if each.is_dir() and not each.name.startswith("."))


def _classes(folder: Path) -> list[str]:
    """The folders in one that have pictures."""
    return [name for name in folders(folder) if next(_walk(folder / name), None)]


def below(root: Path, folder: Path) -> list[Encoded]:
    """The pictures below a folder, by name."""
    return sorted(
        Encoded(Path(each.path).relative_to(root).as_posix(), f"{about.st_size} {about.st_mtime_ns}", about.st_size)
        for each in _walk(folder)
        if (about := each.stat())
    )


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The files below a folder, if there is one, that are pictures by their names; links are followed, once each."""
    if not folder.is_dir():
        return
    seen, waiting = set[str](), [os.fspath(folder)]
    while waiting:
        looked_at = waiting.pop()
        real = os.path.realpath(looked_at)
        if real in seen:
            continue
        seen.add(real)
        with os.scandir(looked_at) as found:
            for each in found:
                if each.is_dir():
                    waiting += [] if each.name.startswith(".") else [each.path]
                elif is_picture(each.name) and each.is_file():
                    yield each
