"""DER++: replay towards labels, and towards the logits that the network gave when an image was stored."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from cler.config.schema import setting
from cler.memory import Reservoir
from cler.methods.base import About, Method, Terms, register
from cler.streams import Batch


@dataclass(frozen=True)
class DerPPOptions:
    """Settings that only DER++ has."""

    alpha: float = setting(0.3, "Weight of the squared distance to the stored logits (α).", least=0)
    beta: float = setting(0.5, "Weight of the cross-entropy of replayed images (β).", least=0)


@register
class DerPP(Method):
    """L = CE(stream) + α · MSE(draw 1, its stored logits) + β · CE(draw 2), the two draws independent of each other.

    The mean of the squared distance is over images and classes. Stream, draw 1 and draw 2 are normalized separately.
    An image is stored with the logits that it had as an image of the stream, augmented, before the step.
    """

    name = "derpp"
    about = About(title="DER++", summary="replay with labels, and with the logits that images were stored with")
    replays = True
    teachable = ("raw", "strong")
    task_free = True
    Options = DerPPOptions
    options: DerPPOptions

    def make_buffer(self) -> Reservoir:
        """A reservoir that keeps logits with the images."""
        return self.make_reservoir(logits=(self.n_classes,))

    @property
    def recording_key(self) -> Hashable:
        """Every task is learned alike."""
        return None

    def observe(self, batch: Batch) -> Terms:
        """One step on the stream and two draws, then offer the stream batch to the buffer with its logits."""
        pixels, images, labels = batch
        if not self.buffer.filled:
            (stream,), penalties = self.outputs(images, pixels=pixels, labels=labels, lesson=self.lesson(batch))
            terms = {"stream": F.cross_entropy(stream, labels)}
        else:
            first, second = (self.buffer.sample(self.setup.replay_batch) for _ in range(2))
            (stream, draw_1, draw_2), penalties = self.outputs(
                images,
                self.views.augmented(first.pixels),
                self.views.augmented(second.pixels),
                pixels=torch.cat([pixels, first.pixels, second.pixels]),
                labels=torch.cat([labels, first.labels, second.labels]),
                lesson=self.lesson(second, batch),
            )
            terms = {
                "stream": F.cross_entropy(stream, labels),
                "distillation": self.options.alpha * F.mse_loss(draw_1, first.extra["logits"]),
                "replay": self.options.beta * F.cross_entropy(draw_2, second.labels),
            }
        terms |= penalties
        self.descend(terms)
        self.buffer.add(pixels, labels, logits=stream.detach())
        return terms
