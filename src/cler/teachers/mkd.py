"""MKD: momentum knowledge distillation. A slow copy of the network teaches it, and answers together with it.

    L = L_method + CE(S(X̂), y) + λ · ½ [KD(T(X̂), S(X̂)) + KD(T(X̂), S(X))]

where X are the raw images of replay and stream with labels y, X̂ is one strong view of them, S the network and T the
teacher, which begins as a copy. KD is over all classes, at temperature τ. After every step of the optimizer
T ← (1 − α) · T + α · S, over parameters; the running statistics of T move by its own passes. What answers is the mean
of the parameters of S and T, with the running statistics of S.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cler.config.schema import setting
from cler.data.views import Views
from cler.nets.backbone import Backbone
from cler.teachers.base import Lesson, Teacher, register
from cler.teachers.distillation import distillation


@dataclass(frozen=True)
class MkdOptions:
    """Settings of the teacher and of what it teaches; the defaults are its authors'."""

    mkd_rate: float = setting(
        0.01, "Share of the network that the teacher takes over in each step (α).", least=0, most=1
    )
    mkd_weight: float = setting(5.5, "Weight of the mean of both distillation terms (λ).", least=0)
    mkd_temperature: float = setting(4.0, "Temperature of the distillation (τ).", above=0)


@register
class Mkd(Teacher):
    """A slow copy of the network that tells it what to make of strong views and of raw images."""

    name = "mkd"
    title = "MKD"
    summary = "a slow copy of the network teaches it on strong views, and answers together with it"
    teaches = True
    Options = MkdOptions
    options: MkdOptions

    def __init__(self, network: Backbone, options: Any) -> None:
        super().__init__(network, options)
        self.network = deepcopy(network).requires_grad_(False).train()

    def lesson(self, views: Views, pixels: Tensor, labels: Tensor) -> Lesson:
        """Cross-entropy on a strong view, and distillation on it and on the raw images."""
        raw, strong = views.plain(pixels), views.augmented(pixels, "full")
        with torch.no_grad():
            taught = self.network(strong)

        def terms(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            weight, temperature = self.options.mkd_weight / 2, self.options.mkd_temperature
            return {
                "strong cross-entropy": F.cross_entropy(outputs["strong"], labels),
                "strong distillation": weight * distillation(taught, outputs["strong"], temperature),
                "raw distillation": weight * distillation(taught, outputs["raw"], temperature),
            }

        return Lesson(pixels, labels, {"raw": raw, "strong": strong}, terms)

    @torch.no_grad()
    def after_step(self, network: Backbone, task: int) -> None:
        """Move the teacher toward the network."""
        torch._foreach_lerp_(list(self.network.parameters()), list(network.parameters()), self.options.mkd_rate)

    @torch.no_grad()
    def answering(self, network: Backbone) -> Backbone:
        """A new network: halfway between the network and the teacher, with the network's running statistics."""
        halfway = deepcopy(network).requires_grad_(False)
        torch._foreach_lerp_(list(halfway.parameters()), list(self.network.parameters()), 0.5)
        return halfway
