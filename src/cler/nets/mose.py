"""MOSE's network: ResNet-18 with an expert after each of its four stages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cler.nets.backbone import Backbone, Parts, PretextImages, pool, with_pretext, without_pretext
from cler.nets.conv import Conv2d
from cler.nets.norm import BatchNorm
from cler.nets.resnet import Stages

PROJECTION = 128
"""Width of what the contrastive loss compares."""


def depthwise(channels: int, stride: int = 1) -> Conv2d:
    """A 3×3 convolution of each channel by itself."""
    return Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False)


class Down(nn.Module):
    """Two depthwise-separable convolutions, each with batch norm and ReLU; the first halves the size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.depth1, self.point1 = depthwise(inputs, 2), Conv2d(inputs, inputs, 1, bias=False)
        self.bn1 = BatchNorm(inputs)
        self.depth2, self.point2 = depthwise(inputs), Conv2d(inputs, outputs, 1, bias=False)
        self.bn2 = BatchNorm(outputs)

    def forward(self, x: Tensor, parts: Parts | None = None) -> Tensor:
        """(N, C, H, W) to (N, C', H/2, W/2)."""
        x = self.bn1(self.point1(self.depth1(x)), relu=True, parts=parts)
        return self.bn2(self.point2(self.depth2(x)), relu=True, parts=parts)


def doubled(x: Tensor, axis: int) -> Tensor:
    """Maps scaled to twice their size along an axis, linearly; repeatable to the bit on a GPU, unlike `interpolate`."""
    first, others, last = x.narrow(axis, 0, 1), x.shape[axis] - 1, x.narrow(axis, x.shape[axis] - 1, 1)
    before = torch.cat([first, x.narrow(axis, 0, others)], axis)
    after = torch.cat([x.narrow(axis, 1, others), last], axis)
    return torch.stack([0.25 * before + 0.75 * x, 0.75 * x + 0.25 * after], axis + 1).flatten(axis, axis + 1)


class Attention(Down):
    """What a map is multiplied by, from 0 to 1: made at half its size, and scaled up."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels)
        self.bn = BatchNorm(channels)

    def forward(self, x: Tensor, parts: Parts | None = None) -> Tensor:
        """(N, C, H, W) to the same."""
        half = self.bn(super().forward(x, parts), relu=True, parts=parts)
        return doubled(doubled(half, 2), 3)[:, :, : x.shape[2], : x.shape[3]].sigmoid()


class Expert(nn.Module):
    """Reads the map of a stage, `halvings` stages before the last: attention, then a `Down` for each of those stages.

    Its classifier and its projector read the features.
    """

    def __init__(self, channels: int, halvings: int, n_outputs: int) -> None:
        super().__init__()
        self.attention = Attention(channels) if halvings else None
        self.align = nn.ModuleList([Down(channels << step, channels << (step + 1)) for step in range(halvings)])
        self.classifier = nn.Linear(channels << halvings, n_outputs)
        self.projector = nn.Linear(channels << halvings, PROJECTION)

    def forward(self, x: Tensor, parts: Parts | None = None) -> Tensor:
        """Features (N, 8·width) of maps (N, C, H, W)."""
        if self.attention is not None:
            x = self.attention(x, parts) * x
        for down in self.align:
            x = down(x, parts)
        return pool(x)


class MoseNetwork(Backbone, Stages):
    """ResNet-18 with four experts; as one network it has the features and the classifier of the last.

    `width` is the number of filters of the stem. The adapter serves the distillation between experts.
    """

    tap, head = "layer3", "layer4"
    """Where CLER's pretext head reads, and what it is a copy of."""

    def __init__(self, n_outputs: int, *, width: int = 64, channels: int = 3) -> None:
        super().__init__(width=width, channels=channels)
        self.feature_size = 8 * width
        self.expert = nn.ModuleList([Expert(width << number, 3 - number, n_outputs) for number in range(4)])
        self.adapter = nn.Linear(self.feature_size, self.feature_size)
        for layer in self.modules():
            if isinstance(layer, Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def classifier(self) -> nn.Linear:  # type: ignore[override]
        """The classifier of the last expert."""
        return self.expert[-1].classifier  # type: ignore[return-value]

    def features(self, images: Tensor, parts: Parts | None = None, pretext: Sequence[PretextImages] = ()) -> Tensor:
        """The last expert's features (N, 8·width)."""
        return self.experts(images, parts, pretext, only_last=True)[:, -1]

    def experts(
        self,
        images: Tensor,
        parts: Parts | None = None,
        pretext: Sequence[PretextImages] = (),
        *,
        only_last: bool = False,
    ) -> Tensor:
        """The features of all experts (N, 4, 8·width), or of the last one (N, 1, 8·width)."""
        x, together = with_pretext(images, parts, pretext)
        x, features = self.stem(x, together), []
        for stage, expert in zip(self.stages, self.expert, strict=True):
            x = stage(x, together)
            if stage is self.layer3:
                x, together = without_pretext(x, pretext), parts
            if not only_last or stage is self.layer4:
                features.append(expert(x[: len(images)], parts))
        return torch.stack(features, 1)
