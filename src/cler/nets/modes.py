"""Context managers that change how a network computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Inside, the network is in evaluation mode."""
    network.eval()
    try:
        yield
    finally:
        network.train()


def full_precision(like: Tensor) -> torch.autocast:
    """Inside, nothing on this tensor's device is rounded by autocast."""
    return torch.autocast(like.device.type, enabled=False)
