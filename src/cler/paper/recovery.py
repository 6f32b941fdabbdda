"""How a network recovers after some of its filters are set to zero (the paper's figure 3c)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.metrics import SCENARIOS, class_and_task_correct
from cler.nets.modes import evaluating
from cler.paper.filters import convolutions


@torch.no_grad()
def drop_filters(network: nn.Module, share: float, generator: torch.Generator) -> None:
    """Set a random share of the filters of every convolution to zero.

    Training may restore them, except where a filter's map after batch norm is nowhere positive: ReLU then lets no
    gradient through to it.
    """
    for layer in convolutions(network).values():
        order = torch.randperm(len(layer.weight), generator=generator, device=layer.weight.device)
        layer.weight[order[: round(share * len(order))]] = 0


def recover(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    tested: tuple[Tensor, Tensor],
    *,
    of_class: Tensor,
    lr: float,
) -> dict[str, list[float]]:
    """Learn batches by plain cross-entropy; returns the accuracy on `tested` before the first and after each, in %.

    `of_class` (C,) is the task of each class.
    """
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    accuracies = [accuracy(network, tested, of_class)]
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
        accuracies.append(accuracy(network, tested, of_class))
    return dict(zip(SCENARIOS, torch.stack(accuracies).T.tolist(), strict=True))


@torch.no_grad()
def accuracy(network: nn.Module, tested: tuple[Tensor, Tensor], of_class: Tensor) -> Tensor:
    """Class- and task-incremental accuracy in percent, on the device; leaves the network in training mode."""
    images, labels = tested
    with evaluating(network):
        right = class_and_task_correct(network(images), labels, of_class)
    return torch.stack([100 * each.double().mean() for each in right])
