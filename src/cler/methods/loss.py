"""From the terms of a loss to its gradients."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce

from torch import Tensor

from cler.nets.modes import full_precision


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The loss that these are the terms of: added in their order."""
    return reduce(operator.add, terms.values())


def backward(loss: Tensor) -> None:
    """Gradients of a loss, out of autocast, or what was kept out of it would be rounded on the way back."""
    with full_precision(loss):
        loss.backward()
