"""From the terms of a loss to its gradients, and to what is told of it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from cler.errors import UsageError
from cler.nets.modes import full_precision


class Gradients(dict[Tensor, Tensor]):
    """Gradients by parameter; that of a parameter which the loss does not reach is zero."""

    def __missing__(self, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The loss that these are the terms of: added in their order."""
    if not isinstance(terms, Mapping):
        raise UsageError(f"the terms of a loss have names, as {{'replay': loss}}: a {type(terms).__name__} has none")
    for name, term in terms.items():
        if not isinstance(term, Tensor):
            raise UsageError(f"the terms of a loss are tensors: {name} is a {type(term).__name__}")
        if term.dim():
            raise UsageError(f"the terms of a loss are scalars: {name} has shape {tuple(term.shape)}; take its mean")
    return reduce(operator.add, terms.values())


def detached(terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values of these terms, without what is needed for their gradients."""
    return {name: term.detach() for name, term in terms.items()}


def mean_terms(steps: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each term over several steps, which all have the same terms."""
    return {name: torch.stack([terms[name] for terms in steps]).mean() for name in steps[0]}


def backward(loss: Tensor, *, retain_graph: bool = False) -> None:
    """Gradients of a loss, out of autocast, or what was kept out of it would be rounded on the way back."""
    with full_precision(loss):
        loss.backward(retain_graph=retain_graph)
