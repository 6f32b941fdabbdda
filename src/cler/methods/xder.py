"""X-DER: replay of stored logits that are kept up to date, and margins between past, present and future classes.

    L = L_stream + L_mse + L_ce + L_past + L_future

where the options `alpha`, `beta`, `gamma`, `eta` and `margin` are α, β, γ, η and m. This is the variant with a fixed
simplex as classifier.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.config.schema import setting
from cler.errors import UsageError
from cler.memory.quota import QuotaBuffer, Recollection
from cler.methods.base import Method, Setup, register
from cler.nets import forward_parts
from cler.nets.backbone import Parts
from cler.nets.norm import frozen_statistics
from cler.nets.simplex import SimplexClassifier
from cler.streams.class_incremental import Batch

VARIANTS = ("text", "released")
T = TypeVar("T")


@dataclass(frozen=True)
class XDerOptions:
    """Settings that only X-DER has."""

    alpha: float = setting(0.8, "Weight of the squared distance to the stored logits (α).", least=0)
    beta: float = setting(0.8, "Weight of the cross-entropy of replayed images (β).", least=0)
    gamma: float = setting(0.85, "What new logits may reach, as a share of the true class's stored logit (γ).", least=0)
    eta: float = setting(0.1, "Weight of both margin constraints (η).", least=0)
    margin: float = setting(0.3, "Margin that the constraints keep between past, present and future (m).", least=0)
    variant: str = setting(
        "text",
        "What CLER gets of the stream: the raw images, as the paper says (text), or the augmented ones normalized a "
        "second time, as in the authors' code (released).",
        choices=VARIANTS,
    )


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
    if present.stop == logits.shape[1]:
        return logits.new_zeros(len(logits))  # there is no future
    size = present.stop - present.start
    by_task = logits.unflatten(1, (-1, size)).max(2).values
    own = by_task.gather(1, (labels // size).unsqueeze(1)).squeeze(1)
    future = by_task[:, present.stop // size :].max(1).values
    return future + margin - own


def mean_of_positive(violations: Tensor) -> Tensor:
    """The mean of those above zero; zero if there are none."""
    positive = violations > 0
    return violations.where(positive, 0.0).sum() / positive.sum().clamp(min=1)


def repeats(slots: Tensor) -> Tensor:
    """Which entries repeat an earlier one."""
    return (slots.unsqueeze(0) == slots.unsqueeze(1)).tril(-1).any(1)


def in_lots(items: Iterable[T], size: int = 25) -> Iterator[list[T]]:
    """Lists of some items at a time, all in all each once: what goes through the network as parts of one batch."""
    remaining = iter(items)
    while some := list(itertools.islice(remaining, size)):
        yield some


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
    shares_buffer = True
    Options = XDerOptions
    options_of_regularizer = frozenset({"variant"})
    memory: QuotaBuffer

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if self.options.variant == "released" and not all(each.raw_only for each in self.regularizers):
            raise UsageError("variant released is about CLER's pretext images: take it with rotation or jigsaw only")

    @classmethod
    def make_classifier(cls, classifier: nn.Linear, n_classes: int) -> nn.Linear:
        """The corners of a simplex."""
        return SimplexClassifier(classifier)

    def make_buffer(self) -> QuotaBuffer:
        """A memory with as many images of each class, and their logits."""
        setup, dtype = self.setup, next(self.network.parameters()).dtype
        return QuotaBuffer(
            setup.buffer,
            setup.image_shape,
            self.n_classes,
            dtype=dtype,
            generator=setup.generator,
            device=setup.device,
        )

    @property
    def settled(self) -> bool:
        """The memory's size never changes during a task."""
        return True

    @property
    def present(self) -> slice:
        """The classes of this task: its head. Past ones come before, future ones after."""
        return slice(self.past_classes, self.seen_classes)

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
        (logits,), penalty = self.outputs(batch.images, pixels=self.pretext_pixels(batch))
        return (
            self.stream_loss(logits, batch.labels)
            + self.options.eta * mean_of_positive(self.future_violations(logits, batch.labels))
            + penalty
        )

    def loss_with_replay(self, batch: Batch) -> Tensor:
        """L_stream + L_mse + L_ce + L_past + L_future; brings the stored logits up to date on the way."""
        replay = self.buffer.sample(self.setup.replay_batch, draws=2)
        (stream, draw_1, draw_2), penalty = self.outputs(
            batch.images,
            *self.views.augmented(replay.pixels).chunk(2),
            pixels=torch.cat([self.pretext_pixels(batch), replay.pixels]),
            parts=Parts((len(batch.pixels), len(replay.pixels))),
        )
        stored_logits, _ = replay.logits.chunk(2)
        _, true_labels = replay.labels.chunk(2)

        replayed, repeated = torch.cat([draw_1, draw_2]), repeats(replay.slots)
        self.update_logits(replay, replayed.detach(), repeated)
        too_close_in_future = [
            self.future_violations(stream, batch.labels),
            self.future_violations(replayed, replay.labels).masked_fill(repeated, 0.0),
        ]
        return (
            self.stream_loss(stream, batch.labels)
            + self.options.alpha * F.mse_loss(draw_1, stored_logits)
            + self.options.beta * F.cross_entropy(draw_2[:, : self.present.start], true_labels)
            + self.options.eta * mean_of_positive(past_violations(stream, self.present, self.options.margin))
            + self.options.eta * mean_of_positive(torch.cat(too_close_in_future))
            + penalty
        )

    def stream_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy among the present classes."""
        return F.cross_entropy(logits[:, self.present], labels - self.present.start)

    def future_violations(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The function of that name, with this task and margin."""
        return future_violations(logits, labels, self.present, self.options.margin)

    def pretext_pixels(self, batch: Batch) -> Tensor:
        """The stream as pixels, from 0 to 255, that `outputs` then normalizes."""
        return batch.pixels if self.options.variant == "text" else 255 * batch.images

    def update_logits(self, replay: Recollection, outputs: Tensor, repeated: Tensor) -> None:
        """Give replayed samples new logits for present and future: at the n-th time in a task with a chance of 1/n."""
        times = self.buffer.count(replay.slots, ~repeated)
        chosen = ~repeated & (self.draw_uniforms(len(times)) * times < 1)
        head, gamma = self.present_and_future, self.options.gamma
        logits = overwrite_head(replay.logits, outputs, replay.labels, head, gamma)
        self.buffer.write_logits(replay.slots, logits, chosen)

    def draw_uniforms(self, count: int) -> Tensor:
        """Numbers that decide which samples get new logits."""
        return torch.rand(count, generator=self.setup.generator, device=self.setup.device)

    @torch.no_grad()
    def end_task(self, task: int, batches: Iterable[Batch]) -> None:
        """Make room in the memory, fill it with the task's images, bring the logits of older ones up to date."""
        seen = self.present.stop
        self.buffer.shrink(self.buffer.capacity // seen)
        self.buffer.share_room(range(self.present.start, seen))
        with frozen_statistics(self.network):
            self.fill_buffer(batches)
            if self.task > 0:
                self.update_old_logits()
        self.buffer.counters.zero_()

    def fill_buffer(self, batches: Iterable[Batch]) -> None:
        """Store images of this task with their logits, those of past classes held below that of the true class."""
        past = slice(0, self.present.start)
        for some in in_lots(batches):
            outputs = forward_parts(self.network, *(batch.images for batch in some))
            for batch, logits in zip(some, outputs, strict=True):
                if self.task > 0:
                    logits = overwrite_head(logits, logits, batch.labels, past, self.options.gamma)
                self.buffer.add(batch.pixels, batch.labels, logits)
            if not self.buffer.has_room:
                break

    def update_old_logits(self) -> None:
        """Give every sample of earlier tasks new logits for present and future.

        All samples go through the network, those of this task too, in random batches of the size of a draw: with whom
        one goes decides how it is normalized. If the size does not divide their number, all batches are a bit smaller,
        so that no sample is left over to go alone.
        """
        head, gamma = self.present_and_future, self.options.gamma
        order = self.draw_order(self.buffer.filled)
        for some in in_lots(order.tensor_split(math.ceil(len(order) / self.setup.replay_batch))):
            slots, pixels, labels, stored = self.buffer.recall(torch.cat(some))
            images = self.views.augmented(pixels).split([len(part) for part in some])
            outputs = torch.cat(forward_parts(self.network, *images))
            logits = overwrite_head(stored, outputs, labels, head, gamma)
            self.buffer.write_logits(slots, logits, labels < self.present.start)

    def draw_order(self, count: int) -> Tensor:
        """A random order of so many samples."""
        return torch.randperm(count, generator=self.setup.generator, device=self.setup.device)
