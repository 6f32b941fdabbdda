"""Families of image transforms to be told apart: four-fold rotation and 2×2 jigsaw.

Every transform here only moves pixels, so a family is a table: for transform k and each output pixel, the input pixel
that lands there. A whole batch, each image with a transform of its own, is then one gather.
"""

from __future__ import annotations

import itertools
from typing import Protocol

import torch
from torch import Tensor

from cler.errors import UsageError


class TransformFamily(Protocol):
    """What the Equivariant regulariser needs of a family of transforms."""

    n_transforms: int

    def apply(self, images: Tensor, labels: Tensor) -> Tensor:
        """Transform image i of a batch (N, C, H, W) by the member of the family with number labels[i]."""
        ...


class PixelPermutations:
    """A family whose members permute the pixels of a square image."""

    n_transforms: int

    def __init__(self) -> None:
        self._tables: dict[tuple[int, torch.device], Tensor] = {}

    def source_pixels(self, size: int) -> Tensor:
        """The table (n_transforms, size·size) of flat input positions, one row per transform."""
        raise TypeError(f"{type(self).__name__} has to define source_pixels")

    def check(self, height: int, width: int) -> None:
        """Refuse images that the family cannot permute."""
        if height != width:
            raise UsageError(f"{type(self).__name__.lower()} needs square images, these are {height}×{width}")

    def apply(self, images: Tensor, labels: Tensor) -> Tensor:
        """Transform image i of a batch (N, C, H, W) by the member of the family with number labels[i]."""
        _, channels, height, width = images.shape
        self.check(height, width)
        sources = self._table(height, images.device)[labels]
        moved = images.flatten(2).gather(2, sources.unsqueeze(1).expand(-1, channels, -1))
        return moved.unflatten(2, (height, width))

    def _table(self, size: int, device: torch.device) -> Tensor:
        key = (size, device)
        if key not in self._tables:
            self._tables[key] = self.source_pixels(size).to(device)
        return self._tables[key]


class Rotation(PixelPermutations):
    """Quarter turns: label k rotates by k·90° counter-clockwise."""

    n_transforms = 4

    def source_pixels(self, size: int) -> Tensor:
        """Rotating the pixel numbers themselves tells where each output pixel comes from."""
        numbers = torch.arange(size * size).view(size, size)
        return torch.stack([numbers.rot90(turns, (0, 1)).flatten() for turns in range(4)])


class Jigsaw(PixelPermutations):
    """The 24 orders of the four quadrants, numbered top left, top right, bottom left, bottom right.

    Under permutation π output position j receives input quadrant π(j); label 0 is the identity.
    """

    n_transforms = 24
    permutations = torch.tensor(list(itertools.permutations(range(4))))

    def check(self, height: int, width: int) -> None:
        """Refuse images that do not split into four equal quadrants."""
        super().check(height, width)
        if height % 2:
            raise UsageError(f"jigsaw needs images of even size, these are {height}×{width}")

    def source_pixels(self, size: int) -> Tensor:
        """Cut the pixel numbers into quadrants, reorder them, put them together again."""
        half = size // 2
        quadrants = torch.arange(size * size).view(2, half, 2, half).transpose(1, 2).reshape(4, half, half)
        shuffled = quadrants[self.permutations].view(-1, 2, 2, half, half)
        return shuffled.transpose(2, 3).reshape(-1, size * size)
