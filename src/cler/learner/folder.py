"""A learner that watches a folder: every image that arrives there is learned once, but for a held-out share."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cler.data.inputs import Label
from cler.errors import UsageError, one_line
from cler.files import read_bytes
from cler.learner import fileformat
from cler.learner.inputs import to_pixels
from cler.learner.learner import Learner
from cler.pictures import is_picture, open_picture, why_not
from cler.runs.folders import check_writable

LEARNER = "learner.safetensors"
JOURNAL = "journal.jsonl"
LARGEST_JOURNAL = 1 << 32
"""Bytes that are read of a journal, which has a line for each image."""
HELD_OUT = "held_out.json"
TRIES = 3
"""Looks after which a file that cannot be read, and does not change, is given up."""
MOST_HELD_OUT = 1000
"""Images that the accuracy is measured on at most."""


class Arrival(NamedTuple):
    """A file as it was when it was seen; one that was written again since is another."""

    name: str
    """LABEL/FILE."""
    size: int
    modified: int

    @property
    def label(self) -> str:
        """The name of the folder that it lies in."""
        return self.name.partition("/")[0]

    @property
    def lot(self) -> float:
        """A number from 0 to 1, the same whenever a file of this name is seen."""
        return int.from_bytes(hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).digest()[:8]) / 2**64


def arrivals(folder: Path) -> tuple[list[Arrival], dict[Path, str]]:
    """The images in `folder/LABEL/`, hidden ones left out, in the order in which they were written.

    Also which folders of labels cannot be read, and why.
    """
    try:
        entries = [each for each in folder.iterdir() if not each.name.startswith(".")]
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None
    found: list[Arrival] = []
    closed: dict[Path, str] = {}
    for label in entries:
        try:
            if label.is_dir():
                found += _arrivals_of(label)
        except (FileNotFoundError, NotADirectoryError):  # it has gone since
            pass
        except OSError as error:
            closed[label] = str(error.strerror)
    return sorted(found, key=lambda each: (each.modified, each.name)), closed


def _arrivals_of(label: Path) -> Iterator[Arrival]:
    for file in os.scandir(label):
        if is_picture(file.name):
            with suppress(OSError):  # it has gone since, or is a link to nothing
                if file.is_file():
                    yield Arrival(f"{label.name}/{file.name}", file.stat().st_size, file.stat().st_mtime_ns)


class FolderLearner:
    """A learner and what it has taken from a folder, both kept in another folder.

    The journal there has a line for each file that the learner was given and that was not taken away since, with the
    number of the image among all that it was given. The learner's file knows how many these are, so lines with higher
    numbers, written just before it was to be saved, do not count, and what they tell of is learned again.
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
        self._given = learner.n_seen_
        self._taken = self._read_journal()
        self._saved = self._mark()
        self._unreadable: dict[Arrival, int] = {}
        self._closed: dict[Path, str] = {}
        self._exam: dict[Arrival, Tensor] = {}

    def _read_journal(self) -> dict[str, tuple[Arrival, int]]:
        """What the learner was given, by name, with the numbers of the images."""
        path, count = self.state / JOURNAL, self._given
        try:
            lines = read_bytes(path, LARGEST_JOURNAL, follow=False).decode().splitlines()[:count] if count else []
            entries = ((*json.loads(line), number)[:4] for number, line in enumerate(lines, 1))  # older ones have none
            taken = [(Arrival(*file), number) for *file, number in entries if isinstance(file[0], str)]
            belongs = max((number for _, number in taken), default=0) >= count
        except (OSError, ValueError, TypeError, IndexError, RecursionError):
            belongs = False
        if not belongs:
            raise UsageError(f"{path} does not belong to the learner beside it: delete both, or choose another folder")
        return {each.name: (each, number) for each, number in taken if number <= count}

    def learn(self) -> Iterator[int]:
        """Learn what has arrived, a batch at a time; gives after each batch how many images are left."""
        found, closed = arrivals(self.folder)
        for label, reason in closed.items():
            if label not in self._closed:
                self.message(one_line(f"{label} is left out as long as it cannot be read: {reason}"))
        self._closed = closed
        self._forget(found)
        self._hold_out(found)
        new = [each for each in found if self._is_new(each)]
        for start in range(0, len(new), self.learner.batch):
            read = [(each, self._read(each)) for each in new[start : start + self.learner.batch]]
            given = [(each, pixels) for each, pixels in read if pixels is not None]
            if given:
                self.learner.partial_fit(torch.cat([pixels for _, pixels in given]), [each.label for each, _ in given])
            self._taken |= {each.name: (each, self._given + number) for number, (each, _) in enumerate(given, 1)}
            self._given += len(given)
            yield max(0, len(new) - start - self.learner.batch)

    def _forget(self, found: list[Arrival]) -> None:
        """Forget files that were removed, but the last one learned: its number shows that the journal is complete."""
        self._unreadable = {each: self._unreadable[each] for each in found if each in self._unreadable}
        missing = defaultdict(set)
        for name in self._taken.keys() - {each.name for each in found}:
            if self._taken[name][1] < self._given:
                missing[name.partition("/")[0]].add(name)
        for label, names in missing.items():
            with suppress(OSError, ValueError):  # its folder has gone too, and may come back as it was
                for name in names - {f"{label}/{file}" for file in os.listdir(self.folder / label)}:
                    del self._taken[name]

    def _is_new(self, each: Arrival) -> bool:
        taken, _ = self._taken.get(each.name, (None, 0))
        return taken != each and not self._is_held_out(each) and not self._is_given_up(each)

    def _is_held_out(self, each: Arrival) -> bool:
        """Decided by its name, so that it never changes; a file that was learned once is not tested on."""
        return each.lot < self.held_out and each.name not in self._taken

    def _is_given_up(self, each: Arrival) -> bool:
        return self._unreadable.get(each, 0) >= self.tries

    def _hold_out(self, found: list[Arrival]) -> None:
        """Test on the held-out images that are there: when there are too many, on those with the lowest lots."""
        held_out = [each for each in found if self._is_held_out(each) and not self._is_given_up(each)]
        chosen = sorted(held_out, key=lambda each: each.lot)[:MOST_HELD_OUT]
        read = {each: self._exam[each] if each in self._exam else self._read(each) for each in chosen}
        self._exam = {each: pixels for each, pixels in read.items() if pixels is not None}

    def _read(self, each: Arrival) -> Tensor | None:
        """The image, or None for a file that is broken, or not complete yet."""
        try:
            picture = open_picture(self.folder / each.name)
        except Exception as error:  # there is no end to what Pillow raises for broken files
            self._unreadable[each] = self._unreadable.get(each, 0) + 1
            if self._unreadable[each] == self.tries:
                self.message(one_line(f"{self.folder / each.name} is left out, it cannot be read: {why_not(error)}"))
            return None
        return to_pixels([picture], channels=self.learner.channels, size=self.learner.image_size)

    @property
    def path(self) -> Path:
        """The learner's file."""
        return self.state / LEARNER

    def _mark(self) -> tuple[int, int]:
        """The number of images given, and when the learner's file was written, 0 without one."""
        try:
            return self._given, self.path.stat().st_mtime_ns
        except OSError:
            return self._given, 0

    @property
    def unsaved(self) -> bool:
        """Whether there is more to save than the file holds, or another or none is there; not after a failed step."""
        return self._mark() != self._saved and self._given == self.learner.n_seen_

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

    def summary(self) -> dict[str, Any]:
        """Images, classes and accuracy so far, in plain values."""
        accuracy, held_out = self.accuracy()
        asked = self.learner.prequential and hasattr(self.learner, "prequential_")
        shares = {"prequential": self.learner.prequential_, "blind": self.learner.blind_} if asked else {}
        return {
            "images": self.learner.n_seen_,
            "waiting": self.learner.n_seen_ % self.learner.batch,
            "classes": self.classes,
            "held_out": held_out,
            "accuracy": accuracy,
            **{name: 100 * share for name, share in shares.items()},
            "learner": str(self.path),
        }

    def save(self) -> None:
        """Journal first: the learner's file then says how much of it counts."""
        taken = sorted(self._taken.values(), key=lambda each: each[1])
        lines = "".join(json.dumps([*each, number]) + "\n" for each, number in taken)
        check_writable(self.state)
        fileformat.write(self.state / JOURNAL, lines.encode())
        self.learner.save(self.path)
        self._saved = self._mark()
