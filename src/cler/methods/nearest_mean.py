"""Nearest class mean: an image belongs to the class whose images in the buffer have, on average, the nearest features.

Features and means are scaled to unit length. The means are those of the network as it is when it is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cler.methods.base import Method
from cler.nets.modes import full_precision

CHUNK = 500
"""Stored images whose features are computed in one pass; the result does not depend on it."""


def nearest_mean(method: Method) -> Callable[[Tensor], Tensor]:
    """In place of the method's `logits`, while it answers: minus the squared distance to each class's mean, (N, C).

    It is −∞ for classes that have no image in the buffer.
    """
    pixels, labels = method.buffer.stored()
    features = [unit_features(method, method.views.plain(chunk)) for chunk in pixels.split(CHUNK)]
    means, absent = class_means(torch.cat(features), labels, method.n_classes)

    def logits(images: Tensor) -> Tensor:
        distances = squared_distances(unit_features(method, images), means)
        return (-distances).masked_fill(absent, -math.inf)

    return logits


def unit_features(method: Method, images: Tensor) -> Tensor:
    """Features of normalized images, of unit length, in at least single precision."""
    features = method.network.features(images)
    return F.normalize(features if features.dtype == torch.float64 else features.float())


def class_means(features: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of each class (..., C, D), of unit length, from features (..., N, D); and who has none, (C,)."""
    of_class = labels == torch.arange(n_classes, device=labels.device).unsqueeze(1)
    with full_precision(features):  # a product, since sums by index come out differently on a GPU each time
        sums = of_class.to(features.dtype) @ features
    return F.normalize(sums, dim=-1), ~of_class.any(1)


def squared_distances(features: Tensor, means: Tensor) -> Tensor:
    """‖f − m‖² of features (..., N, D) and means (..., C, D): (..., N, C)."""
    with full_precision(features):
        products = features @ means.mT
    return features.square().sum(-1, keepdim=True) - 2 * products + means.square().sum(-1).unsqueeze(-2)
