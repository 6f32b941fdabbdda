"""Optimizers by name. A new one is one entry, registered in `OPTIMIZERS`.

All of them take the steps of all parameters at once (`foreach`), on a GPU in one kernel where there is one (`fused`),
and can be recorded in a CUDA graph (`capturable`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cler.config.registry import OPTIMIZERS
from cler.errors import UsageError


@dataclass(frozen=True)
class OptimizerEntry:
    """How an optimizer is built, and what it remembers."""

    build: Callable[..., torch.optim.Optimizer]
    """From parameters, `lr`, `foreach` or `fused`, `capturable` where it counts steps, `weight_decay`, and `momentum`
    where it has one."""
    remembers: frozenset[str]
    """What it keeps of every parameter from step to step, by the names in its state."""
    remembers_with_momentum: frozenset[str] = frozenset()
    """What it also keeps if momentum is above zero."""
    takes_momentum: bool = False
    """Whether it has a momentum."""
    weight_decay: float = 0.0
    """Default of the weight decay."""
    fused: bool = False
    """Whether a GPU has one kernel for its whole step."""

    def state_keys(self, momentum: float) -> frozenset[str]:
        """What it keeps of every parameter that it has moved."""
        return self.remembers | self.remembers_with_momentum if momentum else self.remembers


_MOMENTS = frozenset({"step", "exp_avg", "exp_avg_sq"})

OPTIMIZERS.register(
    "sgd",
    OptimizerEntry(
        torch.optim.SGD, frozenset(), remembers_with_momentum=frozenset({"momentum_buffer"}), takes_momentum=True
    ),
)
OPTIMIZERS.register("adam", OptimizerEntry(torch.optim.Adam, _MOMENTS, fused=True))
OPTIMIZERS.register("adamw", OptimizerEntry(torch.optim.AdamW, _MOMENTS, weight_decay=0.01, fused=True))


def find_optimizer(name: str) -> OptimizerEntry:
    """The optimizer of this name."""
    found: OptimizerEntry = OPTIMIZERS.find(name)
    return found


def make_optimizer(
    name: str,
    parameters: Sequence[nn.Parameter],
    lr: float,
    *,
    momentum: float = 0.0,
    weight_decay: float | None = None,
) -> torch.optim.Optimizer:
    """An optimizer of these parameters, with its own weight decay where none is given; plain SGD is the paper's."""
    entry = find_optimizer(name)
    options: dict[str, Any] = {"weight_decay": entry.weight_decay if weight_decay is None else weight_decay}
    if entry.takes_momentum:
        options["momentum"] = momentum
    elif momentum:
        having = ", ".join(other for other, each in OPTIMIZERS.items() if each.takes_momentum)
        raise UsageError(
            f"{momentum} has no effect with {name}: leave it out, or use the optimizer {having}", "sgd_momentum"
        )
    if "step" in entry.remembers:
        options["capturable"] = parameters[0].is_cuda
    options["fused" if entry.fused and parameters[0].is_cuda else "foreach"] = True
    return entry.build(parameters, lr=lr, **options)
