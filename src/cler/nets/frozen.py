"""A network as it was at some moment."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from typing import Generic, TypeVar

import torch
from torch import nn

from cler.nets.conv import Conv2d

N = TypeVar("N", bound=nn.Module)


class Frozen(Generic[N]):
    """A copy of a network that is never trained, and normalises by running statistics."""

    network: N

    def __init__(self, network: N) -> None:
        self.network = deepcopy(network).requires_grad_(False).eval()
        for layer in self.network.modules():
            if isinstance(layer, Conv2d):
                layer.working = None

    @torch.no_grad()
    def become(self, network: N) -> None:
        """Take over the state of another network, in place."""
        mine, theirs = (list(chain(each.parameters(), each.buffers())) for each in (self.network, network))
        torch._foreach_copy_(mine, theirs)
