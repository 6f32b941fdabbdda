"""DualNet: a slow net that learns general features by self-supervision, and a fast one that adapts them to the task."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.config.schema import setting
from cler.memory import Reservoir
from cler.methods.base import About, Method, Terms, register
from cler.methods.optimizers import make_optimizer
from cler.methods.setup import Setup
from cler.nets.backbone import Parts
from cler.nets.dualnet import DualNetwork
from cler.nets.modes import evaluating
from cler.regularizers.barlow_twins import barlow_twins_loss
from cler.streams import Batch

CHUNK = 500
"""Stored images whose logits are renewed in one pass; the result does not depend on it."""


@dataclass(frozen=True)
class DualNetOptions:
    """Settings that only DualNet has."""

    temperature: float = setting(2.0, "Temperature τ of DualNet's distillation.", above=0)
    distill: float = setting(15.0, "Weight of the distillation loss (λ_tr).", least=0)
    look_ahead: float = setting(0.05, "Share of the slow phase's change of weights that is kept (β).", least=0, most=1)
    slow_lr: float = setting(0.005, "Learning rate of the slow phase.", above=0)
    slow_steps: int = setting(5, "Steps of the slow phase for each batch of the stream.", least=1, most=1_000_000)
    fast_steps: int = setting(5, "Steps of the fast phase for each batch of the stream.", least=1, most=1_000_000)
    slow_batch: int = setting(32, "Images of the buffer that a slow step learns from.", least=2, most=1_000_000)


def distillation(logits: Tensor, stored: Tensor, temperature: float) -> Tensor:
    """D = (1/C) · Σ_b KL( softmax(ℓ_b/τ) ‖ softmax(o_b/τ) ) from stored logits ℓ to logits o, both (N, C)."""
    new, old = (F.log_softmax(each / temperature, 1) for each in (logits, stored))
    return F.kl_div(new, old, reduction="sum", log_target=True) / logits.shape[1]


@register
class DualNet(Method):
    """For each stream batch a slow phase, then a fast one.

    Slow: a few steps on the Barlow Twins loss of the slow net's features, of which a share β is kept (look-ahead).
    Fast: a few steps of all parameters on L = CE(stream) + CE(replay) + λ_tr · D(replay), without augmentation; stream
    and replay are normalized separately. In the first task there is no replay: the slow phase learns from the stream.
    """

    name = "dualnet"
    about = About(
        title="DualNet", summary="a slow self-supervised net that modulates a fast one, with replay and distillation"
    )
    own_classes = False
    replays = True
    own_repeats = "fast_steps"
    smallest_batch = 2
    Options = DualNetOptions
    own_network = DualNetwork
    options: DualNetOptions
    network: DualNetwork

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        slow = nn.ModuleList([self.network.slow, self.network.projector])
        self.slow_optimizer = make_optimizer("sgd", list(slow.parameters()), self.options.slow_lr)
        self.look_ahead = LookAhead(slow, self.options.look_ahead)

    def make_buffer(self) -> Reservoir:
        """A reservoir that keeps logits with the images."""
        return self.make_reservoir(logits=(self.n_classes,))

    @property
    def recording_key(self) -> Hashable:
        """Every task but the first is learned alike."""
        return self.task == 0

    @property
    def settled(self) -> bool:
        """Whether the buffer holds a whole batch for the slow phase, or is full, and one to replay."""
        return super().settled and self.buffer.filled >= min(self.options.slow_batch, self.buffer.capacity)

    def begin_task(self, task: int) -> None:
        """From the second task on, renew the logits in the buffer."""
        super().begin_task(task)
        if task > 0:
            self.renew_stored_logits()

    @torch.no_grad()
    def renew_stored_logits(self) -> None:
        """Store the logits that the network as it is now gives, in evaluation, for every image of the buffer."""
        with evaluating(self.network):
            renewed = [self.network(self.views.plain(chunk)) for chunk in self.buffer.pixels.split(CHUNK)]
        self.buffer.extra["logits"].copy_(torch.cat(renewed))

    def observe(self, batch: Batch) -> Terms:
        """The slow phase, the fast phase, then offer the batch to the buffer with its logits in the last fast step.

        The terms of the loss that are given back are those of the last fast step.
        """
        self.slow_phase(batch.pixels)
        plain = batch._replace(images=self.views.plain(batch.pixels))
        for _ in range(self.options.fast_steps):
            terms, stream_logits = self.fast_step(plain)
        self.buffer.add(batch.pixels, batch.labels, logits=stream_logits.detach())
        return terms

    def slow_phase(self, stream_pixels: Tensor) -> None:
        """A few steps of the slow net, on images of the buffer from the second task on; then look ahead."""
        self.look_ahead.remember()
        for _ in range(self.options.slow_steps):
            pixels = stream_pixels if self.task == 0 else self.buffer.sample(self.options.slow_batch).pixels
            self.descend({"slow net": self.slow_loss(pixels)}, self.slow_optimizer)
        self.look_ahead.go_back()
        if self.working_copies:
            self.working_copies.refresh()

    def slow_loss(self, pixels: Tensor) -> Tensor:
        """Barlow Twins between the slow net's projections of two crops of each image."""
        two = Parts((len(pixels),) * 2)
        views = torch.cat([self.views.augmented(pixels) for _ in two.sizes])
        projections = self.network.projector(self.network.slow_features(views, two), two)
        return barlow_twins_loss(*projections.split(two.sizes))

    def fast_step(self, batch: Batch) -> tuple[Terms, Tensor]:
        """One step of everything; gives back the loss's terms and the logits of the stream batch before the step."""
        pixels, images, labels = batch
        if self.task == 0:
            (stream_logits,), penalties = self.outputs(images, pixels=pixels, labels=labels)
            terms = {"stream": F.cross_entropy(stream_logits, labels)}
        else:
            replay = self.buffer.sample(self.setup.replay_batch)
            (stream_logits, replay_logits), penalties = self.outputs(
                images,
                self.views.plain(replay.pixels),
                pixels=torch.cat([pixels, replay.pixels]),
                labels=torch.cat([labels, replay.labels]),
            )
            distilled = distillation(replay_logits, replay.extra["logits"], self.options.temperature)
            terms = {
                "stream": F.cross_entropy(stream_logits, labels),
                "replay": F.cross_entropy(replay_logits, replay.labels),
                "distillation": self.options.distill * distilled,
            }
        terms |= penalties
        self.descend(terms)
        return terms, stream_logits


class LookAhead:
    """Keeps a share of the change of a module's weights and statistics: state ← start + β·(state − start)."""

    def __init__(self, module: nn.Module, share: float) -> None:
        self.share = share
        self.state = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
        self.start = [tensor.clone() for tensor in self.state]

    def remember(self) -> None:
        """Remember the starting point."""
        torch._foreach_copy_(self.start, self.state)

    def go_back(self) -> None:
        """Go back to the starting point, except for a share β of the change."""
        torch._foreach_lerp_(self.start, self.state, self.share)
        torch._foreach_copy_(self.state, self.start)
