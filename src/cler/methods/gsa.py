"""GSA, gradient self-adaptation: a loss among the classes of the task, and a weighted one among all classes seen.

    L = 2 · mean_i( −w_{y_i} · log p_{i,y_i} ) + CE(current batch, over the classes of this task)

p are the probabilities of the images i of the balanced batch over the classes seen. A class weighs more the less its
images have pulled its logit up for what others' images have pushed it down, in the whole stream, this batch included:

    w_c = 2 / (1 + e^{1 − r_c})
    r_c = (n_c − P_c) / N_c,    n_c = Σ_i [y_i = c],    P_c = Σ_i [y_i = c] · p_ic,    N_c = Σ_i [y_i ≠ c] · p_ic
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cler.methods.base import About, Method, Terms, register
from cler.methods.setup import Setup
from cler.streams import Batch

UNWEIGHTED = 5
"""Batches at the start of a task in which every r_c is 1."""
CURRENT_SHARE = 22, 64
"""Images of this task that are drawn, to those of the balanced batch."""


class Sizes(NamedTuple):
    """How many images a step takes from where."""

    present: int
    """Drawn of this task, for the current batch."""
    past: int
    """Drawn of earlier tasks, for the balanced batch."""
    new: int
    """First ones of the current batch that are part of the balanced batch too."""

    @classmethod
    def of(cls, replay_batch: int, stream: int, present_classes: int, seen_classes: int) -> Sizes:
        """Past and new images as past and present classes, `replay_batch` in all but for what rounding down leaves.

        At least one of them is new, and no more than the current batch has. Of this task 22 are drawn for a replay
        batch of 64, and as large a share of any other.
        """
        present = replay_batch * CURRENT_SHARE[0] // CURRENT_SHARE[1]
        new = max(1, replay_batch * present_classes // seen_classes)
        return cls(present, replay_batch * (seen_classes - present_classes) // seen_classes, min(new, stream + present))


def class_weights(counts: Tensor, positive: Tensor, negative: Tensor, unweighted: Tensor) -> Tensor:
    """w_c of every class (C,), from n_c, P_c and N_c; r_c is 1 where `unweighted`, and where N_c is 0 yet."""
    ratios = torch.where(unweighted | (negative == 0), 1.0, (counts - positive) / negative)
    return 2 * (ratios - 1).sigmoid()


@register
class Gsa(Method):
    """L = L_balanced + L_current, two batches that are normalized separately.

    Current: the stream and a draw of this task, which is the stream once more while the buffer has none of it.
    Balanced: a draw of earlier tasks and the first images of the current batch, in a new view, in the proportion of
    past and present classes (`Sizes`). If the buffer has fewer images of a kind than are drawn, some come repeatedly.
    """

    name = "gsa"
    about = About(
        title="GSA",
        summary="replay with a loss within the task and one over all classes, weighted by their past gradients",
    )
    replays = True
    teachable = ("raw", "strong")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.counts, self.positive, self.negative = (
            torch.zeros(self.n_classes, dtype=next(self.network.parameters()).dtype, device=setup.device)
            for _ in range(3)
        )
        """n_c, P_c and N_c."""
        self.batches = torch.zeros((), dtype=torch.int64, device=setup.device)
        """Batches that this task has had."""

    def begin_task(self, task: int) -> None:
        """The first batches of a task are weighted equally."""
        super().begin_task(task)
        self.batches.zero_()

    def sizes(self, stream: int) -> Sizes:
        """How many images to take from where, in this task, with so many of the stream."""
        return Sizes.of(self.setup.replay_batch, stream, len(self.present_classes), len(self.seen_classes))

    def observe(self, batch: Batch) -> Terms:
        """One step on the current and the balanced batch, then offer the stream batch to the buffer."""
        sizes, of_class = self.sizes(len(batch.labels)), self.setup.tasks.of_class
        present_pixels, present_labels = self.replay_of(sizes.present, of_class == self.task, instead=batch)
        past_pixels, past_labels = self.replay_of(sizes.past, of_class < self.task, instead=batch)
        pixels, labels = torch.cat([batch.pixels, present_pixels]), torch.cat([batch.labels, present_labels])
        (current, balanced), penalties = self.outputs(
            torch.cat([batch.images, self.views.augmented(present_pixels)]),
            self.views.augmented(torch.cat([past_pixels, pixels[: sizes.new]])),
            pixels=torch.cat([pixels, past_pixels]),
            labels=torch.cat([labels, past_labels]),
            lesson=self.lesson(self.buffer.sample(self.setup.replay_batch), batch) if self.is_taught else None,
        )
        terms = {
            "balanced": 2 * self.balanced_loss(balanced, torch.cat([past_labels, labels[: sizes.new]])),
            "current": self.loss_within_task(current, labels),
            **penalties,
        }
        self.descend(terms)
        self.batches.add_(1)
        self.buffer.add(batch.pixels, batch.labels)
        return terms

    def balanced_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy among the classes seen, each weighted by w_c; the running sums take in this batch before."""
        of_class = self.setup.tasks.of_class
        log_probabilities = logits.masked_fill(of_class > self.task, -math.inf).log_softmax(1)
        self.take_in(log_probabilities.detach().exp(), labels)
        weights = class_weights(self.counts, self.positive, self.negative, self.batches < UNWEIGHTED)
        return -(weights[labels] * log_probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()

    def take_in(self, probabilities: Tensor, labels: Tensor) -> None:
        """Add the probabilities (N, C) of a batch to the running sums."""
        own = labels.unsqueeze(1) == torch.arange(self.n_classes, device=labels.device)
        self.counts.add_(own.sum(0))
        self.positive.add_(probabilities.where(own, 0.0).sum(0))
        self.negative.add_(probabilities.where(~own, 0.0).sum(0))
