"""Folders of runs: whether they can be written to, and by one process at a time."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cler.errors import UsageError
from cler.files import writing


def check_writable(folder: Path) -> None:
    """Make the folder, or say why it cannot be written to."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def locked(folder: Path, *, doing: str = "working", option: str = "--out") -> Iterator[None]:
    """Keep other processes out of a run's folder; a process that ends, however it ends, gives its locks back."""
    with writing(folder):
        file = (folder / ".lock").open("w")
    with file:
        with writing(folder):
            held = _hold(file, folder / ".lock")
        if not held:
            raise UsageError(f"another cler is {doing} in {folder}: wait for it, or choose another {option}")
        try:
            yield
        finally:
            (folder / ".lock").unlink(missing_ok=True)


def _hold(file: IO[str], path: Path) -> bool:
    """Lock the file unless somebody else has, or has just given it back and deleted it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
