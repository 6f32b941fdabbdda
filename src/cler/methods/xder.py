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
from cler.memory.quota import QuotaBuffer, Recollection, same_before
from cler.methods.base import About, Method, Terms, register
from cler.methods.setup import Setup
from cler.nets import forward_parts
from cler.nets.backbone import Parts
from cler.nets.norm import frozen_statistics
from cler.nets.simplex import SimplexClassifier
from cler.streams import Batch, Tasks

VARIANTS = ("text", "released")
LOT = 25
"""Batches that go through the network together after a task."""
T = TypeVar("T")


@dataclass(frozen=True)
class XDerOptions:
    """Settings that only X-DER has."""

    alpha: float = setting(0.8, "Weight of the squared distance to the stored logits (α).", least=0)
    beta: float = setting(0.8, "Weight of the cross-entropy of replayed images (β).", least=0)
    gamma: float = setting(0.85, "Upper limit of new logits, as a share of the true class's stored logit (γ).", least=0)
    eta: float = setting(0.1, "Weight of both margin constraints (η).", least=0)
    margin: float = setting(0.3, "Margin that the constraints keep between past, present and future (m).", least=0)
    variant: str = setting(
        "text",
        "What CLER gets of the stream: the raw images, as the paper says (text), or the augmented ones normalized a "
        "second time, as in the authors' code (released).",
        choices=VARIANTS,
    )
    second_look: bool = setting(
        True,
        "Fill the buffer by a second look at a task's images after it; otherwise with some that are kept as they pass.",
    )


def overwrite_head(stored: Tensor, outputs: Tensor, labels: Tensor, head: Tensor, gamma: float) -> Tensor:
    """Stored logits (N, C) with new outputs in place of those of some classes, the head (K,).

    Where the largest of these exceeds the true class's stored logit, they are scaled to bring it to `gamma` times that
    logit; if the two differ in sign, so do the outputs before and after.
    """
    truth = stored.gather(1, labels.unsqueeze(1))
    new = outputs.index_select(1, head)
    largest = new.max(1, keepdim=True).values
    new = torch.where(largest > truth, new * (gamma * truth / largest), new)
    return stored.index_copy(1, head, new.to(stored.dtype))


def past_violations(logits: Tensor, tasks: Tasks, task: int, margin: float) -> Tensor:
    """By how much each sample's most probable past class comes too close to its most probable present one, (N,).

    Only the present class learns from it.
    """
    probabilities = logits.index_select(1, tasks.seen(task)).softmax(1)
    past, present = probabilities.tensor_split([len(tasks.past(task))], dim=1)
    return past.detach().max(1).values + margin - present.max(1).values


def future_violations(logits: Tensor, labels: Tensor, tasks: Tasks, task: int, margin: float) -> Tensor:
    """By how much each sample's largest future logit comes too close to the largest of its own task, (N,)."""
    to_come = tasks.to_come(task)
    if not len(to_come):
        return logits.new_zeros(len(logits))
    of_another_task = tasks.of_class != tasks.of_class[labels].unsqueeze(1)
    own = logits.masked_fill(of_another_task, -math.inf).max(1).values
    future = logits.index_select(1, to_come).max(1).values
    return future + margin - own


def mean_of_positive(violations: Tensor) -> Tensor:
    """The mean of those above zero; zero if there are none."""
    positive = violations > 0
    return violations.where(positive, 0.0).sum() / positive.sum().clamp(min=1)


def in_lots(items: Iterable[T]) -> Iterator[list[T]]:
    """Lists of a few items at a time, each item once: what goes through the network as parts of one batch."""
    remaining = iter(items)
    while some := list(itertools.islice(remaining, LOT)):
        yield some


@register
class XDer(Method):
    """Two draws from a class-balanced buffer, one towards its stored logits, one towards its labels.

    The buffer is filled at the end of each task, with a second look at the task's images. From then on the stored
    logits of classes that come later are replaced, now and then, by what the network has made of them since.

    Without `second_look` the buffer makes room at the beginning of a task already, and keeps there, as they pass, the
    images that it is filled with.
    """

    name = "xder"
    about = About(
        title="X-DER",
        summary="replay of logits that are kept up to date, with margins between past, present and future",
        options_of_regularizer=frozenset({"variant"}),
    )
    replays = True
    shares_buffer = True
    teachable = ("raw", "strong")
    Options = XDerOptions
    buffer: QuotaBuffer

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if self.options.variant == "released" and not all(each.raw_only for each in self.regularizers):
            raise UsageError("variant released is about CLER's pretext images: use it with rotation or jigsaw only")

    @classmethod
    def make_classifier(cls, classifier: nn.Linear, n_classes: int) -> nn.Linear:
        """The classifier's own parameters, followed by the corners of a simplex, which are fixed."""
        return SimplexClassifier(classifier)

    def make_buffer(self) -> QuotaBuffer:
        """A buffer with as many images of each class as of any other, and their logits."""
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
        """Always: how much the buffer holds never changes during a task."""
        return True

    @property
    def present_and_future(self) -> Tensor:
        """The classes of this task and of those to come, int64."""
        return self.setup.tasks.not_past(self.task)

    def begin_task(self, task: int) -> None:
        """Without a second look, make room for what will be kept of this task."""
        super().begin_task(task)
        if not self.options.second_look:
            self.make_room()

    def make_room(self) -> None:
        """Cut down the classes in the buffer to the share that they have with those of this task."""
        self.buffer.shrink(self.buffer.capacity // len(self.seen_classes))
        self.buffer.share_room(self.present_classes)

    def observe(self, batch: Batch) -> Terms:
        """One step on the stream and, from the second task on, on two draws from the buffer."""
        terms = self.terms_without_replay(batch) if self.task == 0 else self.terms_with_replay(batch)
        self.descend(terms)
        if not self.options.second_look:
            self.buffer.add(batch.pixels, batch.labels)
        return terms

    def terms_without_replay(self, batch: Batch) -> Terms:
        """L_stream + L_future, in the first task."""
        (logits,), penalties = self.outputs(
            batch.images, pixels=self.pretext_pixels(batch), labels=batch.labels, lesson=self.lesson(batch)
        )
        return {
            "stream": self.loss_within_task(logits, batch.labels),
            "future margin": self.options.eta * mean_of_positive(self.future_violations(logits, batch.labels)),
            **penalties,
        }

    def terms_with_replay(self, batch: Batch) -> Terms:
        """L_stream + L_mse + L_ce + L_past + L_future; brings the stored logits up to date on the way."""
        replay = self.buffer.sample(self.setup.replay_batch, draws=2)
        first, second = (Recollection(*half) for half in zip(*(each.chunk(2) for each in replay), strict=True))
        (stream, draw_1, draw_2), penalties = self.outputs(
            batch.images,
            *self.views.augmented(replay.pixels).chunk(2),
            pixels=torch.cat([self.pretext_pixels(batch), replay.pixels]),
            labels=torch.cat([batch.labels, replay.labels]),
            parts=Parts((len(batch.pixels), len(replay.pixels))),
            lesson=self.lesson(second, batch),
        )
        replayed, repeated = torch.cat([draw_1, draw_2]), same_before(replay.slots) > 0
        self.update_logits(replay, replayed.detach(), repeated)
        too_close_in_future = [
            self.future_violations(stream, batch.labels),
            self.future_violations(replayed, replay.labels).masked_fill(repeated, 0.0),
        ]
        too_close_to_past = past_violations(stream, self.setup.tasks, self.task, self.options.margin)
        return {
            "stream": self.loss_within_task(stream, batch.labels),
            "distillation": self.options.alpha * F.mse_loss(draw_1, first.logits),
            "replay": self.options.beta * self.replay_loss(draw_2, second.labels),
            "past margin": self.options.eta * mean_of_positive(too_close_to_past),
            "future margin": self.options.eta * mean_of_positive(torch.cat(too_close_in_future)),
            **penalties,
        }

    def replay_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy among the past classes."""
        return F.cross_entropy(logits.index_select(1, self.past_classes), self.setup.tasks.rank[labels])

    def future_violations(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The function of that name, with this task and margin."""
        return future_violations(logits, labels, self.setup.tasks, self.task, self.options.margin)

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
        """Make room in the buffer, fill it with the task's images, bring the logits of older ones up to date."""
        if self.options.second_look:
            self.make_room()
        with frozen_statistics(self.network):
            self.fill_buffer(batches if self.options.second_look else self.kept_batches())
            if self.task > 0:
                self.update_old_logits()
        self.buffer.counters.zero_()

    def fill_buffer(self, batches: Iterable[Batch]) -> None:
        """Store images of this task with their logits, those of past classes held below that of the true class."""
        for some in in_lots(batches):
            outputs = forward_parts(self.network, *(batch.images for batch in some))
            for batch, logits in zip(some, outputs, strict=True):
                if self.task > 0:
                    logits = overwrite_head(logits, logits, batch.labels, self.past_classes, self.options.gamma)
                self.buffer.store(batch.pixels, batch.labels, logits)
            if not self.buffer.has_room:
                break

    def kept_batches(self) -> Iterator[Batch]:
        """What was kept of the task's images as they passed."""
        pixels, labels = self.buffer.kept()
        for some in self.random_parts(len(labels)):
            yield Batch(pixels[some], self.views.augmented(pixels[some]), labels[some])

    def update_old_logits(self) -> None:
        """Give every sample of earlier tasks new logits for present and future.

        All samples go through the network, those of this task too: with whom one goes decides how it is normalized.
        """
        head, gamma = self.present_and_future, self.options.gamma
        for some in in_lots(self.random_parts(self.buffer.filled)):
            slots, pixels, labels, stored = self.buffer.recall(torch.cat(some))
            images = self.views.augmented(pixels).split([len(part) for part in some])
            outputs = torch.cat(forward_parts(self.network, *images))
            logits = overwrite_head(stored, outputs, labels, head, gamma)
            self.buffer.write_logits(slots, logits, self.setup.tasks.of_class[labels] < self.task)

    def random_parts(self, count: int) -> tuple[Tensor, ...]:
        """So many samples in random batches of the size of a draw.

        If the size does not divide their number, all batches are a bit smaller, so that no sample is left over to go
        alone.
        """
        return self.draw_order(count).tensor_split(max(1, math.ceil(count / self.setup.replay_batch)))

    def draw_order(self, count: int) -> Tensor:
        """A random order of so many samples."""
        return torch.randperm(count, generator=self.setup.generator, device=self.setup.device)
