"""Fetch a file so that a broken connection costs nothing, and unpack an archive so that it can do no harm."""

from __future__ import annotations

import gzip
import hashlib
import os
import queue
import stat
import tarfile
import threading
import time
import urllib.request as web
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from ssl import SSLError
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError

from cler.data.images import Advance
from cler.errors import UsageError, one_line
from cler.files import as_path, temporary_folder

BLOCK = 1 << 18
TIMEOUT = 30.0
"""Seconds that a server may say nothing."""
PATIENCE = 4 * 3600.0
"""Seconds that a download may take in all."""
NETWORK_ERRORS = (URLError, ConnectionError, TimeoutError, SSLError, HTTPException, ValueError)
"""Worth another attempt, unlike a full disk; a ValueError is about a length or an address that is none."""
LARGEST_ARCHIVE = 2 * 10**9
"""Bytes an archive may unpack to: several times what any dataset here needs."""
MOST_MEMBERS = 65_000
"""Files and folders in an archive: a few more than the dataset that has most."""
LONGEST_NAME = 500
"""Characters of a member's path."""
LARGEST_HEADER = 1 << 15
"""Bytes in which an archive may tell of one member, or of all."""

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
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {target.parent}: {error.strerror}; choose another data folder") from None
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
    """Ask for all but the first `have` bytes: where the answer starts and its length, if it tells; then its blocks.

    It starts at None when there are no more, which the checksum then judges.
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


def extract(archive: Path, folder: Path, *, limit: int = LARGEST_ARCHIVE, members: int = MOST_MEMBERS) -> None:
    """Unpack a gzipped tar archive of plain files and folders into `folder`.

    Everything is unpacked beside its destination first and then renamed, so that a kill leaves no partial file.
    """
    with (
        _unpacking(archive, folder) as temporary,
        _Sips(archive) as stream,
        tarfile.open(fileobj=stream, mode="r:") as tar,
    ):
        for member in _harmless(tar, limit, members):
            tar.extract(member, temporary, filter="data")


def extract_zip(archive: Path, folder: Path, *, limit: int = LARGEST_ARCHIVE, members: int = MOST_MEMBERS) -> None:
    """Unpack a zip archive of plain files and folders into `folder`, as `extract` does with a gzipped tar archive."""
    with _unpacking(archive, folder) as temporary, zipfile.ZipFile(archive) as held:
        listed = held.infolist()
        if len(listed) > members:
            raise zipfile.BadZipFile(f"it holds more than {members} files")
        if sum(member.file_size for member in listed) > limit:
            raise zipfile.BadZipFile(f"it unpacks to more than {limit} bytes")
        for member in listed:
            path = PurePosixPath(member.filename)
            linked = stat.S_ISLNK(member.external_attr >> 16)
            if linked or path.is_absolute() or ".." in path.parts or not member.filename.isprintable():
                raise zipfile.BadZipFile(f"it holds '{one_line(member.filename[:50])}', not a plain file inside it")
            held.extract(member, temporary)


@contextmanager
def _unpacking(archive: Path, folder: Path) -> Iterator[Path]:
    """A folder to unpack into; what it holds is moved to `folder` at the end. Errors are told in one line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder) as temporary:
            yield temporary
            _move_into(temporary, folder)
    except Exception as error:  # tarfile raises errors of many kinds for broken archives
        if isinstance(error, OSError) and error.strerror:
            raise UsageError(
                f"cannot unpack {archive} into {folder} ({error.strerror}): make room or choose another"
            ) from error
        problem = str(error).partition("\n")[0].rstrip(":")
        raise UsageError(f"will not unpack {archive} ({problem}): delete it and fetch it again") from error


class _Sips(gzip.GzipFile):
    """A file of which little is read at a time: tarfile takes headers whole, however long an archive says they are."""

    def read(self, size: int | None = -1) -> bytes:
        """So many bytes of the file, if they are few."""
        if size is None or not 0 <= size <= LARGEST_HEADER:
            raise tarfile.TarError(f"it holds a header of {size} bytes")
        return super().read(size)


def _harmless(tar: tarfile.TarFile, limit: int, members: int) -> Iterator[tarfile.TarInfo]:
    """The members one by one, refusing any that is not a plain file or folder inside the archive's own tree."""
    total = 0
    for count, member in enumerate(tar, 1):
        path = PurePosixPath(member.name)
        if len(member.name) > LONGEST_NAME or not member.name.isprintable():
            raise tarfile.TarError(f"it holds '{one_line(member.name[:50])}…', which is no name for a file")
        if not (member.isreg() or member.isdir()) or path.is_absolute() or ".." in path.parts:
            raise tarfile.TarError(f"it holds '{member.name}', which is not a plain file inside it")
        if count > members:
            raise tarfile.TarError(f"it holds more than {members} files")
        if member.offset_data - total > 4 * tarfile.BLOCKSIZE * count + LARGEST_HEADER:
            raise tarfile.TarError("its headers are too long")
        total += -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        if total > limit:
            raise tarfile.TarError(f"it unpacks to more than {limit} bytes")
        yield member
    if not tar.getmembers():  # some versions of tarfile take a broken first header for the end
        raise tarfile.TarError("it holds no files")


def _move_into(source: Path, folder: Path) -> None:
    """Rename what `source` holds into `folder`; where a folder is already there, replace its files one by one."""
    for entry in sorted(source.iterdir()):
        target = folder / entry.name
        if entry.is_dir() and target.is_dir():
            _move_into(entry, target)
        else:
            os.replace(entry, target)
