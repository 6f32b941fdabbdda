"""Files: written whole or not at all, read only if they are plain files, and errors in one line."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from cler.errors import UsageError

DEEPEST = 20
"""Levels of nesting that are read in a JSON file, four times what ours have."""
LARGEST = 50_000_000
"""Bytes that are read of a file of text; ours have a few thousand."""
HOST = re.sub(r"[^\w-]", "-", platform.node())[:60]
"""This machine, in names of files and in locks."""
FOLDER = "folder"
DAY = 24 * 3600.0
_TEMPORARY = re.compile(r"\..*\.(?P<host>[\w-]*)\.(?P<process>\d{1,9})\.\d+\.tmp")
_NUMBERS = itertools.count()
"""Of temporary files: a signal handler may write a file while the thread that it interrupts is writing the same one."""
LINE = 120
"""Longest line of JSON that is written, and longest path that is told in full, in characters."""


def as_path(given: str | os.PathLike[str]) -> Path:
    """The path that a user gave, `~` standing for a home folder; refuses what cannot be one, or cannot be looked at."""
    shown = os.fspath(given) if len(os.fspath(given)) <= LINE else f"{os.fspath(given)[:LINE]}…"
    try:
        path = Path(given).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(path)
    except RuntimeError:
        raise UsageError(f"{shown} is no path: there is no such user, or it has no home folder") from None
    except ValueError:
        raise UsageError(f"{shown} is no path: it has a null character") from None
    except OSError as error:
        raise UsageError(f"cannot read {shown}: {error.strerror}") from None
    return path


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of reading inside the block into one-line errors."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of writing inside the block into one-line errors."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror or error}") from None


@contextmanager
def replacing(
    path: Path, *, previous: Path | None = None, check: Callable[[], None] = lambda: None
) -> Iterator[BinaryIO]:
    """A file to write into; a reader, or a crash, meets the old one or, after the block, the whole new one.

    With `previous` the old one is kept under that name. `check` is called when all is written, which may have taken
    long; if it raises, the old one stays.
    """
    with suppress(FileNotFoundError):
        about = path.lstat()
        if not stat.S_ISLNK(about.st_mode):  # a link is replaced itself, and nothing behind it
            _check_plain(path, about)
    sweep(path.parent)
    temporary = _temporary(path)
    with suppress(FileNotFoundError):
        temporary.unlink()  # of a process that was killed and had the same number
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check()
        if previous and path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder in another one, which is deleted afterwards."""
    sweep(parent)
    folder = _temporary(parent / FOLDER)
    _delete(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        _delete(folder)


def sweep(folder: Path) -> None:
    """Delete what processes have left in a folder that were killed while they wrote there.

    Of other hosts' processes nobody knows whether they live: theirs is deleted after a day.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for each in entries:
            made = _TEMPORARY.fullmatch(each.name)
            if made and _is_litter(Path(each.path), made["host"], int(made["process"])):
                _delete(Path(each.path))


def _temporary(path: Path) -> Path:
    """A name for what is going to be `path`, or is in use in its place, which tells whose it is."""
    return path.with_name(f".{path.name[:30]}.{HOST}.{os.getpid()}.{next(_NUMBERS)}.tmp")


def _is_litter(path: Path, host: str, process: int) -> bool:
    return not is_alive(process) if host == HOST else time.time() - path.lstat().st_mtime > DAY


def _delete(path: Path) -> None:
    with suppress(OSError):
        if path.name.startswith(f".{FOLDER}.") and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def is_alive(process: Any) -> bool:
    """Whether there is a process of this number on this machine; where that cannot be asked, there may be."""
    if os.name != "posix" or type(process) is not int or process < 1:
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def append(path: Path, text: str) -> None:
    """Add a string to a plain file, which is made if it is missing; a link is not followed."""
    with suppress(FileNotFoundError):
        _check_plain(path, path.lstat())
    descriptor = os.open(path, _APPENDING, 0o666)
    with open(descriptor, "ab") as file:
        _check_plain(path, os.fstat(descriptor))
        file.write(text.encode("utf-8", "replace"))


def write_text(path: Path, text: str, check: Callable[[], None] = lambda: None) -> None:
    """Write a string to a file, whole or not at all; the latter if `check` raises when all is written."""
    with replacing(path, check=check) as file:
        file.write(text.encode())


def write_json(path: str | Path, value: object, check: Callable[[], None] = lambda: None) -> None:
    """Write plain values as JSON, whole or not at all, as by `write_text`; makes the folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _layout(value) + "\n", check)


@contextmanager
def opened(path: Path, *, follow: bool = True) -> Iterator[BinaryIO]:
    """A plain file to read; an `OSError` says why it cannot be read.

    A pipe or a device is refused by a `UsageError` and not waited for; without `follow` so is a link.
    """
    _check_plain(path, os.stat(path, follow_symlinks=follow))
    descriptor = os.open(path, _READING | (0 if follow else _NOT_FOLLOWING))
    with open(descriptor, "rb") as file:
        _check_plain(path, os.fstat(descriptor))  # it may have been replaced since
        yield file


def read_bytes(path: Path, limit: int = LARGEST, *, follow: bool = True) -> bytes:
    """The content of a plain file, as `opened` opens it, of at most `limit` bytes."""
    with opened(path, follow=follow) as file:
        have, parts = os.fstat(file.fileno()).st_size, []
        block = max(have, 1 << 16) + 1  # some files do not know their size
        while have <= limit and (part := file.read(block)):
            parts.append(part)
            have = max(have, sum(map(len, parts)))
    if have > limit:
        raise UsageError(f"{path} has {have} bytes, more than the {limit} that cler reads")
    return b"".join(parts)


def read_text(path: Path, limit: int = LARGEST) -> str:
    """The content of a plain file of UTF-8; a `UsageError` says in one line what is wrong with it."""
    with reading(path):
        content = read_bytes(path, limit)
    try:
        return content.decode("utf-8-sig")  # some editors, of Windows above all, begin a file by a mark
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a UTF-8 text file") from error


_READING = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_NOT_FOLLOWING = getattr(os, "O_NOFOLLOW", 0)
_APPENDING = _READING | _NOT_FOLLOWING | os.O_WRONLY | os.O_APPEND | os.O_CREAT


def _check_plain(path: Path, about: os.stat_result) -> None:
    if stat.S_ISLNK(about.st_mode):
        raise UsageError(f"{path} is a link, which is not followed here: put the file itself there, or delete it")
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(about.st_mode):
        raise UsageError(f"{path} is not a plain file")


def frozen(value: Any) -> Hashable:
    """A hashable stand-in, equal when the JSON values are equal."""
    if isinstance(value, dict):
        return tuple((key, frozen(value[key])) for key in sorted(value))
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of finite numbers; `UsageError` says in one line what is wrong with the file."""
    text = read_text(path)
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
        _check_depth(value, DEEPEST)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair cannot be printed
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} is not a JSON object")
    return value


def without_non_finite(value: Any) -> Any:
    """The same value with NaN and infinities, which JSON does not have, replaced by None."""
    if isinstance(value, dict):
        return {key: without_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"has a number that is not finite ({text})")
    return number


def _whole(text: str) -> int:
    if len(text) > 18:
        raise ValueError(f"has a number that is too large ({text[:18]}…)")
    return int(text)


def _check_depth(value: Any, levels: int) -> None:
    if not levels:
        raise ValueError(f"has more than {DEEPEST} levels")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(item, levels - 1)


def _layout(value: Any, indent: str = "") -> str:
    """JSON where what fits on a line, or is a list of plain values, takes one: a matrix has a line per row."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    deeper = indent + "  "
    if len(indent) + len(line) > LINE and isinstance(value, dict):
        items = [f"{json.dumps(str(key), ensure_ascii=False)}: {_layout(item, deeper)}" for key, item in value.items()]
        return f"{{\n{deeper}" + f",\n{deeper}".join(items) + f"\n{indent}}}"
    if len(indent) + len(line) > LINE and isinstance(value, list | tuple) and isinstance(value[0], dict | list | tuple):
        items = [_layout(item, deeper) for item in value]
        return f"[\n{deeper}" + f",\n{deeper}".join(items) + f"\n{indent}]"
    return line
