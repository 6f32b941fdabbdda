"""Many pictures decoded once: in processes, into a file that is checked whenever it is read."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cler import pictures
from cler.data.images import Advance
from cler.errors import UsageError, one_line
from cler.files import opened, replacing
from cler.processes import starting, usable_cores

CHUNK = 64
"""Pictures that a process is given at a time."""
ALONE = 2000, 20_000_000
"""Pictures, and bytes of them, that are decoded in this process: others take seconds to start."""
DIGEST_BYTES = hashlib.sha256().digest_size
LONGEST_HEADER = 50_000_000
"""Bytes in which a file of pixels tells of them."""


class Encoded(NamedTuple):
    """A picture that is not decoded yet."""

    name: str
    """What messages call it."""
    stamp: str
    """Differs when the picture may have changed."""
    size: int
    """In bytes, or 0 where that is not known."""


Content = Callable[[int], Path | bytes]
"""From the number of a picture to its file, or to what that holds."""


class Pixels(NamedTuple):
    """Decoded pictures, and those that could not be."""

    images: np.ndarray
    """uint8, N×C×H×W, without the broken ones."""
    broken: dict[int, str]
    """Why each picture cannot be read, by its number."""


def kept_pixels(path: Path, listed: bytes, count: int, make: Callable[[], Pixels]) -> Pixels:
    """The pixels in a file if they are those of the `count` pictures that `listed` tells of; else made and kept there.

    It is whole or absent; one that any byte of is not as it was written is made again.
    """
    kept = _read(path, listed, count)
    if kept is None:
        kept = make()
        _write(path, listed, kept)
    return kept


def _read(path: Path, listed: bytes, count: int) -> Pixels | None:
    """The pixels of so many pictures, in memory that processes share; None if any byte is not as it was written."""
    try:
        with opened(path) as file:
            digest = file.read(DIGEST_BYTES)
            length = int.from_bytes(file.read(8))
            header = file.read(min(length, LONGEST_HEADER))
            about = json.loads(header)
            broken = {int(number): str(why) for number, why in about["broken"].items()}
            shape = (count - len(broken), 3, *about["shape"][2:])
            if about["shape"] != [*shape] or len(shape) != 4 or not all(0 <= number < count for number in broken):
                return None
            images = np.memmap(file, np.uint8, "c", DIGEST_BYTES + 8 + length, shape)
    except (OSError, UsageError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None  # there is none, or it is damaged, or no file
    return Pixels(images, broken) if digest == _digest(listed, header, images) else None


def _write(path: Path, listed: bytes, pixels: Pixels) -> None:
    header = json.dumps({"shape": pixels.images.shape, "broken": pixels.broken}).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(_digest(listed, header, pixels.images))
            file.write(len(header).to_bytes(8) + header)
            file.write(pixels.images.data)
    except (OSError, UsageError) as error:
        if multiprocessing.parent_process() is None:  # the process that started the workers has said it
            why = error.strerror if isinstance(error, OSError) else error
            _say_once(f"cannot keep the decoded images in {path} ({why}): they are decoded each time")


def _digest(listed: bytes, header: bytes, images: np.ndarray) -> bytes:
    digest = hashlib.sha256(hashlib.sha256(listed).digest() + header)
    digest.update(images.data)
    return digest.digest()


@cache
def _say_once(line: str) -> None:
    logging.getLogger("cler").warning(one_line(line))


def decode(
    encoded: Sequence[Encoded], content: Content, size: int | None, fit: str, progress: Advance | None = None
) -> Pixels:
    """All pictures, fitted to a size or, without one, of the size that they all have."""
    broken: dict[int, str] = {}
    height, width = (size, size) if size is not None else _first_size(encoded, content)
    images = np.empty((len(encoded), 3, height, width), np.uint8)
    differ = False
    for done, (number, found) in enumerate(_decoded(encoded, content, size, fit), start=1):
        if isinstance(found, str):
            broken[number] = found
        elif found.shape != images.shape[1:]:
            if not differ:
                _refuse_sizes(encoded, content)  # unless this one alone is not what its header says
            differ = True
            broken[number] = f"it turns out to have {found.shape[2]}×{found.shape[1]} pixels"
        else:
            images[number] = found
        if progress and (done % CHUNK == 0 or done == len(encoded)):
            progress(done, len(encoded))
    whole = [number for number in range(len(encoded)) if number not in broken]
    return Pixels(images[whole] if broken else images, dict(sorted(broken.items())))


def _sizes(encoded: Sequence[Encoded], content: Content) -> Iterator[tuple[int, tuple[int, int]]]:
    """The number, and height and width, of each picture whose header can be read."""
    for number in range(len(encoded)):
        with suppress(Exception):  # there is no end to what Pillow raises for broken files
            yield number, pictures.size_of(content(number))


def _first_size(encoded: Sequence[Encoded], content: Content) -> tuple[int, int]:
    """Height and width of the first picture that has any, if as many as there are fit in memory."""
    _, (height, width) = next(_sizes(encoded, content), (0, (1, 1)))
    needed, there = 3 * height * width * len(encoded), _memory()
    if there and needed > there / 2:
        raise UsageError(
            f"must be given, such as 64: {len(encoded)} images of {width}×{height} pixels take {needed / 1e9:.0f} GB "
            f"of memory, and this machine has {there / 1e9:.0f}",
            "size",
        )
    return height, width


def _refuse_sizes(encoded: Sequence[Encoded], content: Content) -> None:
    """Name the smallest and the largest picture, if they differ."""
    sizes: dict[tuple[int, int], int] = {}
    for number, size in _sizes(encoded, content):
        sizes.setdefault(size, number)
    if len(sizes) > 1:
        smallest, largest = (pick(sizes, key=lambda size: size[0] * size[1]) for pick in (min, max))
        told = " and ".join(f"{encoded[sizes[each]].name} with {each[1]}×{each[0]}" for each in (smallest, largest))
        raise UsageError(f"must be given, such as 64, for images of different sizes: there are {told}", "size")


def _memory() -> int:
    """Bytes of memory of this machine; 0 where that cannot be asked."""
    if not hasattr(os, "sysconf"):
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


Found = tuple[int, np.ndarray | str]
"""The number of a picture, and its pixels or why there are none."""


def _decoded(encoded: Sequence[Encoded], content: Content, size: int | None, fit: str) -> Iterator[Found]:
    chunks = [range(len(encoded))[start : start + CHUNK] for start in range(0, len(encoded), CHUNK)]
    cores = usable_cores()
    heavy = len(encoded) > ALONE[0] or sum(each.size for each in encoded) > ALONE[1]
    if not heavy or cores == 1 or len(chunks) == 1 or multiprocessing.current_process().daemon:
        for chunk in chunks:
            yield from zip(chunk, pictures.decode_some([content(number) for number in chunk], size, fit), strict=True)
        return
    context = multiprocessing.get_context("spawn")  # a forked process would inherit torch's threads in any state
    with _working(), ProcessPoolExecutor(min(cores, len(chunks)), context, pictures.begin_to_decode) as pool:
        running: dict[Future[list[Any]], Sequence[int]] = {}
        for chunk in chunks:
            with starting():
                running[pool.submit(pictures.decode_some, [content(number) for number in chunk], size, fit)] = chunk
            if len(running) > 2 * cores:  # so that what they hold does not fill the memory
                yield from _some_done(running)
        while running:
            yield from _some_done(running)


@contextmanager
def _working() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise UsageError("a process that decodes images was killed, perhaps for its memory: try again") from None


def _some_done(running: dict[Future[list[Any]], Sequence[int]]) -> Iterator[Found]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        yield from zip(running.pop(future), future.result(), strict=True)
