"""CoPE, continual prototype evolution: samples gather around a prototype of their class, which follows them slowly.

The pseudo-prototypical proxy (PPP) loss on a batch of N embeddings, with s(a, b) = exp(a·b / τ):

    L = −(1/N) · [ Σ log A(x) + Σ log(1 − R(x, x_k)) ],    over all x, and all pairs of x and x_k of different classes

    A(x)      = mean of s(a, x) / (s(a, x) + Z(x))           over a: x's own prototype, and the others of its class
    R(x, x_k) = mean of s(a, x_k) / (s(a, x_k) + Z(x_k))     over a: x's own prototype, and x itself
    Z         = Σ s(p, ·) over the prototypes p of all classes seen but that of x

and the prototypes' evolution, p ← normalize(α·p + (1 − α)·mean of its class's embeddings). `temperature` is τ,
`momentum` is α, A is called attraction here and 1 − R repulsion.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cler.config.schema import setting
from cler.memory import BalancedReservoir
from cler.methods.base import About, Method, Terms, register
from cler.methods.loss import detached, mean_terms
from cler.methods.setup import Setup
from cler.nets.modes import full_precision
from cler.streams import Batch

EMBEDDING_SIZE = 256
VARIANTS = ("released", "text")


def product(one: Tensor, other: Tensor) -> Tensor:
    """A matrix product kept out of autocast: a temperature of 0.05 would blow up what bfloat16 rounds away."""
    with full_precision(one):
        return one @ other


def ppp_loss(embeddings: Tensor, labels: Tensor, prototypes: Tensor, seen: Tensor, temperature: float) -> Tensor:
    """The PPP loss of a batch, a scalar.

    Embeddings (N, D) with their labels, prototypes (C, D) of which those in the mask `seen` (C) exist. Prototypes are
    constants, and in the attraction of x so are the other samples.

    Every fraction above is a sigmoid of log s(a, x) − log Z(x), here in a matrix with a row for each x whose class and
    prototype are meant, and a column for each x at which s and Z are taken. While there is a single prototype, Z is 0
    and every A is 1: the loss is 0, and so is its gradient.
    """
    embeddings = embeddings.to(prototypes.dtype)
    count, n_classes = len(labels), len(prototypes)
    constants = torch.cat([prototypes, prototypes.index_select(0, labels), embeddings.detach()])
    scaled = (embeddings / temperature).T
    to_prototypes, to_own_prototype, to_constant = product(constants, scaled).split([n_classes, count, count])

    own = labels.unsqueeze(1) == torch.arange(n_classes, device=labels.device)
    log_z = log_sum_of_others(to_prototypes.T, own | ~seen)
    same = labels.unsqueeze(1) == labels
    to_sample = torch.where(same, to_constant, product(embeddings, scaled)) - log_z
    to_prototype = to_own_prototype - log_z

    itself = torch.eye(count, dtype=torch.bool, device=labels.device)
    attractors = F.logsigmoid(torch.where(itself, to_prototype, to_sample)).masked_fill(~same, -math.inf)
    log_attraction = attractors.logsumexp(0) - same.sum(0, dtype=embeddings.dtype).log()
    log_repulsion = torch.logaddexp(F.logsigmoid(-to_sample), F.logsigmoid(-to_prototype)) - math.log(2)
    return -(log_attraction.sum() + log_repulsion.masked_fill(same, 0.0).sum()) / count


def log_sum_of_others(to_prototypes: Tensor, left_out: Tensor) -> Tensor:
    """log Z (N, N): for each row of `left_out` (N, C), classes, and each row of `to_prototypes` (N, C), log s.

    Without any class left it is very negative but finite, since the gradient through −∞ would not be a number.
    """
    nothing = torch.finfo(to_prototypes.dtype).min / 4
    return torch.where(left_out.unsqueeze(1), nothing, to_prototypes).logsumexp(2)


def sums_and_counts(parts: Sequence[tuple[Tensor, Tensor]], n_classes: int, *, released: bool) -> tuple[Tensor, Tensor]:
    """What the prototypes evolve by: for each class the sum of its embeddings in all parts, and what to divide it by.

    Parts are embeddings and their labels. The divisor is the number of samples or, as released, the embedding's size
    for each part in which the class occurs.
    """
    embeddings, labels = (torch.cat(each) for each in zip(*parts, strict=True))
    members = torch.arange(n_classes, device=labels.device).unsqueeze(1) == labels  # (n_classes, N)
    sums = product(members.to(embeddings.dtype), embeddings)  # repeatable to the bit, as index_add would not be
    if not released:
        return sums, members.sum(1)
    present = [each.any(1) for each in members.split([len(labels) for _, labels in parts], 1)]
    return sums, torch.stack(present).sum(0) * embeddings.shape[1]


def evolved(prototypes: Tensor, sums: Tensor, counts: Tensor, momentum: float) -> Tensor:
    """normalize(α·p + (1 − α)·sum/count) for every class that occurred, p for the others."""
    counts = counts.unsqueeze(1)
    moved = momentum * prototypes + (1 - momentum) * sums / counts.clamp(min=1)
    return torch.where(counts > 0, F.normalize(moved), prototypes)


def similarities(embeddings: Tensor, prototypes: Tensor, seen: Tensor) -> Tensor:
    """Cosine of each embedding with each prototype (N, C), −∞ where a class has not been seen."""
    return product(embeddings, prototypes.T).masked_fill(~seen, -math.inf)


@dataclass(frozen=True)
class CopeOptions:
    """Settings that only CoPE has.

    'released' is CoPE as in the code behind the paper's numbers and its learning rates. Gradients add up over the inner
    steps, about as if the learning rate were three times as high. And the embeddings of a class are divided by 256, the
    embedding's size, for each draw in which it occurs, not by their number: prototypes hardly leave their random start.
    'text' is CoPE as it is described: each inner step has its own gradient, prototypes follow the mean embedding.
    """

    temperature: float = setting(0.05, "Temperature τ of CoPE's loss.", above=0)
    momentum: float = setting(0.99, "Share of a prototype that is kept in each update (α).", least=0, most=1)
    inner: int = setting(5, "Steps on each batch of the stream, each with a new replay draw.", least=1, most=1_000_000)
    variant: str = setting(
        "released",
        "CoPE as in the code behind the paper's numbers (released), or as described (text).",
        choices=VARIANTS,
    )


@register
class CoPE(Method):
    """L = PPP(stream and replay together), in several inner steps on each stream batch; replay from the second batch.

    The network gives embeddings; an image belongs to the class of the nearest prototype.
    """

    name = "cope"
    about = About(title="CoPE", summary="replay with slowly evolving class prototypes")
    replays = True
    own_repeats = "inner"
    task_free = True
    Options = CopeOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.released = self.options.variant == "released"
        self.prototypes = self.draw_prototypes().to(next(self.network.parameters()).dtype)
        self.seen = torch.zeros(self.n_classes, dtype=torch.bool, device=setup.device)

    @classmethod
    def n_outputs(cls, n_classes: int) -> int:
        """The network gives embeddings, whose size does not depend on the classes."""
        return EMBEDDING_SIZE

    def make_buffer(self) -> BalancedReservoir:
        """A buffer with as many images of each class as can be."""
        setup = self.setup
        return BalancedReservoir(
            setup.buffer, setup.image_shape, self.n_classes, generator=setup.generator, device=setup.device
        )

    @property
    def temperature(self) -> float:  # type: ignore[override]
        """τ: an image's class is as probable as exp(cosine / τ) says."""
        return self.options.temperature

    @property
    def recording_key(self) -> Hashable:
        """Every task is learned alike."""
        return None

    def observe(self, batch: Batch) -> Terms:
        """The inner steps, then let the prototypes follow and offer the stream batch to the buffer.

        Each term of the loss is given back as its mean over the inner steps.
        """
        self.seen.index_fill_(0, batch.labels, True)
        steps: list[Terms] = []
        parts = []
        for step in range(self.options.inner):
            pixels, images, labels = self.with_replay(batch)
            (outputs,), penalties = self.outputs(images, pixels=pixels, labels=labels)
            embeddings = F.normalize(outputs)
            stream, replay = embeddings.detach().tensor_split([len(batch.labels)])
            parts.append((replay, labels[len(batch.labels) :]))
            loss = ppp_loss(embeddings, labels, self.prototypes, self.seen, self.options.temperature)
            terms = {"prototypes": loss, **penalties}
            self.descend(terms, accumulate=self.released and step > 0)
            steps.append(detached(terms))
        parts.append((stream, batch.labels))
        sums, counts = sums_and_counts(parts, self.n_classes, released=self.released)
        self.prototypes.copy_(evolved(self.prototypes, sums, counts, self.options.momentum))
        self.buffer.add(batch.pixels, batch.labels)
        return mean_terms(steps)

    def embed(self, images: Tensor) -> Tensor:
        """Embeddings of unit length (N, EMBEDDING_SIZE)."""
        return F.normalize(self.network(images))

    def logits(self, images: Tensor) -> Tensor:
        """Cosine with each class's prototype, −∞ for classes not seen yet."""
        return similarities(self.embed(images), self.prototypes, self.seen)

    def draw_prototypes(self) -> Tensor:
        """Where prototypes start: for every class a direction with uniform, hence positive, entries.

        All are drawn at once, at the beginning. A prototype exists, though, from when its class is seen.
        """
        shape, device = (self.n_classes, EMBEDDING_SIZE), self.setup.device
        return F.normalize(torch.rand(shape, generator=self.setup.generator, device=device))
