"""Experience replay: each stream batch together with a batch of images from the buffer."""

from __future__ import annotations

from collections.abc import Hashable

import torch.nn.functional as F

from cler.methods.base import About, Method, Terms, register
from cler.streams import Batch


@register
class ExperienceReplay(Method):
    """L = CE(stream and replay together), with replay from the second batch on.

    A teacher has a cross-entropy of its own, on a strong view of both, which takes the place of this one.
    """

    name = "er"
    about = About(title="ER", summary="plain experience replay from a reservoir")
    replays = True
    teachable = ("strong", "raw")
    task_free = True

    @property
    def recording_key(self) -> Hashable:
        """Every task is learned alike."""
        return None

    def observe(self, batch: Batch) -> Terms:
        """One step on stream and replay, then offer the stream batch to the buffer."""
        lesson = self.lesson(self.buffer.sample(self.setup.replay_batch), batch) if self.is_taught else None
        if lesson is not None:
            _, terms = self.outputs(pixels=lesson.pixels, labels=lesson.labels, lesson=lesson)
        else:
            pixels, images, labels = self.with_replay(batch)
            (logits,), penalties = self.outputs(images, pixels=pixels, labels=labels)
            terms = {"cross-entropy": F.cross_entropy(logits, labels), **penalties}
        self.descend(terms)
        self.buffer.add(batch.pixels, batch.labels)
        return terms
