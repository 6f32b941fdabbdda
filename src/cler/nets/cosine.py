"""A classifier of proxies, one vector for each class: its logits are cosines, divided by a temperature."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from cler.nets.modes import full_precision

TEMPERATURE = 0.09
"""What cosines are divided by; PCR's."""


def unit(vectors: Tensor) -> Tensor:
    """v / (‖v‖ + 1e-6) of each row."""
    return vectors / (vectors.norm(dim=1, keepdim=True) + 1e-6)


class CosineClassifier(nn.Linear):
    """A linear layer without bias whose rows, and what they are multiplied with, count by their direction alone.

    It has the shape of another layer and weights of its own.
    """

    def __init__(self, layer: nn.Linear, n_classes: int, temperature: float = TEMPERATURE) -> None:
        weight = layer.weight
        super().__init__(layer.in_features, n_classes, bias=False, device=weight.device, dtype=weight.dtype)
        self.temperature = temperature

    def forward(self, features: Tensor) -> Tensor:
        """Logits (N, n_classes), in full precision: a small temperature would blow up what bfloat16 rounds away."""
        with full_precision(features):
            return F.linear(unit(features.to(self.weight.dtype)), unit(self.weight)) / self.temperature
