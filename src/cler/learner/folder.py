"""A learner that watches a folder: every image that arrives there is learned once, but for a held-out share."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cler.data.inputs import Label
from cler.errors import UsageError, one_line
from cler.files import read_bytes, write_json, writing
from cler.learner import fileformat
from cler.learner.inputs import PICTURE_MODES, to_pixels
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
    def file(self) -> str:
        """Its name in that folder."""
        return self.name.partition("/")[2]

    @property
    def stamp(self) -> tuple[int, int]:
        """What stays the same when it is renamed."""
        return self.size, self.modified

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


def counted(images: int, kind: str = "") -> str:
    """A number of images, of some kind, in words."""
    return f"{images} {kind}image{'' if images == 1 else 's'}"


class NotSavedError(UsageError):
    """A learner could not be written to its folder; what it has learned is still in memory."""


class FolderLearner:
    """A learner and what it has taken from a folder, both kept in another folder.

    The journal there has a line for each file that the learner was given and that was not taken away since, with the
    number of the image among all that it was given. The learner's file knows how many these are, so lines with higher
    numbers, written just before it was to be saved, do not count, and what they tell of is learned again.

    A file that was renamed within its label is still the same file. Files that were moved to another label are left
    out with a line, as is a label that consists of them, for a learner cannot unlearn what it has seen them as. If most
    of the files differ from the journal in time alone when it first looks, they were copied, and count as learned.
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
        if learner.channels not in PICTURE_MODES:
            raise UsageError(f"must be 1 or 3 for image files, not {learner.channels}", "channels")
        self.folder, self.state, self.learner = folder, state, learner
        self.held_out, self.tries, self.message = held_out, tries, message
        self._given = learner.n_seen_
        self._taken = self._read_journal()
        self._saved: tuple[int, int] | None = self._mark()
        self._looked = False
        self._moved: set[Arrival] = set()
        self._moved_labels: set[str] = set()
        self._told: Counter[tuple[str, str]] = Counter()
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
        self._unreadable = {each: self._unreadable[each] for each in found if each in self._unreadable}
        if not self._looked:
            self._accept_other_times(found)
        self._looked = True
        self._follow(found)
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

    def _accept_other_times(self, found: list[Arrival]) -> None:
        """Take files for known that have another time but the same size, if most of those that are there do."""
        known = [(each, *self._taken[each.name]) for each in found if each.name in self._taken]
        other = [(each, number) for each, old, number in known if each.size == old.size and each != old]
        if 2 * len(other) > len(known):
            self._taken |= {each.name: (each, number) for each, number in other}
            self._saved = None
            told = f"{counted(len(other))} of the name and size of what was learned, but of another time"
            self.message(f"{told}, as after a copy: not learned again")

    def _follow(self, found: list[Arrival]) -> None:
        """Follow files that were renamed, and forget those that were removed.

        Not forgotten are the last one learned, whose number shows that the journal is complete, files that are under
        another label now, and those whose folder has gone too: they may come back as they were.
        """
        gone, labels = self._gone(self._taken.keys() - {each.name for each in found})
        moved: dict[tuple[str, str], set[Arrival]] = defaultdict(set)
        for name, now in self._places(gone, found).items():
            old, number = self._taken[name]
            if now.label == old.label:
                self._taken[now.name] = now, number
                del self._taken[name]
                self._saved = None
            else:
                moved[old.label, now.label].add(now)
            gone.remove(name)
        for name in gone:
            if name.partition("/")[0] in labels and self._taken[name][1] < self._given:
                del self._taken[name]
        self._leave_out(moved, {name.partition("/")[0] for name in self._taken.keys() & {each.name for each in found}})

    def _gone(self, names: Iterable[str]) -> tuple[set[str], set[str]]:
        """Those of the names that no file has any longer, and the labels whose folders are there."""
        by_label: dict[str, set[str]] = defaultdict(set)
        for name in names:
            by_label[name.partition("/")[0]].add(name)
        gone: set[str] = set()
        labels: set[str] = set()
        if by_label:
            with suppress(OSError):
                labels = set(os.listdir(self.folder))
                gone = {name for label, missing in by_label.items() if label not in labels for name in missing}
        for label in by_label.keys() & labels:
            with suppress(OSError, ValueError):  # a folder that cannot be read has kept its files
                gone |= by_label[label] - {f"{label}/{file}" for file in os.listdir(self.folder / label)}
        return gone, labels

    def _places(self, gone: set[str], found: list[Arrival]) -> dict[str, Arrival]:
        """Where files are that have gone from where they were learned, by their names there.

        A file of the same size and time is the same one if it has the same name under another label, or if no other
        file has that size and time.
        """
        strangers = [each for each in found if each.name not in self._taken] if gone else []
        by_file: dict[tuple[int, int, str], list[Arrival]] = defaultdict(list)
        by_stamp: dict[tuple[int, int], list[Arrival]] = defaultdict(list)
        for each in strangers:
            by_file[*each.stamp, each.file].append(each)
            by_stamp[each.stamp].append(each)
        known = Counter(old.stamp for old, _ in self._taken.values()) if strangers else Counter()
        places = {}
        for name in sorted(gone) if strangers else ():
            old, _ = self._taken[name]
            if namesakes := by_file.get((*old.stamp, old.file)):
                places[name] = namesakes.pop(0)
            elif known[old.stamp] == len(by_stamp.get(old.stamp, ())) == 1:
                places[name] = by_stamp[old.stamp][0]
        return places

    def _leave_out(self, moved: dict[tuple[str, str], set[Arrival]], kept: set[str]) -> None:
        """Leave out what was moved to another label, and say so; `kept` are the labels that still have a learned file.

        If all that was learned of a label is now under one that has nothing else of its own, that was renamed.
        """
        self._moved = {each for files in moved.values() for each in files}
        self._moved_labels = {new for old, new in moved if old not in kept and new not in kept}
        before, self._told = self._told, Counter({labels: len(files) for labels, files in moved.items()})
        for (old, new), files in moved.items():
            if len(files) > before[old, new]:
                place = self.folder / new
                if new in self._moved_labels:
                    todo = f"and is left out, or {new} would be one more class: rename it back to {old}"
                else:
                    todo = f"left out here: move back what was moved, `touch` it to have it learned as {new} too"
                over = f"to start over, stop the command, delete {self.path} and run it again"
                self.message(one_line(f"{place} holds {counted(len(files))} learned as {old}, {todo}, or, {over}"))

    def _is_new(self, each: Arrival) -> bool:
        taken, _ = self._taken.get(each.name, (None, 0))
        aside = self._is_held_out(each) or self._is_given_up(each) or self._is_moved(each)
        return taken != each and not aside

    def _is_moved(self, each: Arrival) -> bool:
        """Whether it was learned under another label, or its whole label was."""
        return each in self._moved or each.label in self._moved_labels

    def _is_held_out(self, each: Arrival) -> bool:
        """Decided by its name, so that it never changes; a file that was learned once is not tested on."""
        return each.lot < self.held_out and each.name not in self._taken and not self._is_moved(each)

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
        try:
            check_writable(self.state)
            with writing(self.state / HELD_OUT):
                write_json(self.state / HELD_OUT, {"held_out": self.held_out})
            fileformat.write(self.state / JOURNAL, lines.encode())
            self.learner.save(self.path)
        except UsageError as error:
            if not isinstance(cause := error.__context__, OSError):  # the learner itself is at fault
                raise
            full = cause.errno in (errno.ENOSPC, errno.EDQUOT)
            todo = "make room there" if full else "see to it that it can be written"
            raise NotSavedError(f"{error}; {todo}") from None
        self._saved = self._mark()
