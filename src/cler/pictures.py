"""Image files of any kind as pixels: 8 bits, the right way up, nothing transparent, of the size that is asked for.

Processes that decode many of them import this and not PyTorch, which would take longer than their work.
"""

from __future__ import annotations

import io
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from cler.errors import UsageError, one_line
from cler.files import opened
from cler.processes import end_with_parent

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MOST_PIXELS = 80_000_000
"""Pixels of the largest picture that is decoded: a larger one would take a gigabyte of memory."""
UNREAD = frozenset({"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"})
"""What Pillow knows but does not read itself: for some of them it runs other programs."""
DEEP = frozenset({"PNG", "PPM"})
"""Formats whose pixels of mode I are of 16 bits."""
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)
"""The tag of EXIF that says how a picture is turned, and its values that exchange width and height."""
WIDTH, HEIGHT = 256, 257
"""Tags of a TIFF."""


@cache
def formats() -> tuple[str, ...]:
    """What a file may be, whatever its name: all that Pillow reads itself."""
    from PIL import Image

    Image.init()
    return tuple(sorted(Image.OPEN.keys() - UNREAD))


@cache
def endings() -> tuple[str, ...]:
    """How the names of image files end, in lower case."""
    from PIL import Image

    known = formats()
    return tuple(ending for ending, kind in Image.registered_extensions().items() if kind in known)


def is_picture(name: str) -> bool:
    """Whether a file is an image by its name; a hidden one is not."""
    return name.lower().endswith(endings()) and not name.startswith(".")


def open_picture(source: Path | bytes, *, least: int | None = None) -> Picture:
    """The first picture in a file, or in what one holds, as `plain` makes it, in color.

    With `least`, a JPEG may be decoded at a fraction of its size, with no fewer pixels than that on either side.
    """
    with _opened(source) as picture:
        if picture.width * picture.height > MOST_PIXELS:
            raise UsageError(f"it has {picture.width} × {picture.height} pixels, more than {MOST_PIXELS}")
        if least is not None:
            picture.draft(None, (least, least))
        return plain(picture).convert("RGB")


def size_of(source: Path | bytes) -> tuple[int, int]:
    """Height and width of a picture, the right way up, from its header."""
    with _opened(source) as picture:
        turned = picture.getexif().get(ORIENTATION) in SIDEWAYS
        width, height = picture.size
        if picture.format == "TIFF":  # of which Pillow may have turned the size already
            tags: Any = vars(picture)["tag_v2"]
            width, height = tags[WIDTH], tags[HEIGHT]
        return (width, height) if turned else (height, width)


@contextmanager
def _opened(source: Path | bytes) -> Iterator[Picture]:
    from PIL import Image

    with _unwarned(), _stream(source) as file, Image.open(file, formats=formats()) as picture:
        yield picture


@contextmanager
def _unwarned() -> Iterator[None]:
    """Inside, nobody is warned of what is odd about a picture that can be read all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _stream(source: Path | bytes) -> Iterator[BinaryIO]:
    if isinstance(source, bytes):
        yield io.BytesIO(source)
    else:
        with opened(source) as file:
            yield file


def plain(picture: Picture) -> Picture:
    """The picture the right way up, with 8 bits a channel, and white where it is transparent."""
    from PIL import Image

    with _unwarned():  # Pillow looks into a picture's EXIF data again, also in one that a user has opened
        picture = _eight_bits(_upright(picture))
    if not picture.has_transparency_data:
        return picture
    colors = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", colors.size, "white"), colors).convert("RGB")


def _upright(picture: Picture) -> Picture:
    """The picture itself, or turned as its EXIF data says."""
    from PIL import ImageOps

    picture.load()  # of a TIFF, Pillow turns the pixels itself, and then says no more how
    if picture.getexif().get(ORIENTATION, 1) == 1:
        return picture
    turned = ImageOps.exif_transpose(picture)
    turned.format = picture.format  # by which `_eight_bits` knows what is white
    return turned


def _eight_bits(picture: Picture) -> Picture:
    """The picture itself, or a gray one of 16 bits as one of 8: Pillow would cut off its pixels at 255."""
    deep = picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in DEEP)
    if picture.mode in {"I", "F"} and not deep:
        raise UsageError(f"a PIL image of mode {picture.mode} does not say what is white: give it as mode L or I;16")
    if not deep:
        return picture
    from PIL import Image

    pixels, clear = np.asarray(picture, dtype=np.float32), picture.info.get("transparency")
    gray = Image.fromarray(np.rint(pixels / 257).astype(np.uint8))
    if clear is not None:
        gray.putalpha(Image.fromarray(np.where(pixels == clear, 0, 255).astype(np.uint8)))
    return gray


def fitted(picture: Picture, size: int, fit: str) -> Picture:
    """A square of so many pixels a side: its middle ('crop'), all of it on black ('pad'), or all of it ('stretch')."""
    from PIL import Image, ImageOps

    square, scaling = (size, size), Image.Resampling.BILINEAR
    if fit == "crop":
        return ImageOps.fit(picture, square, scaling)
    return ImageOps.pad(picture, square, scaling) if fit == "pad" else picture.resize(square, scaling)


def decoded(source: Path | bytes, size: int | None, fit: str) -> np.ndarray:
    """A picture as uint8, 3×H×W: fitted to a size, or of its own."""
    picture = open_picture(source, least=None if size is None else 2 * size)
    return channels_first(picture if size is None else fitted(picture, size, fit))


def channels_first(picture: Picture) -> np.ndarray:
    """The pixels of a gray picture as 1×H×W, of one in color as 3×H×W."""
    return np.atleast_3d(np.asarray(picture)).transpose(2, 0, 1)


def begin_to_decode() -> None:
    """What a process that decodes pictures for another does first: leave Ctrl-C to the other, and end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()  # a pool does not notice that its process was killed, and would wait for work for ever


def decode_some(sources: Sequence[Path | bytes], size: int | None, fit: str) -> list[np.ndarray | str]:
    """The pixels of each picture, or why it cannot be read."""
    return [_pixels_or_why(source, size, fit) for source in sources]


def _pixels_or_why(source: Path | bytes, size: int | None, fit: str) -> np.ndarray | str:
    try:
        return decoded(source, size, fit)
    except Exception as error:  # there is no end to what Pillow raises for broken files
        return why_not(error)


def why_not(error: Exception) -> str:
    """Why a picture cannot be read, without the place in memory that Pillow names."""
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    told = one_line(str(error)) or type(error).__name__
    return "it is no image" if told.startswith("cannot identify image file") else told[:200]
