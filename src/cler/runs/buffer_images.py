"""Images of the replay buffer on disk: one picture beside a run's result, in rows by class."""

from __future__ import annotations

import io
import math
from functools import lru_cache
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from cler.engine import Run
from cler.errors import UsageError
from cler.files import read_bytes, replacing

NAME = "buffer.png"
LARGEST_FILE = 50_000_000
"""Bytes of a picture that is read; a thousand images of 84×84 pixels take half of it."""
MOST_PIXELS = 20_000_000
"""Pixels of the largest picture that is read."""
WIDEST = 640
"""Pixels of each side of a picture in a page, at most."""


def save_buffer_images(folder: Path, run: Run, count: int) -> None:
    """Write a picture of so many images of a run's buffer, or of all, in the order of their classes.

    A run without a buffer has none. Nothing is drawn at random: they are as far from each other in the buffer, sorted
    by class, as can be.
    """
    if not run.method.replays:
        return
    pixels, labels = run.method.buffer.stored()
    if not len(labels):
        return
    shown = min(count, len(labels))
    chosen = labels.argsort(stable=True)[torch.arange(shown) * (len(labels) - 1) // max(shown - 1, 1)]
    with replacing(folder / NAME) as file:
        _sheet(pixels[chosen].cpu()).save(file, "PNG")


def _sheet(images: Tensor) -> Image.Image:
    """Images (N, 3 or 1, H, W) in as many columns as rows, with a pixel between them that shows the page."""
    columns = math.ceil(math.sqrt(len(images)))
    height, width = images.shape[2:]
    sheet = Image.new("RGBA", (columns * (width + 1) - 1, math.ceil(len(images) / columns) * (height + 1) - 1))
    for number, image in enumerate(images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()):
        row, column = divmod(number, columns)
        sheet.paste(Image.fromarray(image), (column * (width + 1), row * (height + 1)))
    return sheet


@lru_cache(maxsize=1000)
def small(path: Path, changed: int) -> bytes | None:
    """A picture for a page, as WebP of at most `WIDEST` pixels a side; None where there is none that can be read.

    `changed` says when it changed, so that it is read once.
    """
    try:
        with Image.open(io.BytesIO(read_bytes(path, LARGEST_FILE, follow=False)), formats=["PNG"]) as picture:
            if math.prod(picture.size) > MOST_PIXELS:
                return None
            picture.load()
            shown = picture.convert("RGBA")
    except (OSError, SyntaxError, UsageError, ValueError, Image.DecompressionBombError):
        return None
    shown.thumbnail((WIDEST, WIDEST))
    found = io.BytesIO()
    shown.save(found, "WEBP", quality=80)
    return found.getvalue()
