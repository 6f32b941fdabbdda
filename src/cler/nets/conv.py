"""Convolutions that can work in bfloat16 while their weights stay in single precision."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.nets.kernels import MOST_VALUES, gpu_kernels, has_bfloat16, on_gpu

MOST_PAIRS = 40 * 80
"""Pairs of an input and an output channel, up to which our own kernels are faster than cuDNN's."""
MOST_SEEN = 3 * 80
"""Values in a row of a kernel, over all channels, of which a program of ours has room for the weights."""


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` that uses `working`, a copy of its weight in low precision, where it has been given one."""

    working: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What goes into a copy: not `working`, which only follows the weight that a method trains."""
        return {name: value for name, value in vars(self).items() if name != "working"}

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C', H', W')."""
        weight, stride, padding = self.weight if self.working is None else self.working, self.stride, self.padding
        strided_on_cpu = stride != (1, 1) and x.device.type == "cpu"
        if strided_on_cpu and self.kernel_size == (1, 1) and self.in_channels < 16:
            # with so few channels oneDNN's way back would write where it should not, on large maps or with more threads
            x = x[:, :, :: stride[0], :: stride[1]].contiguous(memory_format=torch.channels_last)
            stride = (1, 1)
        is_pixel = x.shape[-2:] == (1, 1)
        if strided_on_cpu and self.kernel_size == (3, 3) and weight.dtype == torch.bfloat16 and is_pixel:
            # all but the middle of the kernel meets padding, and its gradient would be what memory happened to hold
            weight, stride, padding = weight[:, :, 1:2, 1:2], (1, 1), (0, 0)
        if x.is_cuda and torch.is_autocast_enabled("cuda"):  # here, for our own kernels to see it
            weight = weight.to(torch.get_autocast_dtype("cuda"))
        if kernels := kernels_for(self, x, weight):
            out = kernels.convolve(x.to(weight.dtype), weight, stride[0])
            return out if self.bias is None else out + self.bias.to(out.dtype)[:, None, None]
        return F.conv2d(x, weight, self.bias, stride, padding, self.dilation, self.groups)


def kernels_for(layer: nn.Conv2d, x: Tensor, weight: Tensor) -> ModuleType | None:
    """Our own kernels, where they can take this convolution and are faster."""
    few = layer.in_channels * layer.out_channels <= MOST_PAIRS
    if not few or weight.dtype != torch.bfloat16 or not on_gpu(x) or not has_bfloat16(x.device):
        return None
    taps, stride = layer.kernel_size[0], layer.stride[0]
    simple = (
        layer.kernel_size in ((1, 1), (3, 3))
        and layer.stride in ((1, 1), (2, 2))
        and layer.padding == (taps // 2,) * 2
        and layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and taps * max(layer.in_channels, layer.out_channels) <= MOST_SEEN
    )
    height, width = x.shape[2:]
    pixels, smaller = height * width, ((height - 1) // stride + 1) * ((width - 1) // stride + 1)
    values = len(x) * max(pixels * layer.in_channels, smaller * layer.out_channels)
    return gpu_kernels("conv_gpu") if simple and values < MOST_VALUES else None


class WorkingCopies:
    """bfloat16 copies of the weights of all our convolutions in some modules.

    Autocast would convert each weight in every pass and each gradient back, a kernel at a time; these are converted all
    at once, after each step of the optimizer.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        layers = [layer for module in modules for layer in module.modules() if isinstance(layer, Conv2d)]
        self.weights = [layer.weight for layer in layers]
        self.copies = [each.detach().to(torch.bfloat16).requires_grad_(each.requires_grad) for each in self.weights]
        for layer, copy in zip(layers, self.copies, strict=True):
            layer.working = copy

    @torch.no_grad()
    def gather_gradients(self) -> None:
        """Hand the gradients of the copies to the weights, in addition to what the weights have from a loss on them."""
        gradients, targets = [], []
        own: list[tuple[Tensor, Tensor]] = []
        for weight, copy in zip(self.weights, self.copies, strict=True):
            if copy.grad is not None:
                targets.append(torch.empty_like(weight))
                gradients.append(copy.grad)
                if weight.grad is not None:
                    own.append((targets[-1], weight.grad))
                weight.grad, copy.grad = targets[-1], None
        if targets:
            torch._foreach_copy_(targets, gradients)
        for target, gradient in own:
            target.add_(gradient)

    @torch.no_grad()
    def refresh(self) -> None:
        """Convert the weights again."""
        if self.copies:
            torch._foreach_copy_(self.copies, self.weights)
