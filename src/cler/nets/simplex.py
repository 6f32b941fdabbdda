"""A classifier whose class vectors are fixed: the corners of a regular simplex, all equally far from each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cler.errors import UsageError
from cler.nets.modes import full_precision
from cler.nets.norm import Groups
from cler.nets.resnet import Guests, ResNet18


def simplex(n_classes: int) -> Tensor:
    """Unit vectors to the corners of a regular simplex, the columns of (n_classes − 1, n_classes), in float64.

    Any two have the inner product −1/(n_classes − 1), and all of them add up to zero.
    """
    if n_classes < 2:
        raise UsageError(f"a simplex needs at least two classes, not {n_classes}")
    dimensions = n_classes - 1
    axes = torch.eye(dimensions, dtype=torch.float64)
    opposite = torch.full((dimensions, 1), (1 - math.sqrt(n_classes)) / dimensions, dtype=torch.float64)
    corners = torch.cat([axes, opposite], dim=1)
    centered = corners - corners.mean(1, keepdim=True)
    return centered / centered.norm(dim=0)


class SimplexResNet18(ResNet18):
    """ResNet-18 whose logits are inner products of its outputs, the last one dropped, with the corners of a simplex.

    The last output exists so that the network has the same parameters as with a classifier that is learned.
    """

    corners: Tensor

    def __init__(self, n_classes: int, *, width: int = 64, channels: int = 3) -> None:
        super().__init__(n_classes, width=width, channels=channels)
        self.register_buffer("corners", simplex(n_classes).to(torch.get_default_dtype()), persistent=False)

    def forward(self, images: Tensor, groups: Groups | None = None, guests: Sequence[Guests] = ()) -> Tensor:
        """Logits (N, n_classes)."""
        outputs = super().forward(images, groups, guests)
        with full_precision(outputs):  # as the classifier
            return outputs[:, :-1] @ self.corners
