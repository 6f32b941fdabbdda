"""ER-ACE: replay with an asymmetric cross-entropy, so that new classes do not push old ones away."""

from __future__ import annotations

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from cler.methods.base import About, Method, Terms, register
from cler.methods.setup import Setup
from cler.streams import Batch


def allowed_classes(labels: Tensor, seen: Tensor) -> Tensor:
    """The classes that stay in the stream's softmax, a boolean vector over all of them.

    Those in the batch, the largest label seen so far, and every class beyond it; once the last class has been seen,
    only those in the batch. `seen` already counts this batch.
    """
    classes = torch.arange(len(seen), device=seen.device)
    largest = torch.where(seen, classes, -1).max()
    present = torch.zeros_like(seen).index_fill(0, labels, True)
    return present | ((classes >= largest) & (largest < len(seen) - 1))


def masked_cross_entropy(logits: Tensor, labels: Tensor, allowed: Tensor) -> Tensor:
    """Cross-entropy in which only the allowed classes take part."""
    return F.cross_entropy(logits.masked_fill(~allowed, torch.finfo(logits.dtype).min), labels)


@register
class ErAce(Method):
    """L = CE(stream, over the allowed classes) + CE(replay, over all classes).

    In the first task there is neither mask nor replay. Stream and replay are normalized separately.
    """

    name = "er-ace"
    about = About(title="ER-ACE", summary="replay with an asymmetric cross-entropy on the stream")
    replays = True
    teachable = ("raw", "strong")
    task_free = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.seen = torch.zeros(self.n_classes, dtype=torch.bool, device=setup.device)

    @property
    def recording_key(self) -> Hashable:
        """Every task but the first is learned alike."""
        return self.task == 0

    def observe(self, batch: Batch) -> Terms:
        """One step on stream and replay, then offer the stream batch to the buffer."""
        pixels, images, labels = batch
        self.seen.index_fill_(0, labels, True)
        if self.task == 0:
            (logits,), penalties = self.outputs(images, pixels=pixels, labels=labels, lesson=self.lesson(batch))
            terms = {"stream": F.cross_entropy(logits, labels)}
        else:
            replay = self.buffer.sample(self.setup.replay_batch)
            (stream_logits, replay_logits), penalties = self.outputs(
                images,
                self.views.augmented(replay.pixels),
                pixels=torch.cat([pixels, replay.pixels]),
                labels=torch.cat([labels, replay.labels]),
                lesson=self.lesson(replay, batch),
            )
            terms = {
                "stream": masked_cross_entropy(stream_logits, labels, allowed_classes(labels, self.seen)),
                "replay": F.cross_entropy(replay_logits, replay.labels),
            }
        terms |= penalties
        self.descend(terms)
        self.buffer.add(pixels, labels)
        return terms
