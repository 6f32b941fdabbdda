"""A network that makes images from noise, and its losses: what a classifier remembers of images that are gone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.nets.norm import BatchNorm

TINY = 1e-8
SLOPE = 0.2


class Synthesizer(nn.Module):
    """Noise (N, noise) to images (N, channels, height, width): a linear layer, then two doublings of the map."""

    def __init__(self, height: int, width: int, *, noise: int = 1000, channels: int = 3) -> None:
        super().__init__()
        self.height, self.width = height, width
        self.start = math.ceil(height / 4), math.ceil(width / 4)
        """Height and width of the first map."""
        self.linear = nn.Linear(noise, 128 * math.prod(self.start))
        self.bn = nn.BatchNorm2d(128)
        self.conv1, self.bn1 = nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128, eps=0.8)
        self.conv2, self.bn2 = nn.Conv2d(128, 64, 3, padding=1), nn.BatchNorm2d(64, eps=0.8)
        self.conv3, self.bn3 = nn.Conv2d(64, channels, 3, padding=1), nn.BatchNorm2d(channels, affine=False)

    def forward(self, noise: Tensor) -> Tensor:
        """Images whose pixels are normalized over the batch, or by running statistics in evaluation."""
        x = self.bn(self.linear(noise).view(-1, 128, *self.start))
        x = F.leaky_relu(self.bn1(self.conv1(F.interpolate(x, scale_factor=2.0))), SLOPE)
        x = F.leaky_relu(self.bn2(self.conv2(F.interpolate(x, scale_factor=2.0))), SLOPE)
        return self.bn3(self.conv3(x)[..., : self.height, : self.width].tanh())


@torch.no_grad()
def begin_anew(module: nn.Module, generator: torch.Generator | None) -> None:
    """Give a module new weights, in place, drawn as PyTorch draws them."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            for parameter in layer.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()


def blur_kernel(like: Tensor) -> Tensor:
    """5×5 weights of a Gaussian, which add up to one."""
    line = torch.exp(-(((torch.arange(5, device=like.device, dtype=like.dtype) - 2) / 2) ** 2))
    square = line[:, None] * line
    return square / square.sum()


def roughness(images: Tensor) -> Tensor:
    """Mean squared distance of images from themselves blurred."""
    channels = images.shape[1]
    kernel = blur_kernel(images).expand(channels, 1, 5, 5)
    return F.mse_loss(images, F.conv2d(F.pad(images, (2, 2, 2, 2), mode="reflect"), kernel, groups=channels))


def one_sidedness(logits: Tensor) -> Tensor:
    """0 for a batch whose classes are equally likely on average, 1 where one class is certain."""
    mean = F.softmax(logits, dim=1).mean(0).clamp_min(torch.finfo(logits.dtype).tiny)  # 0 would have no logarithm
    return 1 + (mean * mean.log()).sum() / math.log(len(mean)) if len(mean) > 1 else logits.new_zeros(())


def strangeness(maps: Tensor, layer: BatchNorm | nn.modules.batchnorm._BatchNorm) -> Tensor:
    """How far the statistics of a layer's input are from its running ones: a divergence of Gaussians."""
    maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
    places = [0, *range(2, maps.dim())]
    mean, variance = maps.mean(places), maps.var(places, correction=0)
    known_mean, known_variance = layer.running_mean, layer.running_var
    assert known_mean is not None
    assert known_variance is not None
    ratio = (known_variance + (known_mean - mean) ** 2 + TINY) / (variance + TINY)
    return 0.5 * (torch.log((variance + TINY) / (known_variance + TINY)) + ratio - 1).mean()


@contextmanager
def watched(network: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, a pass through the network adds to the list the `strangeness` of the input of each batch norm."""
    found: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs: found.append(strangeness(inputs[0], layer)))
        for layer in network.modules()
        if isinstance(layer, BatchNorm | nn.modules.batchnorm._BatchNorm) and layer.running_var is not None
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
