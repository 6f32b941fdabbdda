"""Batch norm fused with what surrounds it in a residual network, and able to normalize parts of a batch separately."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.errors import UsageError
from cler.nets.backbone import Parts
from cler.nets.kernels import MOST_VALUES, gpu_kernels, on_gpu


class BatchNorm(nn.Module):
    """Batch norm of maps that also adds a residual and applies ReLU, with the parameters of `nn.BatchNorm2d`.

    With `parts` each part is normalized by its own statistics and the running ones are updated part after part,
    just as if they had come in passes of their own.
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
        self, x: Tensor, *, residual: Tensor | None = None, relu: bool = False, parts: Parts | None = None
    ) -> Tensor:
        """Normalize, add, rectify: (N, C, H, W) to the same."""
        if self.training:
            _refuse_single_values(x, parts)
        running = (self.running_mean, self.running_var) if self.track_running_stats or not self.training else None
        kernels = kernels_for(x)
        if kernels and self.training:
            return kernels.batch_norm(
                x, residual, self.weight, self.bias, running,
                parts=parts, relu=relu, momentum=self.momentum, eps=self.eps,
            )  # fmt: skip
        if kernels and not torch.is_grad_enabled():
            return kernels.apply_statistics(
                x, residual, self.weight, self.bias, running, relu=relu, eps=self.eps
            )  # fmt: skip
        if parts and self.training:
            moved = [running] * (len(parts.sizes) - parts.silent) + [None] * parts.silent
            pieces = zip(x.split(list(parts.sizes)), moved, strict=True)
            out = torch.cat([self._normalized(piece, statistics) for piece, statistics in pieces])
        else:
            out = self._normalized(x, running)
        if residual is not None:
            out = out + residual
        return F.relu(out) if relu else out

    def _normalized(self, x: Tensor, running: tuple[Tensor, Tensor] | None) -> Tensor:
        mean, variance = running or (None, None)
        return F.batch_norm(x, mean, variance, self.weight, self.bias, self.training, self.momentum, self.eps)


def _refuse_single_values(x: Tensor, parts: Parts | None) -> None:
    """A value alone has no deviation that it could be normalized by."""
    if x.shape[2:] == (1, 1) and 1 in (parts.sizes if parts else (len(x),)):
        raise UsageError(
            "batch norm cannot normalize one image alone where its map is a single pixel: make images larger, or "
            "batch and replay_batch at least 2"
        )


def kernels_for(x: Tensor) -> ModuleType | None:
    """Our own kernels, where they can take this."""
    fits = x.dtype != torch.float64 and x.numel() < MOST_VALUES
    return gpu_kernels("norm_gpu") if on_gpu(x) and fits else None


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Inside, norm layers still normalize by the batch's statistics but leave the running ones alone."""
    tracking: list[Any] = [module for module in network.modules() if getattr(module, "track_running_stats", False)]
    instance_norm = nn.modules.instancenorm._InstanceNorm
    layers = [layer for layer in tracking if not isinstance(layer, instance_norm)]
    others = [(layer, layer._buffers) for layer in tracking if isinstance(layer, instance_norm) and layer.training]
    for layer in layers:
        layer.track_running_stats = False
    for layer, buffers in others:
        layer._buffers = dict.fromkeys(buffers)  # it moves whatever statistics it has, tracking or not
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
        for layer, buffers in others:
            layer._buffers = buffers
