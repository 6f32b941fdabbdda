"""Arrays in a numpy file, `.npz`, as a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from cler.config.registry import DATASETS
from cler.data.images import Advance, ImageData, Status
from cler.data.own_arrays import first_channels, from_arrays
from cler.data.reading import Reading, usual_tasks, usual_view
from cler.errors import UsageError
from cler.files import as_path, opened, reading

NAMES = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("images", "labels"),
    ("x", "y"),
)
"""Names that the arrays may have: images and labels to train on and, if there are any, to test on."""
CLASSES = "classes"
"""The name of an array with the names of the classes, which may be there."""


@dataclass(frozen=True)
class Npz:
    """Arrays of images and labels in a file, as `np.savez` writes it."""

    where: str
    reading: Reading = Reading()
    description: ClassVar[str] = "arrays in a numpy file: x_train, y_train, x_test, y_test"
    takes: ClassVar[tuple[str, ...]] = ("size", "fit", "test_share")

    @property
    def name(self) -> str:
        """What users type."""
        return f"npz:{self.where}"

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What runs on it take where nothing else is said; nothing where it cannot be read."""
        path = as_path(self.where)
        try:
            return _defaults(path, os.stat(path).st_mtime_ns)
        except (UsageError, OSError):
            return {}

    def read_as(self, reading: Reading) -> Self:
        """The same dataset, read in another way."""
        return replace(self, reading=reading)

    def load(self, folder: Path, progress: Advance | None = None) -> ImageData:
        """Read the arrays; nothing is unpickled."""
        images, labels, *test, classes = _arrays(as_path(self.where))
        how = self.reading
        return from_arrays(
            images,
            labels,
            *test,
            name=self.name,
            classes=classes,
            size=how.size,
            fit=how.fit,
            test_share=how.test_share,
        )

    def check(self, folder: Path) -> Status:
        """Read the arrays."""
        path = as_path(self.where)
        try:
            data = self.load(folder)
        except UsageError as error:
            return Status("damaged" if path.exists() else "missing", str(error), path)
        told = f"{len(data.train_labels)} training and {len(data.test_labels)} test images in {data.n_classes} classes"
        return Status("present", f"{told}, fingerprint {data.fingerprint()}", path)

    def get(self, folder: Path, progress: Advance | None = None) -> Status:
        """Check it: there is nothing to fetch."""
        return self.check(folder)


DATASETS.register_family("npz:PATH", Npz, likely=lambda name: name.endswith(".npz"))


def _arrays(path: Path) -> tuple[Any, ...]:
    """Images and labels to train on, those to test on or None, and the names of the classes or None."""
    with _opened(path) as (held, names):
        images, labels, test_images, test_labels = (
            *(held[name] if name in held.files else None for name in names),
            None,
            None,
        )[:4]
        classes = _names(held[CLASSES]) if CLASSES in held.files else None
        return images, _plain(labels), test_images, _plain(test_labels), classes


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """The arrays in a file, read when they are asked for, and the names of those that make a dataset."""
    try:
        with reading(path), opened(path) as file:
            held = np.load(file, allow_pickle=False)
            if not hasattr(held, "files"):
                raise UsageError(f"{path} holds one array: save images and labels together, by np.savez")
            names = next((each for each in NAMES if {*each[:2]} <= {*held.files}), None)
            if names is None:
                wanted = " or ".join(", ".join(each) for each in NAMES)
                raise UsageError(f"{path} has the arrays {', '.join(held.files) or 'none'}, not {wanted}")
            yield held, names
    except UsageError:
        raise
    except Exception as error:  # there is no end to what numpy raises for broken files
        why = str(error).partition(":")[0].partition(".")[0]
        raise UsageError(f"{path} cannot be read as a file of np.savez ({why})") from error


def _plain(labels: Any) -> Any:
    """Labels as a list of Python's own values, also of an array with a column of them."""
    if labels is None:
        return None
    listed = (labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels).tolist()
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, str):
            each.encode()  # half a surrogate pair is no sign
    return listed


def _names(classes: Any) -> list[str]:
    """The names of the classes: strings, or whole numbers as such."""
    listed = _plain(classes)
    if not isinstance(listed, list) or not all(isinstance(each, str | int) for each in listed):
        raise ValueError(f"{CLASSES} must be a list of strings")
    return [str(each) for each in listed]


@lru_cache(maxsize=8)
def _defaults(path: Path, changed: int) -> dict[str, Any]:
    """What is usual for the arrays in a file as it was when it changed last, by the labels and the shape of images."""
    with _opened(path) as (held, (images, labels, *_)):
        n_classes = len(np.unique(held[labels]))
        with held.zip.open(f"{images}.npy") as member:
            version = np.lib.format.read_magic(member)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, _ = read(member)
        return usual_tasks(n_classes) | usual_view(*first_channels(torch.empty(shape, device="meta")).shape[1:])
