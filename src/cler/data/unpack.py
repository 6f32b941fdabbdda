"""Unpack an archive so that it can do no harm."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from cler.errors import UsageError, one_line
from cler.files import temporary_folder

LARGEST_ARCHIVE = 2 * 10**9
"""Bytes an archive may unpack to: several times what any dataset here needs."""
MOST_MEMBERS = 65_000
"""Files and folders in an archive: a few more than the dataset that has most."""
LONGEST_NAME = 500
"""Characters of a member's path."""
LARGEST_HEADER = 1 << 15
"""Bytes in which an archive may tell of one member, or of all."""


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
