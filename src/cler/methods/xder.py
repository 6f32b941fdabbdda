"""X-DER: replay of stored logits that are kept up to date, and margins between past, present and future classes.

    L = L_stream + L_mse + L_ce + L_past + L_future

where the options `alpha`, `beta`, `gamma`, `eta` and `margin` are α, β, γ, η and m. This is the variant with a fixed
simplex as classifier.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.data.stream import Batch
from cler.errors import UsageError, unknown
from cler.memory.quota import QuotaMemory, Recollection
from cler.methods.base import Method, Setup, register
from cler.nets import forward_apart
from cler.nets.norm import frozen_statistics
from cler.nets.simplex import SimplexResNet18

VARIANTS = ("text", "released")


@dataclass(frozen=True)
class XDerOptions:
    """What only X-DER has."""

    alpha: float = 0.8
    """Weight of the squared distance to the stored logits."""
    beta: float = 0.8
    """Weight of the cross-entropy of replayed samples."""
    gamma: float = 0.85
    """What logits written over stored ones may reach, as a share of the true class's logit."""
    eta: float = 0.1
    """Weight of both margin constraints."""
    margin: float = 0.3
    """How far the constraints keep the classes apart."""
    variant: str = "text"
    """What CLER gets of the stream: 'text', the raw images as in the paper's text; 'released', as in the paper's code
    the augmented images, normalised twice."""

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma", "eta", "margin"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} must not be negative, not {value}")
        if self.variant not in VARIANTS:
            raise unknown("variant of xder", self.variant, VARIANTS)


def overwrite_head(stored: Tensor, outputs: Tensor, labels: Tensor, head: slice, gamma: float) -> Tensor:
    """Stored logits (N, C) with new outputs in place of one head.

    Where the largest of these exceeds the true class's stored logit, they are scaled to bring it to `gamma` times that
    logit; if the two differ in sign, so do the outputs before and after.
    """
    truth = stored.gather(1, labels.unsqueeze(1))
    new = outputs[:, head]
    largest = new.max(1, keepdim=True).values
    new = torch.where(largest > truth, new * (gamma * truth / largest), new)
    return torch.cat([stored[:, : head.start], new, stored[:, head.stop :]], dim=1)


def past_violations(logits: Tensor, present: slice, margin: float) -> Tensor:
    """By how much each sample's most probable past class comes too close to its most probable present one, (N,).

    Only the present class learns from it.
    """
    probabilities = logits[:, : present.stop].softmax(1)
    past = probabilities[:, : present.start].detach().max(1).values
    return past + margin - probabilities[:, present].max(1).values


def future_violations(logits: Tensor, labels: Tensor, present: slice, margin: float) -> Tensor:
    """By how much each sample's largest future logit comes too close to the largest of its own task, (N,)."""
    size = present.stop - present.start
    by_task = logits.unflatten(1, (-1, size)).max(2).values
    own = by_task.gather(1, (labels // size).unsqueeze(1)).squeeze(1)
    future = by_task[:, present.stop // size :].max(1).values
    return future + margin - own


def mean_of_positive(violations: Tensor) -> Tensor:
    """The mean of those above zero; zero if there are none."""
    positive = violations > 0
    return violations.where(positive, 0.0).sum() / positive.sum().clamp(min=1)


def seen_before(slots: Tensor) -> Tensor:
    """Which entries repeat an earlier one."""
    return (slots.unsqueeze(0) == slots.unsqueeze(1)).tril(-1).any(1)


@register
class XDer(Method):
    """Two draws from a class-balanced memory, one towards its stored logits, one towards its labels.

    The memory is filled at the end of each task, with a second look at the task's images. From then on the stored
    logits of classes that come later are replaced, now and then, by what the network has made of them since.
    """

    name = "xder"
    title = "X-DER"
    summary = "replay of logits that are kept up to date, with margins between past, present and future"
    replays = True
    Options = XDerOptions
    memory: QuotaMemory  # type: ignore[assignment]

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.memory = QuotaMemory(
            setup.buffer,
            setup.image_shape,
            self.n_classes,
            dtype=next(self.network.parameters()).dtype,
            generator=setup.generator,
            device=setup.device,
        )

    @classmethod
    def make_network(cls, n_classes: int, *, width: int, channels: int) -> nn.Module:
        """ResNet-18 with a simplex for a classifier."""
        return SimplexResNet18(n_classes, width=width, channels=channels)

    @property
    def settled(self) -> bool:
        """The memory's size never changes during a task."""
        return True

    @property
    def present(self) -> slice:
        """The classes of this task: its head. Past ones come before, future ones after."""
        size = self.setup.classes_per_task
        return slice(self.task * size, (self.task + 1) * size)

    @property
    def present_and_future(self) -> slice:
        """The classes of this task and of those to come."""
        return slice(self.present.start, self.n_classes)

    def observe(self, batch: Batch) -> Tensor:
        """One step on the stream and, from the second task on, on two draws from the memory."""
        loss = self.loss_without_replay(batch) if self.task == 0 else self.loss_with_replay(batch)
        self.descend(loss)
        return loss

    def loss_without_replay(self, batch: Batch) -> Tensor:
        """L_stream + L_future, in the first task."""
        logits = self.network(batch.images)
        loss = self.stream_loss(logits, batch.labels) + self.future_loss(self.future_violations(logits, batch.labels))
        return loss + self.regularization(self.pretext_pixels(batch), batch.images)

    def loss_with_replay(self, batch: Batch) -> Tensor:
        """All terms; the memory's logits are brought up to date on the way."""
        replay = self.sample_twice()
        replay_images = self.views.augmented(replay.pixels)
        stream, draw_1, draw_2 = forward_apart(self.network, batch.images, *replay_images.chunk(2))
        loss = self.stream_loss(stream, batch.labels)
        loss = loss + self.options.alpha * F.mse_loss(draw_1, replay.logits.chunk(2)[0])
        loss = loss + self.options.beta * F.cross_entropy(draw_2[:, : self.present.start], replay.labels.chunk(2)[1])

        replayed, repeated = torch.cat([draw_1, draw_2]), seen_before(replay.slots)
        self.update_memory(replay, replayed.detach(), repeated)
        loss = loss + self.options.eta * mean_of_positive(past_violations(stream, self.present, self.options.margin))
        in_stream = self.future_violations(stream, batch.labels)
        in_replay = self.future_violations(replayed, replay.labels).masked_fill(repeated, 0.0)
        loss = loss + self.future_loss(torch.cat([in_stream, in_replay]))

        pixels = torch.cat([self.pretext_pixels(batch), replay.pixels])
        images = torch.cat([batch.images, replay_images])
        # stream and replay apart; within replay no regulariser minds the order
        return loss + self.regularization(pixels, images, groups=(len(batch.images), len(replay_images)))
