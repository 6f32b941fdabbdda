"""Finetune: learn each batch and nothing else. It shows what forgetting is."""

from __future__ import annotations

from collections.abc import Hashable

import torch.nn.functional as F

from cler.methods.base import About, Method, Terms, register
from cler.streams import Batch


@register
class Finetune(Method):
    """L = CE(stream) over all classes."""

    name = "finetune"
    about = About(title="Finetune", summary="each batch once, no protection from forgetting", reference=True)
    task_free = True

    @property
    def recording_key(self) -> Hashable:
        """Every task is learned alike."""
        return None

    def observe(self, batch: Batch) -> Terms:
        """One step on the stream batch."""
        (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
        terms = {"cross-entropy": F.cross_entropy(logits, batch.labels), **penalties}
        self.descend(terms)
        return terms
