"""Datasets by name: load, check and fetch them."""

from __future__ import annotations

import os
from pathlib import Path

from cler.data import cifar, mini_imagenet, sample  # noqa: F401  each registers its datasets
from cler.data.images import DATASETS, ImageData, Progress, Status, find
from cler.files import as_path

__all__ = ["ImageData", "Status", "check", "data_folder", "describe", "get", "load", "names"]


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Where datasets are kept: `data_dir`, else the variable CLER_DATA, else a folder in the user's cache."""
    chosen = data_dir or os.environ.get("CLER_DATA")
    return as_path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "cler", "data"))


def names() -> tuple[str, ...]:
    """The names of all datasets."""
    return tuple(DATASETS)


def describe(name: str) -> str:
    """One line about a dataset."""
    return find(name).description


def load(name: str, data_dir: str | Path | None = None) -> ImageData:
    """The verified images of a dataset; never downloads."""
    return find(name).load(data_folder(data_dir))


def check(name: str, data_dir: str | Path | None = None) -> Status:
    """Whether a dataset is present and intact; reads all of it."""
    return find(name).check(data_folder(data_dir))


def get(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> Status:
    """Fetch a dataset unless it is present and intact."""
    return find(name).get(data_folder(data_dir), progress)
