"""Datasets of Hugging Face's package `datasets`: from its cache, or a copy of one in a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from cler.config.registry import DATASETS
from cler.data.decoding import Encoded
from cler.data.images import Advance, Status
from cler.data.inputs import in_order, to_labels
from cler.data.source import Listing, Pictures
from cler.errors import UsageError, one_line
from cler.files import as_path

TRAIN = "train"
TEST = ("test", "validation", "valid", "val")
"""Names of the split to test on, the first that is there and has labels."""
UNLABELED = (-1, None)
"""What stands for labels that are kept secret, as in the test splits of contests."""
LABELS = ("label", "labels", "fine_label", "class")
"""Names of the column of labels, where there may be several; the first that is there."""


@dataclass(frozen=True)
class HuggingFace(Pictures):
    """A dataset with a column of images and one of labels: `hf:NAME`, `hf:NAME:CONFIGURATION` or `hf:FOLDER`."""

    prefix: ClassVar[str] = "hf"
    description: ClassVar[str] = "a Hugging Face dataset, from its cache or a folder"

    def listing(self, folder: Path) -> Listing:
        """The rows of the training split, then those of the test split if there is one."""
        splits = self._splits()
        first = splits[0][1]
        image, label = _column_of_images(self.name, first), _column_of_labels(self.name, first)
        given: list[Any] = []
        pictures: list[Encoded] = []
        for name, split in splits:
            given += to_labels(list(split[label]))
            stamp, size = _stamp(split), split.data.nbytes // max(len(split), 1)
            pictures += [Encoded(f"{name}/{row}", stamp, size) for row in range(len(split))]
        names = getattr(first.features[label], "names", None)
        known = in_order(dict.fromkeys(given[: len(first)]))
        numbers = {value: number for number, value in enumerate(known)}
        if strange := [value for value in given if value not in numbers]:
            raise UsageError(f"{self.name}: the label {strange[0]!r} is of a class without images to train on")
        tested = None if len(splits) == 1 else [False] * len(first) + [True] * (len(given) - len(first))
        content = _Rows([_undecoded(split, image) for _, split in splits], image)
        classes = [names[each] if names else str(each) for each in known]
        return Listing(pictures, [numbers[each] for each in given], classes, content, tested)

    def count(self) -> tuple[int, int]:
        """As many classes as its column of labels has."""
        _, train = self._splits()[0]
        return len(set(to_labels(list(train[_column_of_labels(self.name, train)])))), 0

    def _splits(self) -> list[tuple[str, Any]]:
        """The split to train on and, where there is one, that to test on, by name."""
        found = _loaded(self.where, _changed(self.where))
        if not hasattr(found, "keys"):
            return [(TRAIN, found)]
        train = TRAIN if TRAIN in found else next(iter(found), None)
        if train is None or (len(found) > 1 and train != TRAIN):
            raise UsageError(f"{self.name} has no split called {TRAIN}, but {', '.join(found) or 'none at all'}")
        label = _column_of_labels(self.name, found[train])
        test = next((name for name in TEST if name in found and _is_labeled(found[name], label)), None)
        return [(name, found[name]) for name in (train, test) if name is not None]

    def get(self, folder: Path, progress: Advance | None = None) -> Status:
        """Have the package `datasets` fetch it into its own cache, unless it is there."""
        status = self.check(folder)
        if status.state == "missing" and not os.path.isdir(self.where):
            name, _, configuration = self.where.partition(":")
            with _telling(self.name):
                _package().load_dataset(name, configuration or None)
            _loaded.cache_clear()
            status = self.check(folder)
        return status


DATASETS.register_family("hf:NAME", HuggingFace)


def _package() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UsageError(f"hf:NAME needs the package datasets ({error}): pip install datasets", "dataset") from None
    return datasets


def _changed(where: str) -> int:
    """When a file in a folder was written last; 0 for what is no folder."""
    return max((each.stat().st_mtime_ns for each in as_path(where).rglob("*") if each.is_file()), default=0)


@lru_cache(maxsize=4)
def _loaded(where: str, changed: int) -> Any:
    """A dataset, or several by the names of their splits; never downloads."""
    datasets, path = _package(), as_path(where)
    with _telling(f"hf:{where}"), _offline(datasets):
        if os.path.isdir(path):
            saved = any(os.path.isfile(path / name) for name in ("dataset_dict.json", "state.json"))
            return datasets.load_from_disk(os.fspath(path)) if saved else datasets.load_dataset(os.fspath(path))
        name, _, configuration = where.partition(":")
        return datasets.load_dataset(name, configuration or None)


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """Turn what goes wrong inside into one line."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # the package raises errors of many kinds
        why = one_line(str(error)).strip()[:200] or type(error).__name__
        raise UsageError(
            f"{name} cannot be loaded ({why}): run `cler data get {name}` with a connection, or give the folder of a "
            "copy as hf:FOLDER"
        ) from error


@contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Inside, the package asks no server, and says nothing."""
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE, datasets.logging.get_verbosity()
    has_bars = not datasets.are_progress_bars_disabled()
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE, verbosity = before
        datasets.logging.set_verbosity(verbosity)
        if has_bars:
            datasets.enable_progress_bars()


def _column_of_images(name: str, split: Any) -> str:
    kind = _package().Image
    found = [column for column, feature in split.features.items() if isinstance(feature, kind)]
    if len(found) != 1:
        raise UsageError(f"{name} needs one column of images, and has {', '.join(found) or 'none'}")
    return found[0]


def _column_of_labels(name: str, split: Any) -> str:
    kind = _package().ClassLabel
    found = [column for column, feature in split.features.items() if isinstance(feature, kind)]
    if len(found) == 1:
        return found[0]
    for column in LABELS:
        if column in (found or split.features):
            return column
    raise UsageError(
        f"{name} needs a column of labels, called {' or '.join(LABELS)}, and has {', '.join(split.features)}"
    )


def _is_labeled(split: Any, label: str) -> bool:
    return label in split.features and any(each not in UNLABELED for each in split[label])


def _undecoded(split: Any, image: str) -> Any:
    return split.cast_column(image, _package().Image(decode=False))


def _stamp(split: Any) -> str:
    """Differs when the files of a split, or what was done to them, may have."""
    files = [os.stat(each["filename"]) for each in split.cache_files]
    told = repr((split._fingerprint, len(split), [(each.st_size, each.st_mtime_ns) for each in files]))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


class _Rows:
    """The picture of a row, counted through all splits, as its file holds it."""

    def __init__(self, splits: Sequence[Any], image: str) -> None:
        self.splits, self.image = splits, image

    def __call__(self, number: int) -> Path | bytes:
        """Its bytes, none of them where a row has no picture, or the path of its file."""
        for split in self.splits:
            if number < len(split):
                found = split[number][self.image] or {"bytes": b""}
                return found["bytes"] if found["bytes"] is not None else Path(found["path"])
            number -= len(split)
        raise IndexError(number)
