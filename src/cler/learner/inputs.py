"""From images and labels as users have them to pixels and labels that a method learns from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from cler.data.inputs import Label, as_tensor, to_bytes
from cler.errors import UsageError
from cler.pictures import plain

PICTURE_MODES = {1: "L", 3: "RGB"}


def to_pixels(images: Any, *, channels: int, size: int) -> Tensor:
    """Images as uint8 (N, channels, size, size); see `Learner` for what they may be."""
    if isinstance(images, list | tuple):
        each = [_batch_to_pixels(_batch_of_one(image, channels, size), channels, size) for image in images]
        return torch.cat(each) if each else torch.empty(0, channels, size, size, dtype=torch.uint8, device="cpu")
    if isinstance(images, Image.Image):
        raise UsageError("images must come in a list or in an array with an axis for them, not a single one")
    return _batch_to_pixels(as_tensor(images), channels, size)


def _batch_to_pixels(images: Tensor, channels: int, size: int) -> Tensor:
    return _resized(to_bytes(_channels_first(images, channels)), size)


def _batch_of_one(image: Any, channels: int, size: int) -> Tensor:
    if isinstance(image, Image.Image):
        if channels not in PICTURE_MODES:
            raise UsageError(f"PIL images have 1 or 3 channels here, not {channels}: give arrays")
        picture = _reduced(plain(image).convert(PICTURE_MODES[channels]), size)
        return as_tensor(np.atleast_3d(np.asarray(picture))).unsqueeze(0)
    return as_tensor(image).unsqueeze(0)


def _reduced(picture: Image.Image, size: int) -> Image.Image:
    """A picture of at most four times the size, so that a large one does not become floats as a whole."""
    smaller = min(picture.width, 4 * size), min(picture.height, 4 * size)
    return picture.resize(smaller, Image.Resampling.BOX) if all(smaller) else picture


def _channels_first(images: Tensor, channels: int) -> Tensor:
    given = tuple(images.shape)
    if images.dim() == 3 and channels == 1:
        images = images.unsqueeze(1)
    if images.dim() == 4 and images.shape[1] != channels:
        images = images.permute(0, 3, 1, 2)
    if images.dim() != 4 or images.shape[1] != channels or 0 in images.shape[1:]:
        shapes = f"N×{channels}×H×W or N×H×W×{channels}" + (" or N×H×W" if channels == 1 else "")
        gray = channels == 3 and ((len(given) == 3 and 3 not in given) or 1 in given[1:2] + given[3:])
        advice = "; a learner of gray images has channels=1" if gray else ""
        raise UsageError(f"images must have the shape {shapes}, not {'×'.join(map(str, given))}{advice}")
    return images


def _resized(pixels: Tensor, size: int) -> Tensor:
    if pixels.shape[2:] == (size, size):
        return pixels
    scaled = F.interpolate(pixels.float(), (size, size), mode="bilinear", antialias=True)
    return scaled.round().clamp(0, 255).to(torch.uint8)


def to_array(labels: list[Label]) -> np.ndarray:
    """Labels as an array, of objects where numpy would change them."""
    array = np.array(labels)
    exact = array.dtype.kind in "iuU" and array.tolist() == labels
    return array if exact else np.array(labels, dtype=object)
