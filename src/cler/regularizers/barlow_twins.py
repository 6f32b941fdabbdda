"""CSSL by Barlow Twins: two views of an image should have equal features, and no two features equal content.

    L_r = λ_r · ( Σ_d (C_dd − 1)² + 0.002 · Σ_{d≠e} C_de² ),    C = z_aᵀ z_b / N

z_a, z_b are the projected features of two views, each dimension standardized over the batch; `weight` is λ_r.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cler.data.views import Views
from cler.nets.backbone import Parts
from cler.nets.modes import full_precision
from cler.nets.projector import Projector
from cler.regularizers.base import Entry, Regularizer, register

OFF_DIAGONAL = 0.002
"""Weight of the correlations between different dimensions."""
DEAD = 1e-6
"""A dimension with a smaller deviation counts as constant."""


def standardized(projections: Tensor) -> Tensor:
    """Each dimension with mean 0 and sample deviation 1 over the batch, (N, D); one that does not vary becomes 0."""
    deviation = projections.std(0)
    return (projections - projections.mean(0)) / deviation.masked_fill(deviation < DEAD, 1.0)


def barlow_twins_loss(first: Tensor, second: Tensor) -> Tensor:
    """The unweighted loss between the projections (N, D) of two views, in at least single precision."""
    with full_precision(first):
        correlations = standardized(first).T @ standardized(second) / len(first)
    diagonal = correlations.diagonal()
    off_diagonal = correlations.square().sum() - diagonal.square().sum()
    return (diagonal - 1).square().sum() + OFF_DIAGONAL * off_diagonal


class BarlowTwins(Regularizer):
    """The Barlow Twins loss on the pooled features of one of our networks.

    Args:
        network: has `feature_size` and `features(images, parts)`.
        views: crop and flip, as the method's own images are.
        weight: λ_r.

    The first view is the batch as the method augmented it, the second another crop and flip of the same images. Each
    view has a pass of its own, normalized by its own statistics, and the running statistics see both.
    """

    moves_statistics = True

    def __init__(self, network: nn.Module, views: Views, *, weight: float = 1.0) -> None:
        super().__init__()
        self.views = views
        self.weight = weight
        self.projector = Projector(int(network.feature_size))  # type: ignore[arg-type]

    def loss(
        self, network: nn.Module, raw: Tensor, augmented: Tensor, labels: Tensor, parts: Parts | None = None
    ) -> Tensor:
        """The weighted loss over the whole batch, whatever its parts."""
        two = Parts((len(augmented), len(raw)))
        views = torch.cat([augmented, self.views.augmented_again(raw)])
        features = network.features(views, two)  # type: ignore[operator]
        first, second = self.projector(features, two).split(two.sizes)
        return self.weight * barlow_twins_loss(first, second)


def _on_our_network(
    network: nn.Module, *, weight: float, views: Views, generator: torch.Generator | None = None
) -> BarlowTwins:
    """The regularizer as the command line builds it; the views draw from the run's generator themselves."""
    return BarlowTwins(network, views, weight=weight)


register(
    Entry(
        name="barlow-twins",
        title="CSSL",
        summary="CSSL: Barlow Twins between two crops of an image",
        build=_on_our_network,
        weight=0.01,  # the loss is a sum over dimensions, not a mean
        smallest_batch=2,
    )
)
