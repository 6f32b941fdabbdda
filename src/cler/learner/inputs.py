"""From images and labels as users have them to pixels and labels that a method learns from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from cler.errors import UsageError

Label: TypeAlias = str | int
PICTURE_MODES = {1: "L", 3: "RGB"}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LONGEST_LABEL = 1000
"""Characters of a label."""


def to_pixels(images: Any, *, channels: int, size: int) -> Tensor:
    """Images as uint8 (N, channels, size, size); see `Learner` for what they may be."""
    if isinstance(images, list | tuple):
        each = [_batch_to_pixels(_batch_of_one(image, channels, size), channels, size) for image in images]
        return torch.cat(each) if each else torch.empty(0, channels, size, size, dtype=torch.uint8, device="cpu")
    if isinstance(images, Image.Image):
        raise UsageError("images must come in a list or in an array with an axis for them, not a single one")
    return _batch_to_pixels(_tensor(images), channels, size)


def _batch_to_pixels(images: Tensor, channels: int, size: int) -> Tensor:
    return _resized(_to_bytes(_channels_first(images, channels)), size)


def _batch_of_one(image: Any, channels: int, size: int) -> Tensor:
    if isinstance(image, Image.Image):
        if channels not in PICTURE_MODES:
            raise UsageError(f"PIL images have 1 or 3 channels here, not {channels}: give arrays")
        picture = _reduced(eight_bits(image).convert(PICTURE_MODES[channels]), size)
        return _tensor(np.atleast_3d(np.asarray(picture))).unsqueeze(0)
    return _tensor(image).unsqueeze(0)


def eight_bits(picture: Image.Image) -> Image.Image:
    """The picture itself, or a gray one of 16 bits as one of 8, which Pillow would cut off at 255."""
    if picture.mode in {"I", "F"}:
        raise UsageError(f"a PIL image of mode {picture.mode} does not say what is white: give it as mode L or I;16")
    if not picture.mode.startswith("I;16"):
        return picture
    return Image.fromarray(np.rint(np.asarray(picture, dtype=np.float32) / 257).astype(np.uint8))


def _reduced(picture: Image.Image, size: int) -> Image.Image:
    """A picture of at most four times the size, so that a large one does not become floats as a whole."""
    smaller = min(picture.width, 4 * size), min(picture.height, 4 * size)
    return picture.resize(smaller, Image.Resampling.BOX) if all(smaller) else picture


def _tensor(images: Any) -> Tensor:
    if isinstance(images, Tensor):
        _check_dense(images, "images")
        return images.detach()
    try:
        return torch.tensor(np.ascontiguousarray(images), device="cpu")  # whatever device is the default
    except (TypeError, ValueError):
        kind = getattr(images, "dtype", type(images).__name__)
        raise UsageError(f"images must be numpy arrays, torch tensors or PIL images, not {kind}") from None


def _check_dense(given: Tensor, what: str) -> None:
    """Refuse a tensor whose numbers are not all there, in an array."""
    kind = "nested" if given.is_nested else "meta" if given.is_meta else str(given.layout).removeprefix("torch.")
    if kind != "strided":
        raise UsageError(f"{what} must be in ordinary, dense tensors, not in a {kind} one")


def _channels_first(images: Tensor, channels: int) -> Tensor:
    given = "×".join(map(str, images.shape))
    if images.dim() == 3 and channels == 1:
        images = images.unsqueeze(1)
    if images.dim() == 4 and images.shape[1] != channels:
        images = images.permute(0, 3, 1, 2)
    if images.dim() != 4 or images.shape[1] != channels or 0 in images.shape[1:]:
        shapes = f"N×{channels}×H×W or N×H×W×{channels}" + (" or N×H×W" if channels == 1 else "")
        raise UsageError(f"images must have the shape {shapes}, not {given}")
    return images


def _to_bytes(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    if images.dtype not in FLOATS:
        kind = str(images.dtype).removeprefix("torch.")
        raise UsageError(f"images must be uint8 from 0 to 255, or floats from 0 to 1, not {kind}")
    if images.numel() and not (images.min() >= 0 and images.max() <= 1):  # so that NaN does not pass either
        raise UsageError(
            f"float images must lie from 0 to 1, these go from {images.min().item()} to {images.max().item()}; "
            "give them before they are normalized, or as uint8 from 0 to 255"
        )
    return (255 * images.float()).round().to(torch.uint8)


def _resized(pixels: Tensor, size: int) -> Tensor:
    if pixels.shape[2:] == (size, size):
        return pixels
    scaled = F.interpolate(pixels.float(), (size, size), mode="bilinear", antialias=True)
    return scaled.round().clamp(0, 255).to(torch.uint8)


def in_order(labels: Iterable[Label]) -> list[Label]:
    """Sorted, as scikit-learn expects classes to be; those of one type after those of another."""
    return sorted(labels, key=lambda label: (type(label).__name__, label))


def to_array(labels: list[Label]) -> np.ndarray:
    """Labels as an array, of objects where numpy would change them."""
    array = np.array(labels)
    exact = array.dtype.kind in "iuU" and array.tolist() == labels
    return array if exact else np.array(labels, dtype=object)


def to_labels(labels: Any) -> list[Label]:
    """Labels as a list of strings and whole numbers."""
    if isinstance(labels, str) or not isinstance(labels, Iterable) or getattr(labels, "ndim", 1) == 0:
        raise UsageError(f"labels must be a list with one label for each image, not {labels!r}")
    if isinstance(labels, Tensor):
        _check_dense(labels, "labels")
    plain: list[Any] = [
        each.item() if isinstance(each, np.generic | Tensor) and each.ndim == 0 else each for each in labels
    ]
    for label in plain:
        if isinstance(label, bool) or not isinstance(label, str | int):
            raise UsageError(f"a label must be a string or a whole number, not {label!r}")
        if isinstance(label, str) and len(label) > LONGEST_LABEL:
            raise UsageError(f"a label may have {LONGEST_LABEL} characters, not {len(label)}: {label[:20]!r}…")
        if isinstance(label, int) and not -(2**63) <= label < 2**64:
            raise UsageError("a whole number must fit into 64 bits to be a label")
    return plain
