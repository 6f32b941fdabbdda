"""ResNet-18 for small images, in the split that CLER needs: features up to `layer3`, then `layer4` and classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cler.nets.backbone import Backbone, Parts, PretextImages, pool, with_pretext, without_pretext
from cler.nets.conv import Conv2d
from cler.nets.norm import BatchNorm


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> Conv2d:
    """A 3×3 convolution that keeps the size but for its stride."""
    return Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class ConvNorm(nn.Module):
    """Convolution and batch norm, with or without ReLU."""

    def __init__(self, conv: Conv2d, *, relu: bool) -> None:
        super().__init__()
        self.conv = conv
        self.bn = BatchNorm(conv.out_channels)
        self.relu = relu

    def forward(self, x: Tensor, parts: Parts | None = None) -> Tensor:
        """(N, C, H, W) to (N, C', H', W')."""
        return self.bn(self.conv(x), relu=self.relu, parts=parts)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    compiled: Callable[..., Tensor] | None = None
    """What `compile_blocks` has made of `transform`, for training."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn1 = BatchNorm(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.bn2 = BatchNorm(outputs)
        self.shortcut: ConvNorm | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = ConvNorm(Conv2d(inputs, outputs, 1, stride=stride, bias=False), relu=False)

    def __getstate__(self) -> dict[str, Any]:
        """What goes into a copy: not `compiled`, which computes with the weights of this block."""
        return {name: value for name, value in vars(self).items() if name != "compiled"}

    def forward(self, x: Tensor, parts: Parts | None = None) -> Tensor:
        """(N, C, H, W) to (N, C', H', W')."""
        return self.compiled(x, parts) if self.compiled and self.training else self.transform(x, parts)

    def transform(self, x: Tensor, parts: Parts | None = None) -> Tensor:
        """What `forward` computes."""
        residual = x if self.shortcut is None else self.shortcut(x, parts)
        out = self.bn1(self.conv1(x), relu=True, parts=parts)
        return self.bn2(self.conv2(out), residual=residual, relu=True, parts=parts)


class Stage(nn.Sequential):
    """Two blocks; the first may halve the size."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))

    def forward(self, x: Tensor, parts: Parts | None = None) -> Tensor:
        """(N, C, H, W) to (N, C', H/stride, W/stride)."""
        for block in self:
            x = block(x, parts)
        return x


class Stages(nn.Module):
    """The 3×3 stem of ResNet-18, which does not pool, and its four stages of two blocks."""

    def __init__(self, *, width: int, channels: int) -> None:
        super().__init__()
        self.stem = ConvNorm(conv3x3(channels, width), relu=True)
        self.layer1 = Stage(width, width, 1)
        self.layer2 = Stage(width, 2 * width, 2)
        self.layer3 = Stage(2 * width, 4 * width, 2)
        self.layer4 = Stage(4 * width, 8 * width, 2)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What follows the stem, in order."""
        return self.layer1, self.layer2, self.layer3, self.layer4


class ResNet18(Backbone, Stages):
    """A 3×3 stem without pooling, four stages of two blocks, average pooling over the whole map, a linear classifier.

    `width` is the number of filters of the stem: 64 for CIFAR, 20 for the slim network used on mini-ImageNet. Images
    of any size and shape work.

    Parts of a batch are normalized separately inside the layers, and pretext images go with it as far as layer3: the
    convolutions run once over all of them.
    """

    tap, head = "layer3", "layer4"
    """Where CLER's pretext head reads, and what it is a copy of."""
    revision: ClassVar[int] = 1
    """Raised by hand when runs with it come out differently, so that older results are not taken for new ones."""

    def __init__(self, n_outputs: int, *, width: int = 64, channels: int = 3) -> None:
        super().__init__(width=width, channels=channels)
        self.feature_size = 8 * width
        self.classifier = nn.Linear(8 * width, n_outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, images: Tensor, parts: Parts | None = None, pretext: Sequence[PretextImages] = ()) -> Tensor:
        """Pooled features (N, 8·width)."""
        x, together = with_pretext(images, parts, pretext)
        for stage in (self.stem, self.layer1, self.layer2, self.layer3):
            x = stage(x, together)
        return pool(self.layer4(without_pretext(x, pretext), parts))


COMPILER = "inductor"
MOST_VARIANTS = 256
"""A block is compiled again for each shape, and for each way that its batch is made of parts."""


def compile_blocks(*modules: nn.Module) -> None:
    """Have torch.compile fuse what the residual blocks of some modules do between their convolutions, in training."""
    import torch._dynamo  # takes a while to import

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_VARIANTS)
    for module in modules:
        for block in module.modules():
            if isinstance(block, BasicBlock):
                block.compiled = torch.compile(block.transform, backend=COMPILER, dynamic=False)
