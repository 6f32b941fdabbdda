"""What every stream hands out."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """One batch of the stream."""

    pixels: Tensor
    """Raw images as stored, uint8 (N, C, H, W)."""
    images: Tensor
    """The same images augmented and normalized."""
    labels: Tensor
    """Class numbers from 0, int64 (N,); which task a class comes in is in `Tasks`."""
