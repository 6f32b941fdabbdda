"""How many images go through a network at once where it only answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

PIXELS = 2**16
"""Of the images that go through a network together on a CPU, whose caches the maps of more do not fit into: with
hundreds of images in a pass, each takes two to three times as long."""
FEWEST, MOST = 8, 64
"""Images that go through together there, however many pixels they have."""


def images_at_once(shape: Sequence[int], device: torch.device, *, on_gpu: int) -> int:
    """How many images of a shape (C, H, W) to classify in one pass; but for rounding the result does not depend on it.

    `on_gpu` says how many it is on a GPU, which is faster the more there are.
    """
    if device.type != "cpu":
        return on_gpu
    return min(max(PIXELS // (shape[-2] * shape[-1]), FEWEST), MOST)
