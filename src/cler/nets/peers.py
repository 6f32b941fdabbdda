"""Networks of one kind that are trained side by side, and answer together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cler.nets.backbone import Backbone, Parts, PretextImages


class Peers(Backbone):
    """Several networks as one: its outputs are the mean of theirs, its features theirs side by side.

    Pretext images that go through it as a whole go through the first; each peer can also be passed alone.
    """

    def __init__(self, networks: Sequence[Backbone]) -> None:
        super().__init__()
        self.peers = nn.ModuleList(networks)
        first = networks[0]
        self.tap, self.head = f"peers.0.{first.tap}", f"peers.0.{first.head}"
        self.feature_size = sum(each.feature_size for each in networks)

    @property
    def members(self) -> tuple[Backbone, ...]:
        """The networks that are trained side by side."""
        return tuple(self.peers)  # type: ignore[arg-type]

    @property
    def classifier(self) -> nn.Linear:  # type: ignore[override]
        """The mean of the peers' last layers, as one layer from all their features; a copy."""
        layers = [each.classifier for each in self.members]
        biased = layers[0].bias is not None
        joined = nn.Linear(self.feature_size, layers[0].out_features, bias=biased, device="meta")
        joined.weight = nn.Parameter(torch.cat([each.weight for each in layers], dim=1) / len(layers))
        if biased:
            joined.bias = nn.Parameter(torch.stack([each.bias for each in layers]).mean(0))
        return joined

    def features(self, images: Tensor, parts: Parts | None = None, pretext: Sequence[PretextImages] = ()) -> Tensor:
        """The features of all peers, (N, feature_size)."""
        first, *others = self.members
        theirs = [each.features(images, parts) for each in others]
        return torch.cat([first.features(images, parts, pretext), *theirs], 1)

    def forward(self, images: Tensor, parts: Parts | None = None, pretext: Sequence[PretextImages] = ()) -> Tensor:
        """The mean of the peers' outputs, (N, n_outputs)."""
        first, *others = self.members
        theirs = [each(images, parts) for each in others]
        return torch.stack([first(images, parts, pretext), *theirs]).mean(0)

    def use(self, generator: torch.Generator | None) -> None:
        """Have all peers draw from this generator."""
        for each in self.members:
            each.use(generator)
