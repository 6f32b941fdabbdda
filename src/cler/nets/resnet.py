"""ResNet-18 for small images, in the split that CLER needs: features up to `layer3`, then `layer4` and classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.nets.conv import Conv2d
from cler.nets.modes import full_precision
from cler.nets.norm import BatchNorm, Groups


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

    def forward(self, x: Tensor, groups: Groups | None = None) -> Tensor:
        """(N, C, H, W) to (N, C', H', W')."""
        return self.bn(self.conv(x), relu=self.relu, groups=groups)


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

    def forward(self, x: Tensor, groups: Groups | None = None) -> Tensor:
        """(N, C, H, W) to (N, C', H', W')."""
        return self.compiled(x, groups) if self.compiled and self.training else self.transform(x, groups)

    def transform(self, x: Tensor, groups: Groups | None = None) -> Tensor:
        """What `forward` computes."""
        residual = x if self.shortcut is None else self.shortcut(x, groups)
        out = self.bn1(self.conv1(x), relu=True, groups=groups)
        return self.bn2(self.conv2(out), residual=residual, relu=True, groups=groups)


class Stage(nn.Sequential):
    """Two blocks; the first may halve the size."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))

    def forward(self, x: Tensor, groups: Groups | None = None) -> Tensor:
        """(N, C, H, W) to (N, C', H/stride, W/stride)."""
        for block in self:
            x = block(x, groups)
        return x


@dataclass
class Guests:
    """Images that go with a batch, in the same convolutions, as far as the network's tap.

    They are normalized apart, and the running statistics never see them.
    """

    images: Tensor
    sizes: tuple[int, ...]
    """Of the parts that are normalized apart."""
    maps: Tensor | None = None
    """What the network has made of them where they left."""


def board(images: Tensor, groups: Groups | None, guests: Sequence[Guests]) -> tuple[Tensor, Groups | None]:
    """The batch that goes through a network, in the layout of its maps, and what it is made up of."""
    if guests:
        own = groups.sizes if groups else (len(images),)
        theirs = [size for each in guests for size in each.sizes]
        groups = Groups((*own, *theirs), guests=len(theirs))
        images = torch.cat([images, *(each.images for each in guests)])
    return images.contiguous(memory_format=torch.channels_last), groups


def leave(maps: Tensor, guests: Sequence[Guests]) -> Tensor:
    """The maps without those of the guests, who get them."""
    if not guests:
        return maps
    counts = [len(each.images) for each in guests]
    own, *theirs = maps.split([len(maps) - sum(counts), *counts])
    for each, their_maps in zip(guests, theirs, strict=True):
        each.maps = their_maps
    return own


class ResNet18(nn.Module):
    """A 3×3 stem without pooling, four stages of two blocks, average pooling over the whole map, a linear classifier.

    `width` is the number of filters of the stem: 64 for CIFAR, 20 for the slim network used on mini-ImageNet. Any
    square input size works.

    A batch may be made of several groups that are normalized apart, and guests may go with it as far as layer3: the
    convolutions then run once over all of them.
    """

    tap, head = "layer3", "layer4"
    """Where CLER's pretext head reads, and what it is a copy of."""
    revision: ClassVar[int] = 1
    """Raised by hand when runs with it come out differently, so that older results are not taken for new ones."""

    def __init__(self, n_classes: int, *, width: int = 64, channels: int = 3) -> None:
        super().__init__()
        self.feature_size = 8 * width
        self.stem = ConvNorm(conv3x3(channels, width), relu=True)
        self.layer1 = Stage(width, width, 1)
        self.layer2 = Stage(width, 2 * width, 2)
        self.layer3 = Stage(2 * width, 4 * width, 2)
        self.layer4 = Stage(4 * width, 8 * width, 2)
        self.classifier = nn.Linear(8 * width, n_classes)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, images: Tensor, groups: Groups | None = None, guests: Sequence[Guests] = ()) -> Tensor:
        """Pooled features (N, 8·width)."""
        x, together = board(images, groups, guests)
        for stage in (self.stem, self.layer1, self.layer2, self.layer3):
            x = stage(x, together)
        return pool(self.layer4(leave(x, guests), groups))

    def forward(self, images: Tensor, groups: Groups | None = None, guests: Sequence[Guests] = ()) -> Tensor:
        """Logits (N, n_classes)."""
        return linear_in_full(self.classifier, self.features(images, groups, guests))


def pool(maps: Tensor) -> Tensor:
    """Average over the whole map, (N, C, H, W) to (N, C), summed in at least single precision."""
    return maps.mean((2, 3), dtype=torch.promote_types(maps.dtype, torch.float32))


def linear_in_full(layer: nn.Linear, features: Tensor) -> Tensor:
    """A linear layer kept out of autocast: logits in bfloat16 would tie, and cost accuracy for no speed."""
    with full_precision(features):
        return F.linear(features, layer.weight, layer.bias)


def forward_apart(network: nn.Module, *batches: Tensor) -> tuple[Tensor, ...]:
    """The network's outputs for several batches, each normalized by its own statistics, in one pass."""
    sizes = tuple(len(batch) for batch in batches)
    return network(torch.cat(batches), Groups(sizes)).split(sizes)


COMPILER = "inductor"
MOST_VARIANTS = 256
"""A block is compiled anew for each shape, and for each way that its batch is made of groups."""


def compile_blocks(*modules: nn.Module) -> None:
    """Have torch.compile fuse what the residual blocks of some modules do between their convolutions, in training."""
    import torch._dynamo  # takes a while to import

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_VARIANTS)
    for module in modules:
        for block in module.modules():
            if isinstance(block, BasicBlock):
                block.compiled = torch.compile(block.transform, backend=COMPILER, dynamic=False)
