"""Fetch a file so that a broken connection costs nothing."""

from __future__ import annotations

import gzip
import hashlib
import os
import queue
import stat
import threading
import time
import urllib.request as web
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from ssl import SSLError
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError

from cler.data.images import Advance
from cler.data.unpack import LARGEST_ARCHIVE
from cler.errors import UsageError
from cler.files import as_path

BLOCK = 1 << 18
TIMEOUT = 30.0
"""Seconds that a server may say nothing."""
PATIENCE = 4 * 3600.0
"""Seconds that a download may take in all."""
LOOK = 0.5
"""Seconds between two looks at what another process fetches."""
NETWORK_ERRORS = (URLError, ConnectionError, TimeoutError, SSLError, HTTPException, ValueError)
"""Worth another attempt, unlike a full disk; a ValueError is about a length or an address that is none."""

Value = TypeVar("Value")


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Where datasets are kept: `data_dir`, else the variable CLER_DATA, else a folder in the user's cache."""
    chosen = data_dir or os.environ.get("CLER_DATA")
    return as_path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "cler", "data"))


def get_command(name: str, folder: Path) -> str:
    """The command that downloads a dataset into this folder, which is named if it is not the usual one."""
    return f"`cler data get {name}`" if folder == data_folder() else f"`cler data get {name} --data-dir {folder}`"


def fetch(
    url: str,
    target: Path,
    md5: str | None,
    progress: Advance | None = None,
    *,
    most: int,
    attempts: int = 4,
    wait: float = 1.0,
    patience: float = PATIENCE,
) -> Path:
    """Download `url`, of at most `most` bytes, to `target`, resuming from what an earlier call left in `target.part`.

    The target appears only whole and with the right checksum: where none is known, with the one inside the gzip file.
    Failed attempts are repeated after `wait`, 2 `wait`, ... seconds, for `patience` seconds in all.
    """
    if target.is_file() and _is_whole(target, md5, most):
        return target
    deadline = time.monotonic() + patience
    part = _part_of(target)
    _make_folder(target.parent)
    problem = ""
    for attempt in range(attempts):
        time.sleep(wait * 2 ** (attempt - 1) if attempt else 0)
        try:
            _fetch_rest(url, part, progress, most, deadline)
            if _is_whole(part, md5, most):
                os.replace(part, target)
                return target
            # Which bytes are wrong cannot be known, so the next attempt starts over.
            part.unlink()
            problem = "what arrived has the wrong checksum"
        except UsageError as error:
            problem = str(error)
            break
        except HTTPError as error:
            problem = f"HTTP {error.code} {error.reason}"
            if error.code in (401, 403, 404, 410):
                break
        except NETWORK_ERRORS as error:
            problem = str(error) or type(error).__name__
        except OSError as error:
            problem = str(error)
            break
    raise UsageError(
        f"cannot fetch {url} ({problem[:200]}): try again, or fetch it by hand and put it in {target.parent}"
    )


@contextmanager
def alone(target: Path, progress: Advance | None = None, *, patience: float = PATIENCE) -> Iterator[None]:
    """Inside, no other process fetches or unpacks `target`; one that does is waited for, and what it has fetched shown.

    Where the file system has no locks, everybody comes in.
    """
    from filelock import FileLock, Timeout  # which importing cler does not need

    deadline, part = time.monotonic() + patience, _part_of(target)
    path = part.with_name(part.name + ".lock")
    lock = FileLock(path)
    _make_folder(target.parent)
    while not lock.is_locked:
        try:
            lock.acquire(timeout=LOOK)
        except Timeout:
            if time.monotonic() >= deadline:
                raise UsageError(f"another process is fetching {target}, and takes too long: end it") from None
            if progress:
                progress(_size(part), None)
        except OSError:
            break
    try:
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):
                path.unlink()  # while it is held: who has opened it by then finds that it has gone
            lock.release()


def _part_of(target: Path) -> Path:
    """What a file is called until all of it is there."""
    return target.with_name(target.name + ".part")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; choose another data folder") from None


def file_md5(path: Path) -> str:
    """The MD5 of a file: the checksum the official archives are published with."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _is_whole(path: Path, md5: str | None, most: int) -> bool:
    """Whether a file has this MD5 or, without one, is a gzip that ends with the checksum of what it holds."""
    if path.stat().st_size > most:
        return False
    if md5 is not None:
        return file_md5(path) == md5
    size = 0
    try:
        with gzip.open(path) as stream:
            while size <= LARGEST_ARCHIVE and (block := stream.read(BLOCK)):
                size += len(block)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return False
    return size > 0


def _fetch_rest(url: str, part: Path, progress: Advance | None, most: int, deadline: float) -> None:
    """Append to `part` what it lacks; start over if the server does not resume."""
    have = _size(part)
    if have > most:
        part.unlink()
        have = 0
    with closing(_in_time(_answer(url, have), deadline)) as answer:
        start, length = next(answer)
        if start is None:
            return
        if start not in (0, have):
            part.unlink(missing_ok=True)
            raise ConnectionError("the server continued at the wrong place")
        have, total = start, None if length is None else start + length
        with part.open("ab" if have else "wb") as stream:
            for block in answer:
                have += len(block)
                if max(have, total or 0) > most:
                    part.unlink()
                    raise UsageError(f"it is larger than the limit of {most} bytes")
                stream.write(block)
                if progress:
                    progress(have, total)
    if total is not None and have < total:
        raise ConnectionError(f"the connection broke after {have} of {total} bytes")


def _size(part: Path) -> int:
    """How much of a file has been fetched; refuses what is no plain file, through which something else is written."""
    try:
        about = part.lstat()
    except FileNotFoundError:
        return 0
    if not stat.S_ISREG(about.st_mode):
        raise UsageError(f"{part} is not a plain file: delete it")
    return about.st_size


def _answer(url: str, have: int) -> Generator[Any, None, None]:
    """Ask for all but the first `have` bytes: yields where the answer starts and its length, if known, then its blocks.

    The start is None if the server has no more bytes; the checksum then decides whether the file is complete.
    """
    try:
        response: HTTPResponse = _opener().open(
            web.Request(url, headers={"Range": f"bytes={have}-"} if have else {}), timeout=TIMEOUT
        )
    except HTTPError as error:
        error.close()
        if not have or error.code != 416:
            raise
        yield None, None
        return
    with response:
        resumed = response.status == 206 and have
        place = response.headers.get("Content-Range", "")
        start = 0 if not resumed else have if place.startswith(f"bytes {have}-") else -1
        yield start, _length(response.headers.get("Content-Length"))
        yield from iter(lambda: response.read(BLOCK), b"")


def _length(told: str | None) -> int | None:
    if told is None:
        return None
    if not (told.isascii() and told.isdecimal() and len(told) < 16):
        raise ConnectionError(f"the server says that it has '{told[:40]}' bytes")
    return int(told)


class _Redirects(web.HTTPRedirectHandler):
    """Follows to other places, but from an encrypted connection to none that is not."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """The request to send instead."""
        if req.type == "https" and not newurl.lower().startswith("https:"):
            raise URLError(f"sent on to {newurl[:100]}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        """Follow; an answer that leads nowhere is closed."""
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except BaseException:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _opener() -> web.OpenerDirector:
    """Opens addresses of the web, and no files or other things that Python's own opener is for."""
    opener = web.OpenerDirector()
    for handler in (
        *(web.ProxyHandler, web.UnknownHandler, web.HTTPHandler, web.HTTPSHandler),
        *(web.HTTPDefaultErrorHandler, web.HTTPErrorProcessor, _Redirects),
    ):
        opener.add_handler(handler())
    return opener


def _in_time(source: Generator[Value, None, None], deadline: float) -> Generator[Value, None, None]:
    """What a generator gives, up to a time; it works in a thread of its own, since nothing else ends a slow server."""
    given: queue.Queue[tuple[Value | None, BaseException | None]] = queue.Queue(8)
    given_up = threading.Event()

    def give(value: Value | None, error: BaseException | None = None) -> None:
        while not given_up.is_set():
            try:
                return given.put((value, error), timeout=0.5)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for value in source:
                give(value)
                if given_up.is_set():
                    return source.close()
            give(None, StopIteration())
        except BaseException as error:
            give(None, error)

    threading.Thread(target=work, daemon=True).start()
    try:
        while True:
            left = deadline - time.monotonic()
            try:
                value, error = given.get(timeout=max(0.0, left))
            except queue.Empty:
                left = 0.0
            if left <= 0:
                raise UsageError("it takes too long; what has arrived is kept")
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield value  # type: ignore[misc]
    finally:
        given_up.set()
