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
CLASSIFIER = "classifier"
WHOLE, WITH_CLASSIFIER = "all", "all with classifier"
"""Names of the cosine over all parameters but the classifier's, and over all."""


def among(classes: Tensor, position: Tensor) -> Loss:
    """Cross-entropy over these classes (K,) only; `position` (C,) is the place of each class among them."""
    return lambda logits, labels: F.cross_entropy(logits.index_select(1, classes), position[labels])


def mean_gradients(
    network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], losses: dict[str, Loss]
) -> dict[str, Gradient]:
    """The gradient of each loss, averaged over all images."""
    parameters = dict(network.named_parameters())
    sums = {loss: {name: torch.zeros_like(each) for name, each in parameters.items()} for loss in losses}
    count = 0
    for images, labels in batches:
        logits = network(images)
        for name, loss in losses.items():
            total = loss(logits, labels) * len(labels)
            gradients = torch.autograd.grad(total, list(parameters.values()), retain_graph=True)
            torch._foreach_add_(list(sums[name].values()), gradients)
        count += len(labels)
    return {loss: {name: each / count for name, each in gradient.items()} for loss, gradient in sums.items()}


def mean_term(network: nn.Module, terms: Iterable[Tensor]) -> Gradient:
    """The gradient of a loss, averaged over its values; parameters that it does not depend on have none."""
    parameters = dict(network.named_parameters())
    mean = {name: torch.zeros_like(each) for name, each in parameters.items()}
    count = 0
    for term in terms:
        gradients = torch.autograd.grad(term, list(parameters.values()), allow_unused=True)
        for total, gradient in zip(mean.values(), gradients, strict=True):
            total += 0 if gradient is None else gradient
        count += 1
    return {name: each / max(1, count) for name, each in mean.items()}


def added(first: Gradient, second: Gradient) -> Gradient:
    """The gradient of the sum of two losses."""
    return {name: each + second[name] for name, each in first.items()}


def cosines(first: Gradient, second: Gradient) -> dict[str, float]:
    """The cosine of two gradients: over all parameters without the classifier's, over all, and over each part's."""
    parts: dict[str, list[str]] = defaultdict(list)
    for name in first:
        part = name.partition(".")[0]
        parts[WITH_CLASSIFIER].append(name)
        parts[part].append(name)
        if part != CLASSIFIER:
            parts[WHOLE].append(name)
    return {
        part: _cosine([first[name] for name in names], [second[name] for name in names])
        for part, names in parts.items()
    }


def _cosine(first: list[Tensor], second: list[Tensor]) -> float:
    one, other = (torch.cat([each.flatten() for each in tensors]).double() for tensors in (first, second))
    return float(F.cosine_similarity(one, other, dim=0))
