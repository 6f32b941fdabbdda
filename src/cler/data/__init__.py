"""Datasets, built-in and your own: load, check and download them. A new one is a new file here, named in `_FILES`."""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from cler.config.settings import Settings, check_reading
from cler.data.download import data_folder
from cler.data.image_folder import ImageFolder
from cler.data.images import DATASETS, Advance, ImageData, Status, find
from cler.data.own_arrays import from_arrays as arrays
from cler.data.own_arrays import from_torch as torch
from cler.data.reading import Reading

_FILES = ("cifar", "digits", "mini_imagenet", "sample", "tiny_imagenet", "image_folder", "npz", "huggingface")
for _file in _FILES:
    import_module(f"cler.data.{_file}")

__all__ = [
    "ImageData",
    "Status",
    "arrays",
    "check",
    "data_folder",
    "describe",
    "folder",
    "get",
    "load",
    "names",
    "torch",
]


def names() -> tuple[str, ...]:
    """The names of all datasets."""
    return tuple(DATASETS)


def forms() -> dict[str, str]:
    """The forms of names for your own datasets, such as 'folder:PATH', with one line about each."""
    return {form: find(form).description for form in DATASETS.offered if form not in names()}


def describe(name: str) -> str:
    """One line about a dataset."""
    return find(name).description


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    size: int | None = None,
    fit: str | None = None,
    test_share: float | None = None,
    skip_broken: bool = False,
    progress: Advance | None = None,
) -> ImageData:
    """Load a dataset and verify it; never downloads.

    `size`, `fit`, `test_share` and `skip_broken` say how to read your own dataset, as the options of `cler run` do;
    `progress` is called while it is decoded.
    """
    how = {"size": size, "fit": fit, "test_share": test_share, "skip_broken": skip_broken}
    check_reading(name, how)
    return _read(name, Reading.checked(**how), data_dir, progress)


def load_for(settings: Settings, data_dir: Path | None, progress: Advance) -> ImageData:
    """The images that runs with these settings are trained on; never downloads."""
    return _read(settings.dataset, Reading.checked(**settings.reading), data_dir, progress)


def key(settings: Settings) -> Hashable:
    """Equal for settings of runs that are trained on the same dataset, read in the same way."""
    return settings.dataset, *settings.reading.values()


def has_path(name: str) -> bool:
    """Whether a dataset is named by its location, which says nothing about its content."""
    return name not in names()


def _read(name: str, how: Reading, data_dir: str | Path | None, progress: Advance | None) -> ImageData:
    source: Any = find(name)
    if hasattr(source, "read_as"):  # your own, which may take time to decode
        return source.read_as(how).load(data_folder(data_dir), progress)
    return source.load(data_folder(data_dir))


def folder(
    path: str | Path,
    *,
    name: str | None = None,
    size: int | None = None,
    fit: str | None = None,
    test_share: float | None = None,
    skip_broken: bool = False,
    data_dir: str | Path | None = None,
) -> ImageData:
    """Load the images in a folder that has a folder for each class, as `dataset="folder:PATH"` does.

    Args:
        path: the folder; classes are in it, or in its folders `train` and `test` (or `val`).
        name: the dataset's name in results (default: the folder's name).
        size: side, in pixels, to resize images to; needed if they differ in size.
        fit: how to resize: 'crop' (default), 'pad' or 'stretch'.
        test_share: share of each class to test on, if there is no folder of test images (default: 0.2).
        skip_broken: leave out images that cannot be read.
        data_dir: folder with the datasets, where the decoded images are kept.
    """
    how = Reading.checked(size=size, fit=fit, test_share=test_share, skip_broken=skip_broken)
    source = ImageFolder(os.fspath(path), how)
    return replace(source.load(data_folder(data_dir)), name=name or os.path.basename(os.path.abspath(source.root)))


def check(name: str, data_dir: str | Path | None = None) -> Status:
    """Whether a dataset is present and intact; reads all of it."""
    return find(name).check(data_folder(data_dir))


def get(name: str, data_dir: str | Path | None = None, progress: Advance | None = None) -> Status:
    """Download a dataset unless it is present and intact."""
    return find(name).get(data_folder(data_dir), progress)
