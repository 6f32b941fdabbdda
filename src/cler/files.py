"""Files: written whole or not at all, JSON read with care, and errors in one line."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from cler.errors import UsageError

DEEPEST = 20
"""Levels of nesting that are read in a JSON file, four times what ours have."""
LARGEST = 50_000_000
"""Bytes that are read of a JSON file; ours have a few thousand."""
LINE = 120
"""Longest line of JSON that is written, in characters."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of writing inside the block into one-line errors."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}") from None


@contextmanager
def replacing(path: Path, *, previous: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write into; a reader, or a crash, meets the old one or, after the block, the whole new one.

    With `previous` the old one is kept under that name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous and path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a string to a file, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: str | Path, value: object) -> None:
    """Write plain values as JSON, whole or not at all; makes the folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _layout(value) + "\n")


def frozen(value: Any) -> Hashable:
    """A hashable stand-in, equal when the JSON values are equal."""
    if isinstance(value, dict):
        return tuple((key, frozen(value[key])) for key in sorted(value))
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of finite numbers; `UsageError` says in one line what is wrong with the file."""
    try:
        value = json.loads(_text(path), parse_constant=_finite, parse_float=_finite, parse_int=_whole)
        _check_depth(value, DEEPEST)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair cannot be printed
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} is not a JSON object")
    return value


def _text(path: Path) -> str:
    """The content of a file, if it is a plain file of reasonable size."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise UsageError(f"{path} is not a plain file")
    if about.st_size > LARGEST:
        raise UsageError(f"{path} has {about.st_size} bytes, more than the {LARGEST} that cler reads")
    return path.read_text("utf-8")


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
