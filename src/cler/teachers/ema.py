"""EMA: a moving average of the network over its steps, which answers in the network's place.

After every step of the optimizer, average ← m · average + (1 − m) · network, over weights, biases and the running
statistics of batch norm. Training never sees the average.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cler.config.schema import setting
from cler.nets.backbone import Backbone
from cler.teachers.base import Teacher, register


@dataclass(frozen=True)
class EmaOptions:
    """Settings of the average.

    It spans about 1 / (1 − m) steps, which should be far fewer than a task has: with 500 steps 0.99 is good, with 100
    steps 0.9. In a stream that does not say where tasks begin, the first one ends once there is something to replay.
    """

    ema_momentum: float = setting(0.99, "Share of the average that is kept in each step (m).", least=0, most=1)
    ema_first_momentum: float = setting(
        0.9, "Share of the average that is kept in each step of the first task.", least=0, most=1
    )


@register
class Ema(Teacher):
    """An exponential moving average of the whole network, which answers in evaluation."""

    name = "ema"
    title = "EMA"
    summary = "a moving average of the network answers in its place"
    Options = EmaOptions

    def __init__(self, network: Backbone, options: Any) -> None:
        super().__init__(network, options)
        self.average = deepcopy(network).requires_grad_(False)

    @classmethod
    def advice(cls, options: Any, steps: int) -> Iterator[str]:
        """An average over much of a task answers for what the network was before it."""
        momentum = options.ema_momentum
        if momentum < 1 and 1 / (1 - momentum) > steps / 2:
            yield (
                f"ema_momentum {momentum} averages over about {1 / (1 - momentum):.0f} steps, and a task has {steps}: "
                f"try {max(0.0, 1 - 10 / steps):.2g}"
            )

    def recording_key(self, task: int) -> Hashable:
        """Whether this is the first task, which has a momentum of its own."""
        return task == 0

    @torch.no_grad()
    def after_step(self, network: Backbone, task: int) -> None:
        """Move the average toward the network."""
        momentum = self.options.ema_first_momentum if task == 0 else self.options.ema_momentum
        torch._foreach_lerp_(list(averaged(self.average)), list(averaged(network)), 1 - momentum)

    def answering(self, network: Backbone) -> Backbone:
        """The average of the network."""
        return self.average


def averaged(network: nn.Module) -> Iterator[Tensor]:
    """What an average is taken of: parameters and running statistics, but not what counts steps."""
    yield from network.parameters()
    yield from (buffer for buffer in network.buffers() if buffer.is_floating_point())
