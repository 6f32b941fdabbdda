"""DualNet's network: a slow ResNet whose maps modulate, stage by stage, those of a fast and shallow one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.nets.backbone import Backbone, Parts, PretextImages, pool, with_pretext, without_pretext
from cler.nets.conv import Conv2d
from cler.nets.projector import Projector
from cler.nets.resnet import ConvNorm, Stages


class SlowNet(Stages):
    """A 3×3 stem with max-pooling, and the four stages of ResNet-18, whose outputs are h_1 … h_4."""

    def first_maps(self, images: Tensor, parts: Parts | None = None) -> Tensor:
        """What the first stage takes, half the size of the images."""
        return F.max_pool2d(self.stem(images, parts), 3, stride=2, padding=1)

    def forward(self, images: Tensor, parts: Parts | None = None) -> Tensor:
        """The maps of the last stage, h_4."""
        x = self.first_maps(images, parts)
        for stage in self.stages:
            x = stage(x, parts)
        return x


class FastUnit(ConvNorm):
    """u_j: convolution with a bias, batch norm, 2×2 max-pooling that rounds sizes up."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(Conv2d(inputs, outputs, 3, padding=1), relu=False)

    def forward(self, x: Tensor, parts: Parts | None = None) -> Tensor:
        """(N, C, H, W) to (N, C', H/2, W/2)."""
        return F.max_pool2d(super().forward(x, parts), 2, ceil_mode=True)


class DualNetwork(Backbone):
    """Slow and fast net, fused by m_j = ReLU(u_j(m_{j−1})) · h_j with m_0 the image; m_4 is pooled and classified.

    `width` is the number of filters of the first layers. Pretext images leave before the third unit's ReLU. The
    projector serves the slow net's own loss.
    """

    tap, head = "fast.3", "fast.4"
    """Where CLER's pretext head reads (before the ReLU), and what it is a copy of."""

    def __init__(self, n_outputs: int, *, width: int = 20, channels: int = 3) -> None:
        super().__init__()
        self.feature_size = 8 * width
        self.slow = SlowNet(width=width, channels=channels)
        widths = [channels, width, 2 * width, 4 * width, 8 * width]
        self.fast = nn.ModuleDict({str(j): FastUnit(widths[j - 1], widths[j]) for j in range(1, 5)})
        self.projector = Projector(self.feature_size)
        self.classifier = nn.Linear(self.feature_size, n_outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, images: Tensor, parts: Parts | None = None, pretext: Sequence[PretextImages] = ()) -> Tensor:
        """The fused features m_4, pooled, (N, 8·width)."""
        fused, together = with_pretext(images, parts, pretext)
        slow = self.slow.first_maps(fused, together)
        for name, stage in zip(self.fast, self.slow.stages, strict=True):
            fast = self.fast[name](fused, together)  # before the stage, which a pass that ends here does not need
            if f"fast.{name}" == self.tap:
                fast, slow, together = without_pretext(fast, pretext), slow[: len(images)], parts
            slow = stage(slow, together)
            fused = F.relu(fast) * slow
        return pool(fused)

    def slow_features(self, images: Tensor, parts: Parts | None = None) -> Tensor:
        """The slow net's own features h_4, pooled, (N, 8·width)."""
        return pool(self.slow(images.contiguous(memory_format=torch.channels_last), parts))
