"""Families of image transforms that a network learns to recognize: rotations, jigsaws, flips, and products of families.

The transforms here only move pixels, so a family is a table: for transform k and each output pixel, the input pixel
that lands there. A whole batch, each image with a transform of its own, is then one gather.
"""

from __future__ import annotations

import itertools
import math
from typing import Protocol

import torch
from torch import Tensor

from cler.errors import UsageError

MOST_PERMUTATIONS = 1000
"""How many orders of its tiles a jigsaw may have."""
POOL = 10_000
"""Random orders that those of a large jigsaw are picked from."""


class TransformFamily(Protocol):
    """What the Equivariant regularizer needs of a family of transforms."""

    n_transforms: int

    def apply(self, images: Tensor, labels: Tensor) -> Tensor:
        """Transform image i of a batch (N, C, H, W) by the member of the family with number labels[i]."""
        ...


class PixelPermutations:
    """A family whose members permute the pixels of an image."""

    n_transforms: int
    grid = 1
    """What the sides of an image have to be multiples of."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, int, torch.device], Tensor] = {}

    def source_pixels(self, height: int, width: int) -> Tensor:
        """The table (n_transforms, height·width) of flat input positions, one row per transform."""
        raise TypeError(f"{type(self).__name__} has to define source_pixels")

    def check(self, height: int, width: int) -> None:
        """Refuse images that the family cannot permute; there are none unless a family says so."""

    def apply(self, images: Tensor, labels: Tensor) -> Tensor:
        """Transform image i of a batch (N, C, H, W) by the member of the family with number labels[i]."""
        if images.dim() != 4:
            raise UsageError(f"transforms take a batch of images (N, C, H, W), not a tensor {tuple(images.shape)}")
        _, channels, height, width = images.shape
        sources = self._table(height, width, images.device)[labels]
        moved = images.flatten(2).gather(2, sources.unsqueeze(1).expand(-1, channels, -1))
        return moved.unflatten(2, (height, width))

    def _table(self, height: int, width: int, device: torch.device) -> Tensor:
        key = (height, width, device)
        if key in self._tables:
            return self._tables[key]
        self.check(height, width)
        table = self.source_pixels(height, width).to(device)
        if not torch.compiler.is_compiling():  # what a compiled step makes is not its to keep
            self._tables[key] = table
        return table


class Rotation(PixelPermutations):
    """Quarter turns: label k rotates by k·90° counter-clockwise."""

    n_transforms = 4

    def check(self, height: int, width: int) -> None:
        """Refuse images that a quarter turn would give another shape."""
        if height != width:
            raise UsageError(f"rotation by 90° needs square images, these are {height}×{width}; crop or pad them")

    def source_pixels(self, height: int, width: int) -> Tensor:
        """Rotating the pixel numbers themselves tells where each output pixel comes from."""
        numbers = torch.arange(height * width).view(height, width)
        return torch.stack([numbers.rot90(turns, (0, 1)).flatten() for turns in range(4)])


class Flips(PixelPermutations):
    """Mirror images: label 0 is the identity, 1 swaps left and right, 2 top and bottom, 3 both."""

    n_transforms = 4

    def source_pixels(self, height: int, width: int) -> Tensor:
        """Flipping the pixel numbers themselves tells where each output pixel comes from."""
        numbers = torch.arange(height * width).view(height, width)
        return torch.stack([numbers.flip(axes).flatten() for axes in ((), (1,), (0,), (0, 1))])


class Jigsaw(PixelPermutations):
    """Orders of the tiles of a grid, numbered row by row from the top left.

    Args:
        grid: tiles along each side.
        n_permutations: how many orders; all 24 of a 2×2 grid if not given.
        seed: of the random orders that those of a larger grid are picked from.

    Under permutation π output position j receives input tile π(j); label 0 is the identity. Where only some of the
    orders are used, each is the one that has most tiles elsewhere than in any picked before.
    """

    def __init__(self, grid: int = 2, n_permutations: int | None = None, *, seed: int = 0) -> None:
        super().__init__()
        if grid < 2:
            raise UsageError(f"a jigsaw needs a grid of at least 2, not {grid}")
        most = min(math.factorial(grid**2), MOST_PERMUTATIONS)
        if n_permutations is None and grid > 2:
            raise UsageError(f"say how many permutations a {grid}×{grid} jigsaw is to have: n_permutations=2..{most}")
        if n_permutations is not None and not 2 <= n_permutations <= most:
            raise UsageError(f"a {grid}×{grid} jigsaw can have 2 to {most} permutations, not {n_permutations}")
        self.grid = grid
        orders = _some_orders(grid**2, seed) if grid > 2 else torch.tensor([*itertools.permutations(range(4))])
        self.permutations = orders if n_permutations is None else _well_spread(orders, n_permutations)
        self.n_transforms = len(self.permutations)

    def check(self, height: int, width: int) -> None:
        """Refuse images that do not split into equal tiles."""
        if height % self.grid or width % self.grid:
            fitting = "of even size" if self.grid == 2 else f"whose sides are multiples of {self.grid}"
            raise UsageError(f"jigsaw needs images {fitting}, these are {height}×{width}; crop or pad them")

    def source_pixels(self, height: int, width: int) -> Tensor:
        """Cut the pixel numbers into tiles, reorder them, put them together again."""
        grid, rows, columns = self.grid, height // self.grid, width // self.grid
        tiles = torch.arange(height * width).view(grid, rows, grid, columns).transpose(1, 2).flatten(0, 1)
        shuffled = tiles[self.permutations].view(-1, grid, grid, rows, columns)
        return shuffled.transpose(2, 3).reshape(-1, height * width)


def _some_orders(count: int, seed: int) -> Tensor:
    """Random permutations of `count` things, (POOL, count), after the identity."""
    draws = torch.rand(POOL - 1, count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.cat([torch.arange(count).unsqueeze(0), draws.argsort(1)])


def _well_spread(orders: Tensor, count: int) -> Tensor:
    """The first of the orders, then again and again the one farthest, by Hamming distance, from all picked so far."""
    picked = [0]
    distances = (orders != orders[0]).sum(1)
    while len(picked) < count:
        picked.append(int(distances.argmax()))
        distances = distances.minimum((orders != orders[picked[-1]]).sum(1))
    return orders[picked]


class Product:
    """Every transform of one family followed by every transform of another.

    Label a · (size of the second family) + b is the first family's transform a, then the second's b.
    """

    def __init__(self, first: TransformFamily, second: TransformFamily) -> None:
        for family in (first, second):
            if not hasattr(family, "n_transforms"):
                raise UsageError(f"a product is made of families, as in Product(Rotation(), Jigsaw()), not {family!r}")
        self.first, self.second = first, second
        self.n_transforms = first.n_transforms * second.n_transforms
        grids = [getattr(family, "grid", 0) for family in (first, second)]
        self.grid = math.lcm(*grids)  # 0 where a family may do more than move pixels
        if self.grid:
            self._check_distinct(2 * self.grid)

    def apply(self, images: Tensor, labels: Tensor) -> Tensor:
        """Transform image i of a batch (N, C, H, W) by the member of the family with number labels[i]."""
        size = self.second.n_transforms
        return self.second.apply(self.first.apply(images, labels // size), labels % size)

    def _check_distinct(self, side: int) -> None:
        count = self.n_transforms
        numbers = torch.arange(side * side).view(1, 1, side, side).expand(count, -1, -1, -1)
        if len(self.apply(numbers, torch.arange(count)).unique(dim=0)) < count:
            names = " and ".join(type(family).__name__ for family in (self.first, self.second))
            raise UsageError(f"{names} have transforms in common, which no head can tell apart; combine other families")
