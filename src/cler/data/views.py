"""What the network sees of stored pixels: normalized as they are, or after a random augmentation, its view.

A view is a function of a batch of images (N, C, H, W) and the run's generator that gives images of the same shape and
type. It keeps the one rule of all that happens in a step: operations on the whole batch, on its device, every draw from
that generator, nothing decided by the value of a tensor. Black is zero in the images that it is given, be they uint8
pixels or floating numbers. A view that only moves pixels takes these on any scale; one that reads their values is a
`PixelView` and takes them from 0 to 255. A new view is one such function, registered in `VIEWS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from cler.config.registry import VIEWS
from cler.data.strong_views import PixelView, full, light, randaugment

View: TypeAlias = Callable[[Tensor, torch.Generator | None], Tensor]
PADDING = 4
"""Black pixels on every side of an image before it is cropped: it moves by at most this many in each direction."""


def unchanged(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """The images as they are; nothing is drawn."""
    return images


def random_crop(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """Each image shifted by up to 4 pixels in each direction, with black filled in."""
    corners = draw_corners(images, generator)
    return crop_and_flip(images, torch.cat([corners, corners.new_zeros(len(images), 1)], dim=1))


def random_crop_and_flip(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """Each image shifted as by crop, then mirrored left to right in half of the cases."""
    corners = draw_corners(images, generator)  # before the flips: the order of draws is part of a run's numbers
    flips = torch.randint(2, (len(images), 1), generator=generator, device=images.device)
    return crop_and_flip(images, torch.cat([corners, flips], dim=1))


VIEWS.register("none", unchanged)
VIEWS.register("crop", random_crop)
VIEWS.register("crop-flip", random_crop_and_flip)
VIEWS.register("light", light)
VIEWS.register("full", full)
VIEWS.register("randaugment", randaugment)


def draw_corners(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """For each image the top and left of its window in the padded image, (N, 2), uniform."""
    return torch.randint(2 * PADDING + 1, (len(images), 2), generator=generator, device=images.device)


def crop_and_flip(images: Tensor, crops: Tensor) -> Tensor:
    """A window of each image (N, C, H, W), given by its row (top, left, flip) of `crops`, mirrored where flip is 1.

    The image is surrounded by black on every side, and the window is as large as the image was: (PADDING, PADDING, 0)
    is the image itself.
    """
    numbers = torch.arange(max(images.shape), device=images.device)  # once for all axes: each would take a kernel
    samples, planes, rows, columns = (numbers[:size] for size in images.shape)
    top, left, flip = crops.unsqueeze(2).unbind(1)
    rows = top + rows
    columns = left + torch.sub(columns, flip, alpha=images.shape[3] - 1).abs()
    padded = F.pad(images, (PADDING,) * 4)
    return padded[samples[:, None, None, None], planes[:, None, None], rows[:, None, :, None], columns[:, None, None]]


class Views:
    """Turns uint8 pixels into network inputs: one dataset's normalization, one view, one run's generator."""

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        augment: str = "crop-flip",
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.generator = generator
        self.augment = augment
        VIEWS.find(augment)
        wide = [torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1) for values in (mean, std)]
        self._scale = (1 / (255 * wide[1])).to(device, dtype)
        self._shift = (wide[0] / wide[1]).to(device, dtype)

    def plain(self, pixels: Tensor) -> Tensor:
        """Normalized, not augmented: what evaluation and the pretext tasks see."""
        return pixels * self._scale - self._shift

    def view(self, pixels: Tensor, augment: str | None = None) -> Tensor:
        """A new view of pixels, as pixels: the run's own, or the one named."""
        view: View = VIEWS.find(augment or self.augment)
        return view(pixels, self.generator)

    def augmented(self, pixels: Tensor, augment: str | None = None) -> Tensor:
        """A new view of the pixels, normalized after it, so that padding is black and not gray."""
        return self.plain(self.view(pixels, augment))

    def augmented_again(self, images: Tensor) -> Tensor:
        """A new view of images that are normalized already; padding is black here too."""
        if isinstance(VIEWS.find(self.augment), PixelView):
            return self.plain(self.view((images + self._shift) / self._scale))
        return self.view(images + self._shift) - self._shift
