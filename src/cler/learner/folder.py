"""A learner that watches a folder: every image that arrives there is learned once, but for a share that tests it."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image, ImageOps
from torch import Tensor

from cler.errors import UsageError, one_line
from cler.learner import files
from cler.learner.inputs import Label, eight_bits, to_pixels
from cler.learner.learner import Learner

PICTURES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What a file may be, whatever its name: Pillow runs other programs for some others."""
MOST_PIXELS = 80_000_000
"""Of a picture: with more, learning it would take a gigabyte of memory."""
LEARNER = "learner.safetensors"
JOURNAL = "journal.jsonl"
TRIES = 3
"""Looks after which a file that cannot be read, and does not change, is given up."""
MOST_HELD_OUT = 1000
"""Images that the accuracy is measured on at most."""


class Arrival(NamedTuple):
    """A file as it was when it was seen; one that is written anew is another."""

    name: str
    """LABEL/FILE."""
    size: int
    modified: int

    @property
    def label(self) -> str:
        """The folder it lies in."""
        return self.name.partition("/")[0]

    @property
    def lot(self) -> float:
        """A number from 0 to 1, the same whenever a file of this name is seen."""
        return int.from_bytes(hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).digest()[:8]) / 2**64


def arrivals(folder: Path) -> list[Arrival]:
    """The images in `folder/LABEL/`, hidden ones left out, in the order in which they were written."""
    try:
        labels = [each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")]
        found = [each for label in labels for each in _arrivals_of(label)]
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None
    return sorted(found, key=lambda each: (each.modified, each.name))


def _arrivals_of(label: Path) -> Iterator[Arrival]:
    for file in os.scandir(label):
        if Path(file.name).suffix.lower() in PICTURES and not file.name.startswith("."):
            with suppress(OSError):  # it has gone since, or is a link to nothing
                if file.is_file():
                    yield Arrival(f"{label.name}/{file.name}", file.stat().st_size, file.stat().st_mtime_ns)


def open_picture(path: Path) -> Image.Image:
    """The first picture in a file, the right way up, in colour."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is odd about a file that can be read all the same
        with Image.open(path, formats=FORMATS) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise UsageError(f"it has {opened.width} × {opened.height} pixels, more than {MOST_PIXELS}")
            ImageOps.exif_transpose(opened, in_place=True)
            return eight_bits(opened).convert("RGB")


class FolderLearner:
    """A learner and what it has taken from a folder, both kept in another folder.

    The journal there has a line for each image that the learner was given, in that order. The learner's file knows how
    many they are, so lines that were written after it was saved are dropped, and what they tell of is learned again.
    """

    def __init__(
        self,
        folder: Path,
        state: Path,
        learner: Learner,
        *,
        held_out: float,
        tries: int = TRIES,
        message: Callable[[str], None] = print,
    ) -> None:
        self.folder, self.state, self.learner = folder, state, learner
        self.held_out, self.tries, self.message = held_out, tries, message
        self._taken = {each.name: each for each in self._read_journal()}
        self._unwritten: list[Arrival] = []
        self._unreadable: dict[Arrival, int] = {}
        self._exam: dict[Arrival, Tensor] = {}

    def _read_journal(self) -> list[Arrival]:
        """What the learner was given; leaves nothing else in the journal."""
        path, count = self.state / JOURNAL, self.learner.n_seen_
        try:
            lines = path.read_text("utf-8").splitlines(keepends=True)[:count] if path.exists() else []
            taken = [Arrival(*json.loads(line)) for line in lines]
        except (OSError, ValueError, TypeError, RecursionError):
            taken = []
        taken = [each for each in taken if isinstance(each.name, str)]
        if len(taken) < count:
            raise UsageError(f"{path} does not belong to the learner beside it; choose another --state, or delete it")
        files.write(path, "".join(lines).encode() if count else b"")
        return taken

    def learn(self) -> Iterator[int]:
        """Learn what has arrived, some images at a time; tells after each time how many are left."""
        found = arrivals(self.folder)
        present = set(found)
        self._unreadable = {each: tries for each, tries in self._unreadable.items() if each in present}
        self._hold_out(found)
        new = [each for each in found if self._is_new(each)]
        for start in range(0, len(new), self.learner.batch):
            read = [(each, self._read(each)) for each in new[start : start + self.learner.batch]]
            given = [(each, pixels) for each, pixels in read if pixels is not None]
            if given:
                self.learner.partial_fit(torch.cat([pixels for _, pixels in given]), [each.label for each, _ in given])
            self._taken |= {each.name: each for each, _ in given}
            self._unwritten += [each for each, _ in given]
            yield max(0, len(new) - start - self.learner.batch)

    def _is_new(self, each: Arrival) -> bool:
        return self._taken.get(each.name) != each and not self._is_held_out(each) and not self._is_given_up(each)

    def _is_held_out(self, each: Arrival) -> bool:
        """Decided by its name, so that it stays so; what has been learned once tests nothing."""
        return each.lot < self.held_out and each.name not in self._taken

    def _is_given_up(self, each: Arrival) -> bool:
        return self._unreadable.get(each, 0) >= self.tries

    def _hold_out(self, found: list[Arrival]) -> None:
        """Test on the held-out images that are there: when there are too many, on those with the lowest lots."""
        apart = [each for each in found if self._is_held_out(each) and not self._is_given_up(each)]
        chosen = sorted(apart, key=lambda each: each.lot)[:MOST_HELD_OUT]
        read = {each: self._exam[each] if each in self._exam else self._read(each) for each in chosen}
        self._exam = {each: pixels for each, pixels in read.items() if pixels is not None}

    def _read(self, each: Arrival) -> Tensor | None:
        """The image, or None for a file that is broken, or not complete yet."""
        try:
            picture = open_picture(self.folder / each.name)
        except Exception as error:  # there is no end to what Pillow raises for broken files
            self._unreadable[each] = self._unreadable.get(each, 0) + 1
            if self._unreadable[each] == self.tries:
                self.message(one_line(f"{self.folder / each.name} is left out, it cannot be read: {error}"))
            return None
        return to_pixels([picture], channels=self.learner.channels, size=self.learner.image_size)

    @property
    def path(self) -> Path:
        """The learner's file."""
        return self.state / LEARNER

    @property
    def unsaved(self) -> int:
        """Images learned since it was saved."""
        return len(self._unwritten)

    @property
    def classes(self) -> list[Label]:
        """The labels it has learned."""
        return self.learner.classes_.tolist() if hasattr(self.learner, "classes_") else []

    def accuracy(self) -> tuple[float | None, int]:
        """Percent right on the held-out images of classes it knows, and their number."""
        known = set(self.classes)
        exam = [(pixels, each.label) for each, pixels in self._exam.items() if each.label in known]
        if not exam:
            return None, 0
        pixels, labels = zip(*exam, strict=True)
        return 100 * self.learner.score(torch.cat(pixels), labels), len(labels)

    def save(self) -> None:
        """Journal first: the learner's file then says how much of it counts."""
        lines = "".join(json.dumps(each) + "\n" for each in self._unwritten)
        try:
            with (self.state / JOURNAL).open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UsageError(f"cannot write {self.state / JOURNAL}: {error.strerror}") from None
        self.learner.save(self.path)
        self._unwritten = []
