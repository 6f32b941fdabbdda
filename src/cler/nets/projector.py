"""The projector of Barlow Twins: features to the space where two views of an image are compared."""

from __future__ import annotations

from torch import Tensor, nn

from cler.nets.backbone import Parts, linear_in_full
from cler.nets.norm import BatchNorm


class Projector(nn.Module):
    """Linear, batch norm, ReLU, linear, from `size` to `size`; neither linear layer has a bias."""

    def __init__(self, size: int, hidden: int = 256) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size, hidden, bias=False)
        self.bn = BatchNorm(hidden)
        self.fc2 = nn.Linear(hidden, size, bias=False)

    def forward(self, features: Tensor, parts: Parts | None = None) -> Tensor:
        """(N, size) to the same."""
        hidden = linear_in_full(self.fc1, features).unflatten(1, (-1, 1, 1))  # as maps of one pixel
        return linear_in_full(self.fc2, self.bn(hidden, relu=True, parts=parts).flatten(1))
