"""Finetune: learn each batch and nothing else. It shows what forgetting is."""

from __future__ import annotations

from collections.abc import Hashable

import torch.nn.functional as F
from torch import Tensor

from cler.methods.base import Method, register
from cler.streams.class_incremental import Batch


@register
class Finetune(Method):
    """L = CE(stream) over all classes."""

    name = "finetune"
    title = "Finetune"
    summary = "each batch once, no protection from forgetting"
    task_free = True
    reference = True

    @property
    def recording_key(self) -> Hashable:
        """Every task is learned alike."""
        return None

    def observe(self, batch: Batch) -> Tensor:
        """One step on the stream batch."""
        (logits,), penalty = self.outputs(batch.images, pixels=batch.pixels)
        loss = F.cross_entropy(logits, batch.labels) + penalty
        self.descend(loss)
        return loss
