"""Importance and redundancy of a network's filters (the paper's figures 3a and 3b)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Scores = dict[str, Tensor]
"""A score for each parameter, by the name of its convolution."""


def convolutions(network: nn.Module) -> dict[str, nn.Conv2d]:
    """The convolutions of a network by name, in order of depth."""
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Conv2d)}


def importance(network: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> Scores:
    """The importance of each parameter of a convolution for the cross-entropy over all classes: I = (g·w)².

    g is the gradient on a batch, w the parameter; I is averaged over the batches.
    """
    weights = {name: layer.weight for name, layer in convolutions(network).items()}
    scores = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for images, labels in batches:
        loss = F.cross_entropy(network(images), labels)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        for score, gradient, weight in zip(scores.values(), gradients, weights.values(), strict=True):
            score.addcmul_(gradient * weight.detach(), gradient * weight.detach(), value=1 / len(batches))
    return scores


def important_share(scores: Scores, *, filters: bool = False) -> dict[str, float]:
    """For each convolution, the share of its parameters, or filters, of more than its mean importance, in %."""
    counted = {name: score.sum((1, 2, 3)) if filters else score for name, score in scores.items()}
    return {name: 100 * float((score > score.mean()).double().mean()) for name, score in counted.items()}


def redundancy(network: nn.Module, share: float = 0.3) -> dict[str, dict[str, float]]:
    """For each convolution, how far its most central filters are from its other filters.

    The most central filters are the `share` with the smallest sum of Euclidean distances to all filters, which pruning
    by the geometric median removes. `l1` and `l2` are their mean distances to all filters; `relative` is `l1` divided
    by the mean norm of a filter, since smaller weights alone make distances smaller.
    """
    distances = {}
    for name, layer in convolutions(network).items():
        filters = layer.weight.detach().flatten(1).double()
        euclidean, manhattan = torch.cdist(filters, filters), torch.cdist(filters, filters, p=1)
        central = euclidean.sum(1).argsort()[: max(1, round(share * len(filters)))]
        l1, l2 = float(manhattan[central].mean()), float(euclidean[central].mean())
        distances[name] = {"l1": l1, "l2": l2, "relative": l1 / float(filters.abs().sum(1).mean())}
    return distances
