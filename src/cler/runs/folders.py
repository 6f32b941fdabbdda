"""Folders of runs and learners: whether they can be written to, and by one process at a time."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import BaseFileLock, FileLock, Timeout

from cler.errors import UsageError
from cler.files import HOST, is_alive, opened, read_json, sweep, write_json, writing

RESULT, SETTINGS = "result.json", "settings.json"
"""Files of a run: its result, and the settings that it was started with."""
LOCK = ".lock"
"""Locked by the process that works in a folder."""
OWNER = ".owner"
"""Says which process that is; it touches the file as long as it lives."""
BEAT = 20.0
"""Seconds between two signs of life."""
EXPIRY = 300.0
"""Seconds without a sign of life after which the lock of another host has expired."""
ATTEMPT = "attempt.json"
"""What another machine is to do, in the folder of its attempt; an attempt without this file is given up."""


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
    sweep(folder)


@contextmanager
def locked(folder: Path, attempt: Path | None = None) -> Iterator[bool]:
    """Lock a folder against other processes; yields whether that worked, False if another process has it.

    A process loses its locks when it ends, however it ends. The lock of another host expires when that host has given
    no sign of life for a while; if it comes back, `still_ours` tells it that it has lost the folder.

    `attempt` is the folder of the attempt that the process works for. Its locks are void once the attempt is given up,
    or another process makes the same attempt again.
    """
    lock = FileLock(folder / LOCK)
    with writing(folder):
        ours = _take(folder, lock, attempt)
    if not ours:
        yield False
        return
    with ExitStack() as held:
        held.callback(lock.release)
        held.callback(_give_back, folder)
        _check_plain(folder / LOCK)  # it may have been replaced since
        held.enter_context(_alive(folder))
        yield True


def still_ours(folder: Path) -> bool:
    """Whether this process may still write to a folder that it has locked.

    It may not if another process has taken the folder over since, or if the attempt that it works for was given up. An
    `OSError` says why that cannot be told, such as that the folder is gone.
    """
    token = _TOKENS.get(folder)
    folder.stat()
    if token is None:
        return True
    owner = _owner(folder)
    return owner.get("token") == token and not given_up(owner.get("attempt"))


def given_up(attempt: Any) -> bool:
    """Whether an attempt is no longer wanted; opens its file, because a network file system may cache what it lists."""
    if not isinstance(attempt, str):
        return False
    try:
        with opened(Path(attempt, ATTEMPT)):
            return False
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # which is no answer
        return False


def in_use(folder: Path) -> bool:
    """Whether a process seems to be at work in a folder, for people to know; nothing is written there."""
    try:
        owner, beat = _owner(folder), (folder / OWNER).stat().st_mtime
    except (OSError, UsageError):
        return False
    if owner.get("host") == HOST:
        return is_alive(owner.get("process"))
    return bool(owner) and time.time() - beat < EXPIRY


_TOKENS: dict[Path, str] = {}
"""What this process has written into the folders that it holds, different each time."""


def _take(folder: Path, lock: BaseFileLock, attempt: Path | None) -> bool:
    """Take the lock, also from a process that has gone, and write down whose the folder is."""
    working_for = str(attempt) if attempt else None
    if given_up(working_for):
        return False
    for _ in range(2):
        for name in (LOCK, OWNER):
            _check_plain(folder / name)
        acquired, owner = _acquired(lock), _owner(folder)
        before = attempt is not None and owner.get("attempt") == working_for
        if acquired and (not owner or owner.get("host") == HOST or before or _gone(folder, owner)):
            token = uuid4().hex
            us = {"host": HOST, "process": os.getpid(), "token": token, "attempt": working_for}
            write_json(folder / OWNER, us)
            _TOKENS[folder] = token
            return True
        if acquired:  # here; but the locks of this file system do not reach to the host that has it
            lock.release()
            return False
        if not owner or not (before or _gone(folder, owner)):
            return False
        _delete(folder / LOCK)
    return False


def _acquired(lock: BaseFileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _owner(folder: Path) -> dict[str, Any]:
    """What the process that holds a folder wrote there about itself; empty if none does."""
    try:
        return read_json(folder / OWNER)
    except UsageError as error:
        if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        return {}


def _gone(folder: Path, owner: dict[str, Any]) -> bool:
    """Whether a folder's owner is gone: its attempt was given up, its process ended, or its host has been silent."""
    if given_up(owner.get("attempt")):
        return True
    if owner.get("host") == HOST:
        return not is_alive(owner.get("process"))
    with tempfile.TemporaryFile(dir=folder) as now:  # by the clock of the file system
        return os.fstat(now.fileno()).st_mtime - (folder / OWNER).stat().st_mtime > EXPIRY


@contextmanager
def _alive(folder: Path) -> Iterator[None]:
    """Inside, give signs of life."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT):
            with suppress(OSError):
                os.utime(folder / OWNER)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _give_back(folder: Path) -> None:
    """Delete both files while the lock is held, unless they are another's by now.

    A process that had opened the lock by then finds that it has gone, and does not count it as held.
    """
    with suppress(OSError, UsageError):
        if still_ours(folder):
            _delete(folder / OWNER)
            _delete(folder / LOCK)
    del _TOKENS[folder]


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _check_plain(path: Path) -> None:
    """Refuse a lock that is a link, a pipe or a folder, through which something else would be written to."""
    with writing(path), suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise UsageError(f"{path} is not a plain file, as the lock of a folder must be: delete it")
