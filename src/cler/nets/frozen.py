"""Copies of a network as it is at some moment."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from typing import Generic, TypeVar

import torch
from torch import nn

from cler.nets.conv import Conv2d
from cler.nets.resnet import BasicBlock

N = TypeVar("N", bound=nn.Module)


def copy_of(network: N) -> N:
    """A copy of a network with the same state, in full precision and not compiled."""
    copy = deepcopy(network)
    for layer in copy.modules():
        if isinstance(layer, Conv2d):
            layer.working = None
        if isinstance(layer, BasicBlock):
            layer.compiled = None  # it would still compute with the other network's weights
    return copy


class Frozen(Generic[N]):
    """A copy of a network that is never trained, and normalizes by running statistics."""

    network: N

    def __init__(self, network: N) -> None:
        self.network = copy_of(network).requires_grad_(False).eval()

    @torch.no_grad()
    def become(self, network: N) -> None:
        """Take over the state of another network, in place."""
        mine, theirs = (list(chain(each.parameters(), each.buffers())) for each in (self.network, network))
        torch._foreach_copy_(mine, theirs)
