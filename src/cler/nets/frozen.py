"""Copies of a network as it is at some moment."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from typing import Generic, TypeVar

import torch
from torch import nn

N = TypeVar("N", bound=nn.Module)


class Frozen(Generic[N]):
    """A copy of a network that is never trained, and normalizes by running statistics."""

    network: N

    def __init__(self, network: N) -> None:
        self.network = deepcopy(network).requires_grad_(False).eval()

    @torch.no_grad()
    def become(self, network: N) -> None:
        """Take over the state of another network, in place."""
        mine, theirs = (list(chain(each.parameters(), each.buffers())) for each in (self.network, network))
        torch._foreach_copy_(mine, theirs)
