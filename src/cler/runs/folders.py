"""Folders of runs and learners: whether they can be written to, and by one process at a time."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from cler.errors import UsageError
from cler.files import writing

LOCK = ".lock"


def search(folder: Path, names: Collection[str]) -> tuple[list[Path], list[str]]:
    """The files of these names below a folder, and a line for each folder there that cannot be read.

    Links are not followed to other folders. A folder that is not there has none; one that cannot be read is refused.
    """
    found, complaints, folders = [], [], [folder]
    while folders:
        looked_at = folders.pop()
        try:
            with os.scandir(looked_at) as entries:
                for each in entries:
                    if each.name in names:
                        found.append(Path(each.path))
                    elif each.is_dir(follow_symlinks=False):
                        folders.append(Path(each.path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if looked_at is folder:
                raise UsageError(f"cannot read {folder}: {error.strerror}") from None
            complaints.append(f"cannot read {looked_at}: {error.strerror}")
    return sorted(found), complaints


def check_writable(folder: Path) -> None:
    """Make the folder; a UsageError says why it cannot be written to."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Keep other processes out of a folder; tells whether that is so, or another process is in it.

    A process that ends, however it ends, gives its locks back.
    """
    path = folder / LOCK
    _check_plain(path)
    lock = FileLock(path)
    with writing(folder):
        ours = _acquired(lock)
    if not ours:
        yield False
        return
    with ExitStack() as held:
        held.callback(lock.release)
        _check_plain(path)  # it may have been replaced since
        held.callback(_delete, path)
        yield True


def _acquired(lock: BaseFileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _delete(path: Path) -> None:
    """While it is held; a process that had opened it by then finds that it has gone, and does not count it as held."""
    with suppress(OSError):
        path.unlink()


def _check_plain(path: Path) -> None:
    """Refuse a lock that is a link, a pipe or a folder, through which something else would be written to."""
    with writing(path), suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise UsageError(f"{path} is not a plain file, as the lock of a folder must be: delete it")
