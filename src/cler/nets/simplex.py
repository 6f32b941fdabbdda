"""A classifier whose class vectors are fixed: the corners of a regular simplex, all equally far from each other."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cler.errors import UsageError
from cler.nets.backbone import FullLinear
from cler.nets.modes import full_precision


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


class SimplexClassifier(FullLinear):
    """A linear layer, its last output dropped, whose logits are inner products with the corners of a simplex.

    The last output exists so that there are as many parameters as in a classifier that is learned; they are those of
    the layer that this one is made of.
    """

    corners: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        corners = simplex(layer.out_features).to(layer.weight)
        self.register_buffer("corners", corners, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (N, out_features)."""
        outputs = super().forward(features)
        with full_precision(outputs):
            return outputs[:, :-1] @ self.corners
