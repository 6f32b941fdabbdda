"""What the network sees of stored pixels: a normalized view, or a randomly cropped and flipped one.

Pure batch operations on the device. Padding is added to raw pixels, before normalization: a padded
pixel is black, not gray.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cler.config.registry import VIEWS


def crop_and_flip(pixels: Tensor, crops: Tensor, padding: int = 4) -> Tensor:
    """Zero-pad, cut a window of the original size, mirror: each image (N, C, H, W) by its row (top, left, flip)."""
    count, channels, height, width = pixels.shape
    device = pixels.device
    top, left, flip = (column.view(-1, 1) for column in crops.unbind(1))
    rows = top + torch.arange(height, device=device)
    columns = torch.arange(width, device=device)
    columns = left + torch.where(flip > 0, width - 1 - columns, columns)
    padded = F.pad(pixels, (padding, padding, padding, padding))
    samples = torch.arange(count, device=device).view(-1, 1, 1, 1)
    planes = torch.arange(channels, device=device).view(1, -1, 1, 1)
    return padded[samples, planes, rows[:, None, :, None], columns[:, None, None, :]]


VIEWS.register("crop-flip", crop_and_flip)


class Views:
    """Turns uint8 pixels into network inputs, with one data set's normalization and one run's generator."""

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        padding: int = 4,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.generator = generator
        self.padding = padding
        wide = [torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1) for values in (mean, std)]
        self._scale = (1 / (255 * wide[1])).to(device, dtype)
        self._shift = (wide[0] / wide[1]).to(device, dtype)

    def plain(self, pixels: Tensor) -> Tensor:
        """Normalized, not augmented: what evaluation and the pretext tasks see."""
        return pixels * self._scale - self._shift

    def augmented(self, pixels: Tensor) -> Tensor:
        """Randomly cropped and flipped, then normalized: what classification trains on."""
        return self.plain(crop_and_flip(pixels, self.draw_crops(len(pixels), pixels.device), self.padding))

    def augmented_again(self, images: Tensor) -> Tensor:
        """Another random crop and flip of images that are normalized already; padding is black here too."""
        crops = self.draw_crops(len(images), images.device)
        return crop_and_flip(images + self._shift, crops, self.padding) - self._shift

    def draw_crops(self, count: int, device: torch.device) -> Tensor:
        """One (top, left, flip) per image, uniform."""
        corners = torch.randint(2 * self.padding + 1, (count, 2), generator=self.generator, device=device)
        flips = torch.randint(2, (count, 1), generator=self.generator, device=device)
        return torch.cat([corners, flips], dim=1)
