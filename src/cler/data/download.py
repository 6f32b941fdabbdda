"""Fetch a file so that a broken connection costs nothing, and unpack an archive so that it can do no harm."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from ssl import SSLError
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from cler.data.images import Progress
from cler.errors import UsageError

BLOCK = 1 << 18
TIMEOUT = 30.0
NETWORK_ERRORS = (URLError, ConnectionError, TimeoutError, SSLError, HTTPException)
"""Worth another attempt, unlike a full disk."""
LARGEST_ARCHIVE = 2 * 10**9
"""Bytes an archive may unpack to: several times what any dataset here needs."""


def fetch(
    url: str, target: Path, md5: str | None, progress: Progress | None = None, *, attempts: int = 4, wait: float = 1.0
) -> Path:
    """Download `url` to `target`, resuming from what an earlier call left in `target.part`.

    The target appears only whole and with the right checksum: where none is known, with the one inside the gzip file.
    Failed attempts are repeated after `wait`, 2 `wait`, ... seconds.
    """
    if target.is_file() and _is_whole(target, md5):
        return target
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {target.parent}: {error.strerror}; choose another data folder") from None
    problem = ""
    for attempt in range(attempts):
        time.sleep(wait * 2 ** (attempt - 1) if attempt else 0)
        try:
            _fetch_rest(url, part, progress)
            if _is_whole(part, md5):
                os.replace(part, target)
                return target
            # Which bytes are wrong cannot be known, so the next attempt starts over.
            part.unlink()
            problem = "what arrived has the wrong checksum"
        except HTTPError as error:
            problem = f"HTTP {error.code} {error.reason}"
            if error.code in (401, 403, 404, 410):
                break
        except NETWORK_ERRORS as error:
            problem = str(error) or type(error).__name__
        except OSError as error:
            problem = str(error)
            break
    raise UsageError(f"cannot fetch {url} ({problem}): try again, or fetch it by hand and put it in {target.parent}")


def file_md5(path: Path) -> str:
    """The MD5 of a file: the checksum the official archives are published with."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _is_whole(path: Path, md5: str | None) -> bool:
    """Whether a file has this MD5 or, without one, is a gzip that ends with the checksum of what it holds."""
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


def _fetch_rest(url: str, part: Path, progress: Progress | None) -> None:
    """Append to `part` what it lacks; start over if the server does not resume."""
    have = part.stat().st_size if part.exists() else 0
    response = _request(url, have)
    if response is None:
        return
    with response:
        if response.status != 206:
            have = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            part.unlink(missing_ok=True)
            raise ConnectionError("the server continued at the wrong place")
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as stream:
            for block in iter(lambda: response.read(BLOCK), b""):
                have += stream.write(block)
                if progress:
                    progress(have, total)
    if total is not None and have < total:
        raise ConnectionError(f"the connection broke after {have} of {total} bytes")


def _request(url: str, have: int) -> HTTPResponse | None:
    """Ask for all but the first `have` bytes; None when there are no more, which the checksum then judges."""
    try:
        return urlopen(Request(url, headers={"Range": f"bytes={have}-"} if have else {}), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if have and error.code == 416:
            return None
        raise


def extract(archive: Path, folder: Path, *, limit: int = LARGEST_ARCHIVE) -> None:
    """Unpack a tar archive of plain files and folders into `folder`.

    Everything is unpacked beside its destination first and then renamed, so that a kill leaves no partial file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(prefix=".extract-", dir=folder) as temporary:
            for member in _harmless(tar, limit):
                tar.extract(member, temporary, filter="data")
            _move_into(Path(temporary), folder)
    except Exception as error:  # tarfile raises errors of many kinds for broken archives
        if isinstance(error, OSError) and error.strerror:
            raise UsageError(
                f"cannot unpack {archive} into {folder} ({error.strerror}): make room or choose another"
            ) from error
        problem = str(error).partition("\n")[0].rstrip(":")
        raise UsageError(f"will not unpack {archive} ({problem}): delete it and fetch it again") from error


def _harmless(tar: tarfile.TarFile, limit: int) -> Iterator[tarfile.TarInfo]:
    """The members one by one, refusing any that is not a plain file or folder inside the archive's own tree."""
    total = 0
    for member in tar:
        path = PurePosixPath(member.name)
        if not (member.isreg() or member.isdir()) or path.is_absolute() or ".." in path.parts:
            raise tarfile.TarError(f"it holds '{member.name}', which is not a plain file inside it")
        total += member.size
        if total > limit:
            raise tarfile.TarError(f"it unpacks to more than {limit} bytes")
        yield member


def _move_into(source: Path, folder: Path) -> None:
    """Rename what `source` holds into `folder`; where a folder is already there, replace its files one by one."""
    for entry in sorted(source.iterdir()):
        target = folder / entry.name
        if entry.is_dir() and target.is_dir():
            _move_into(entry, target)
        else:
            os.replace(entry, target)
