"""The similarity of two tasks' gradients: their cosine (the paper's figure 1a)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
Gradient = dict[str, Tensor]
"""A gradient for each parameter, by the parameter's name."""


def among(classes: Tensor, position: Tensor) -> Loss:
    """Cross-entropy over these classes (K,) only; `position` (C,) is the place of each class among them."""
    return lambda logits, labels: F.cross_entropy(logits.index_select(1, classes), position[labels])


def mean_gradients(
    network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], losses: dict[str, Loss]
) -> dict[str, Gradient]:
    """The gradient of each loss, averaged over all images, for all parameters except the classifier's."""
    shared = {name: each for name, each in network.named_parameters() if not name.startswith("classifier.")}
    sums = {loss: {name: torch.zeros_like(each) for name, each in shared.items()} for loss in losses}
    count = 0
    for images, labels in batches:
        logits = network(images)
        for name, loss in losses.items():
            total = loss(logits, labels) * len(labels)
            gradients = torch.autograd.grad(total, list(shared.values()), retain_graph=True)
            torch._foreach_add_(list(sums[name].values()), gradients)
        count += len(labels)
    return {loss: {name: each / count for name, each in gradient.items()} for loss, gradient in sums.items()}


def cosines(first: Gradient, second: Gradient) -> dict[str, float]:
    """The cosine of two gradients: over all parameters, and over those of each part of the network."""
    parts: dict[str, list[str]] = defaultdict(list)
    for name in first:
        parts["all"].append(name)
        parts[name.partition(".")[0]].append(name)
    return {
        part: _cosine([first[name] for name in names], [second[name] for name in names])
        for part, names in parts.items()
    }


def _cosine(first: list[Tensor], second: list[Tensor]) -> float:
    one, other = (torch.cat([each.flatten() for each in tensors]).double() for tensors in (first, second))
    return float(F.cosine_similarity(one, other, dim=0))
