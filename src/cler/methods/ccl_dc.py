"""CCL-DC: two networks learn the same stream, and each teaches the other what is hard by what is easy.

Views of growing difficulty, the chain of an image: X⁰ as it is, X¹ lightly augmented, X² = RandAugment(X¹), X³ =
RandAugment(X²). With the outputs S of a network and T of its peer, which is not moved by it,

    D = KD(T X³ → S X³) + KD(T X¹ → S X⁰) + KD(T X² → S X¹) + KD(T X³ → S X²)        E = Σ_k CE(S Xᵏ)

    base ER:      L = ½ · [ CE(full view of stream and replay) + E ] + λ · D
    base ER-ACE:  L = CE(stream, over the allowed classes) + CE(replay) + ½ · E + λ · D
    base DER++:   L = CE(stream) + α · MSE(draw 1, its stored logits) + β · CE(draw 2) + ½ · E + λ · D

for each of the two, both from the same batches and views. With ER-ACE, E and D are those of the stream, whose CE is
among the allowed classes, plus those of the replay; with DER++ those of the stream and draw 2 together, and what is
stored with an image is the mean of both networks' logits. KD(t → s) = τ² · KL(softmax(t/τ) ‖ softmax(s/τ)), over all
classes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cler.config.schema import setting
from cler.errors import UsageError
from cler.memory import Replay, Reservoir
from cler.methods.base import About, Method, Terms, register
from cler.methods.er_ace import allowed_classes, masked_cross_entropy
from cler.methods.setup import Setup
from cler.nets.backbone import Backbone
from cler.regularizers.base import Regularizer
from cler.streams import Batch
from cler.teachers.distillation import distillation

WEIGHTS = {"er-ace": 1.0, "er": 2.0, "derpp": 1.0}
"""λ by the base."""
TEMPERATURES = {"er-ace": 4.0, "er": 4.0, "derpp": 3.0}
"""τ by the base."""
FULL, LIGHT, HARD = "full", "light", "randaugment"
"""The views: of base ER, and of the chain."""


@dataclass(frozen=True)
class CclDcOptions:
    """Settings that only CCL-DC has.

    With one network it is its own peer: only the three terms of D remain in which a harder view teaches an easier one.
    """

    base: str = setting("er-ace", "The replay method that CCL-DC builds on.", choices=WEIGHTS)
    networks: int = setting(2, "Networks that teach each other; 1 teaches itself.", least=1, most=2)
    distill: float | None = setting(None, "Weight of the distillation (λ; default: 1, with base er 2).", least=0)
    temperature: float | None = setting(
        None, "Temperature τ of the distillation (default: 4, with base derpp 3).", above=0
    )
    alpha: float = setting(0.2, "Weight of the distance to stored logits (α), with base derpp.", least=0)
    beta: float = setting(1.0, "Weight of the cross-entropy of replayed images (β), with base derpp.", least=0)

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if self.base != "derpp" and value != getattr(CclDcOptions, name):
                raise UsageError(f"{value} has no effect with base {self.base}: leave it out, or use base=derpp", name)


class Part(NamedTuple):
    """Images that are normalized together."""

    pixels: Tensor
    labels: Tensor
    allowed: Tensor | None = None
    """The classes that take part in their softmax; None for all."""

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """The cross-entropy of logits (N, C) of these images."""
        if self.allowed is None:
            return F.cross_entropy(logits, self.labels)
        return masked_cross_entropy(logits, self.labels, self.allowed)


class Base(NamedTuple):
    """What the base, which is the replay that CCL-DC is put on, learns from in a step, and how."""

    parts: list[Part]
    """The images in the order in which they pass, normalized separately."""
    views: list[Tensor]
    """The view of each part, normalized."""
    terms: Callable[[Sequence[Tensor]], Terms]
    """The base's loss, from a network's logits (N, C) for each part."""
    chained: list[Part]
    """The images that have chains."""


class Outputs(NamedTuple):
    """A network's logits (N, C)."""

    base: tuple[Tensor, ...]
    """For each part of the base."""
    chains: list[list[Tensor]]
    """Those of X⁰ … X³ for each part that has chains."""


@register
class CclDc(Method):
    """CCL-DC: two networks, or one, that learn by a base and by what the other says of harder views.

    The views of the base, then the chain X³, X⁰, X¹, X² of each part pass each network, normalized separately. A
    regularizer acts on both networks, with a head of its own in each. Their logits are averaged to answer.
    """

    name = "ccl-dc"
    about = About(
        title="CCL-DC",
        summary="replay with two networks that teach each other, from harder views to easier ones",
        running_bytes=1_000_000_000,  # two networks, and their optimizer's moments
    )
    replays = True
    task_free = True
    Options = CclDcOptions
    options: CclDcOptions
    network: Backbone

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.seen = torch.zeros(self.n_classes, dtype=torch.bool, device=setup.device)

    def make_buffer(self) -> Reservoir:
        """A reservoir; for DER++ it keeps logits with the images."""
        return self.make_reservoir(logits=(self.n_classes,)) if self.options.base == "derpp" else self.make_reservoir()

    @classmethod
    def n_networks(cls, options: Any) -> int:
        """As many as the setting `networks` says, one or two."""
        networks: int = options.networks
        return networks

    @property
    def regularized(self) -> list[tuple[Backbone, Regularizer]]:
        """The regularizers of the first network, then those of the second."""
        members = self.network.members
        share = len(self.regularizers) // len(members)
        return [(members[number // share], each) for number, each in enumerate(self.regularizers)]

    @property
    def recording_key(self) -> Hashable:
        """ER and DER++ learn every task alike, ER-ACE every task but the first."""
        return self.options.base == "er-ace" and self.task == 0

    def observe(self, batch: Batch) -> Terms:
        """One step of both networks, then offer the stream batch to the buffer."""
        self.seen.index_fill_(0, batch.labels, True)
        base = {"er": self.er, "er-ace": self.er_ace, "derpp": self.derpp}[self.options.base](batch)
        outputs, penalties = self.pass_all(base)
        terms = added(*(self.terms(base, *pair) for pair in zip(outputs, reversed(outputs), strict=True)), *penalties)
        self.descend(terms)
        self.buffer.add(batch.pixels, batch.labels, **(self.stored(outputs) if self.buffer.extra else {}))
        return terms

    def stored(self, outputs: Sequence[Outputs]) -> dict[str, Tensor]:
        """What is stored with the images of the stream, for DER++."""
        return {"logits": torch.stack([each.base[0].detach() for each in outputs]).mean(0)}

    def er(self, batch: Batch) -> Base:
        """Stream and replay together, with replay from the second batch on."""
        both = part_of(batch)
        if self.buffer.filled:
            both = joined(both, part_of(self.buffer.sample(self.setup.replay_batch)))
        view = self.views.augmented(both.pixels, FULL)
        return Base([both], [view], lambda logits: {"cross-entropy": 0.5 * both.cross_entropy(logits[0])}, [both])

    def er_ace(self, batch: Batch) -> Base:
        """Stream and replay apart; in the first task there is neither mask nor replay."""
        parts, views = [part_of(batch)], [batch.images]
        if self.task > 0:
            replay = part_of(self.buffer.sample(self.setup.replay_batch))
            parts = [parts[0]._replace(allowed=allowed_classes(batch.labels, self.seen)), replay]
            views.append(self.views.augmented(replay.pixels))

        def terms(logits: Sequence[Tensor]) -> Terms:
            fit = [part.cross_entropy(own) for part, own in zip(parts, logits, strict=True)]
            return dict(zip(("stream", "replay"), fit, strict=False))

        return Base(parts, views, terms, parts)

    def derpp(self, batch: Batch) -> Base:
        """Stream and two draws apart, from the second batch on; stream and second draw have chains, together."""
        stream = part_of(batch)
        if not self.buffer.filled:
            return Base([stream], [batch.images], lambda logits: {"stream": stream.cross_entropy(logits[0])}, [stream])
        replays = [self.buffer.sample(self.setup.replay_batch) for _ in range(2)]
        parts = [stream, *map(part_of, replays)]
        views = [batch.images, *(self.views.augmented(each.pixels) for each in replays)]
        stored = replays[0].extra["logits"]

        def terms(logits: Sequence[Tensor]) -> Terms:
            return {
                "stream": parts[0].cross_entropy(logits[0]),
                "stored logits": self.options.alpha * F.mse_loss(logits[1], stored),
                "replay": self.options.beta * parts[2].cross_entropy(logits[2]),
            }

        return Base(parts, views, terms, [joined(stream, parts[2])])

    def pass_all(self, base: Base) -> tuple[list[Outputs], list[Terms]]:
        """What each network gives, and its regularizers' losses on the images of the base."""
        x0 = torch.cat([each.pixels for each in base.chained])
        x1 = self.views.view(x0, LIGHT)
        x2 = self.views.view(x1, HARD)
        x3 = self.views.view(x2, HARD)
        sizes = [len(each.labels) for each in base.chained]
        in_order = zip(*(self.views.plain(each).split(sizes) for each in (x3, x0, x1, x2)), strict=True)
        batches = [*base.views, *(each for chain in in_order for each in chain)]
        pixels, labels = (
            torch.cat([each.pixels for each in base.parts]),
            torch.cat([each.labels for each in base.parts]),
        )
        outputs, penalties = [], []
        for network in self.network.members:
            logits, penalty = self.outputs(*batches, pixels=pixels, labels=labels, network=network)
            own, chains = logits[: len(base.views)], logits[len(base.views) :]
            of_x3, *easier = (chains[position::4] for position in range(4))
            outputs.append(Outputs(own, [list(each) for each in zip(*easier, of_x3, strict=True)]))
            penalties.append(penalty)
        return outputs, penalties

    def terms(self, base: Base, student: Outputs, teacher: Outputs) -> Terms:
        """The loss of one network, the student, with what its peer gives for the same images."""
        fit = [
            part.cross_entropy(each) for part, chain in zip(base.chained, student.chains, strict=True) for each in chain
        ]
        learned = [each for pair in zip(teacher.chains, student.chains, strict=True) for each in self.lessons(*pair)]
        weight = WEIGHTS[self.options.base] if self.options.distill is None else self.options.distill
        chain = {"chain": 0.5 * torch.stack(fit).sum(), "distillation": weight * torch.stack(learned).sum()}
        return base.terms(student.base) | chain

    def lessons(self, teacher: list[Tensor], student: list[Tensor]) -> list[Tensor]:
        """The terms of D: from each view to the easier one before it, and between peers from the hardest to itself."""
        pairs = list(zip(teacher[1:], student, strict=False))
        if teacher is not student:
            pairs.append((teacher[-1], student[-1]))
        temperature = self.options.temperature or TEMPERATURES[self.options.base]
        return [distillation(harder.detach(), easier, temperature) for harder, easier in pairs]


def part_of(source: Batch | Replay) -> Part:
    """Images of the stream or of a draw from the buffer as a part, whose softmax has all classes."""
    return Part(source.pixels, source.labels)


def joined(first: Part, second: Part) -> Part:
    """Two parts as one."""
    return Part(torch.cat([first.pixels, second.pixels]), torch.cat([first.labels, second.labels]))


def added(*parts: Terms) -> Terms:
    """Terms of the same name, added."""
    terms: Terms = {}
    for part in parts:
        for name, term in part.items():
            terms[name] = terms[name] + term if name in terms else term
    return terms
