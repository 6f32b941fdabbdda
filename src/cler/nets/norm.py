"""Batch norm fused with what surrounds it in a residual network, and able to normalise groups of a batch apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BatchNorm(nn.Module):
    """Batch norm of maps that also adds a residual and applies ReLU, with the parameters of `nn.BatchNorm2d`.

    With `groups` (sizes that add up to the batch) each group is normalised by its own statistics and the running ones
    are updated group after group, just as if they had come in passes of their own.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, *, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_features, self.momentum, self.eps = channels, momentum, eps
        self.track_running_stats = True
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(
        self, x: Tensor, *, residual: Tensor | None = None, relu: bool = False, groups: Sequence[int] | None = None
    ) -> Tensor:
        """Normalise, add, rectify: (N, C, H, W) to the same."""
        if groups is None or len(groups) == 1 or not self.training:
            out = self._normalise(x)
        else:
            out = torch.cat([self._normalise(part) for part in x.split(list(groups))])
        if residual is not None:
            out = out + residual
        return F.relu(out) if relu else out

    def _normalise(self, x: Tensor) -> Tensor:
        keep = self.track_running_stats or not self.training
        mean, variance = (self.running_mean, self.running_var) if keep else (None, None)
        return F.batch_norm(x, mean, variance, self.weight, self.bias, self.training, self.momentum, self.eps)


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Inside, batch norm layers still normalise by the batch's statistics but leave the running ones alone."""
    layers = [module for module in network.modules() if getattr(module, "track_running_stats", False)]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
