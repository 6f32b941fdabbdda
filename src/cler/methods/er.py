"""Experience replay: each stream batch together with a batch of remembered images."""

from __future__ import annotations

from collections.abc import Hashable

import torch.nn.functional as F
from torch import Tensor

from cler.methods.base import Method, register
from cler.streams.class_incremental import Batch


@register
class ExperienceReplay(Method):
    """L = CE(stream and replay together), with replay from the second batch on."""

    name = "er"
    title = "ER"
    summary = "plain experience replay from a reservoir"
    replays = True
    task_free = True

    @property
    def recording_key(self) -> Hashable:
        """Every task is learned alike."""
        return None

    def observe(self, batch: Batch) -> Tensor:
        """One step on stream and replay, then offer the stream batch to the memory."""
        pixels, images, labels = self.with_replay(batch)
        (logits,), penalty = self.outputs(images, pixels=pixels)
        loss = F.cross_entropy(logits, labels) + penalty
        self.descend(loss)
        self.buffer.add(batch.pixels, batch.labels)
        return loss
