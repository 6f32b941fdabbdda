"""CCL-DC: two networks learn the same stream, and each teaches the other what is hard by what is easy.

Views of growing difficulty, the chain of an image: X⁰ as it is, X¹ lightly augmented, X² = RandAugment(X¹), X³ =
RandAugment(X²). With the outputs S of a network and T of its peer, which is not moved by it,

    D = KD(T X³ → S X³) + KD(T X¹ → S X⁰) + KD(T X² → S X¹) + KD(T X³ → S X²)        E = Σ_k CE(S Xᵏ)

    base ER:      L = ½ · [ CE(full view of stream and replay) + E ] + λ · D
    base ER-ACE:  L = CE(stream, over the allowed classes) + CE(replay) + ½ · E + λ · D

for each of the two, both from the same batches and views. With ER-ACE, E and D are those of the stream, whose CE is
among the allowed classes, plus those of the replay. KD(t → s) = τ² · KL(softmax(t/τ) ‖ softmax(s/τ)), over all classes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cler.config.schema import setting
from cler.methods.base import About, Method, Setup, Terms, register
from cler.methods.er_ace import allowed_classes, masked_cross_entropy
from cler.nets.backbone import Backbone
from cler.regularizers.base import Regularizer
from cler.streams import Batch
from cler.teachers.distillation import distillation

WEIGHTS = {"er-ace": 1.0, "er": 2.0}
"""λ by the base."""
FULL, LIGHT, HARD = "full", "light", "randaugment"
"""The views: of base ER, and of the chain."""


@dataclass(frozen=True)
class CclDcOptions:
    """Settings that only CCL-DC has.

    With one network it is its own peer: only the three terms of D remain in which a harder view teaches an easier one.
    """

    base: str = setting("er-ace", "The replay that CCL-DC is put on.", choices=WEIGHTS)
    networks: int = setting(2, "Networks that teach each other; 1 teaches itself.", least=1, most=2)
    distill: float | None = setting(None, "Weight of the distillation (λ; default: 1, with base er 2).", least=0)
    temperature: float = setting(4.0, "Temperature τ of the distillation.", above=0)


class Group(NamedTuple):
    """Images that are normalized together."""

    name: str
    """What their cross-entropy is called."""
    pixels: Tensor
    images: Tensor
    """Their view that the base learns from, normalized."""
    labels: Tensor
    allowed: Tensor | None = None
    """The classes that take part in their softmax; None for all."""

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Of logits (N, C) of these images."""
        if self.allowed is None:
            return F.cross_entropy(logits, self.labels)
        return masked_cross_entropy(logits, self.labels, self.allowed)


class Outputs(NamedTuple):
    """A network's logits (N, C) for one group."""

    base: Tensor
    chain: list[Tensor]
    """Those of X⁰ … X³."""


@register
class CclDc(Method):
    """Base views, then the chain X³, X⁰, X¹, X² of each group pass each network, normalized separately.

    A regularizer acts on both networks, with a head of its own in each. Their logits are averaged to answer.
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
        self.is_ace = self.options.base == "er-ace"
        self.seen = torch.zeros(self.n_classes, dtype=torch.bool, device=setup.device)

    @classmethod
    def n_networks(cls, options: Any) -> int:
        """One or two."""
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
        """ER learns every task alike, ER-ACE every task but the first."""
        return self.is_ace and self.task == 0

    def observe(self, batch: Batch) -> Terms:
        """One step of both networks, then offer the stream batch to the buffer."""
        self.seen.index_fill_(0, batch.labels, True)
        groups = self.groups_with_ace(batch) if self.is_ace else self.groups_with_er(batch)
        outputs, penalties = self.pass_all(groups)
        terms = added(*(self.terms(groups, *pair) for pair in zip(outputs, reversed(outputs), strict=True)), *penalties)
        self.descend(terms)
        self.buffer.add(batch.pixels, batch.labels)
        return terms

    def groups_with_er(self, batch: Batch) -> list[Group]:
        """Stream and replay together, with replay from the second batch on."""
        pixels, labels = batch.pixels, batch.labels
        if self.buffer.filled:
            replay = self.buffer.sample(self.setup.replay_batch)
            pixels, labels = torch.cat([pixels, replay.pixels]), torch.cat([labels, replay.labels])
        return [Group("cross-entropy", pixels, self.views.augmented(pixels, FULL), labels)]

    def groups_with_ace(self, batch: Batch) -> list[Group]:
        """Stream and replay apart; in the first task there is neither mask nor replay."""
        if self.task == 0:
            return [Group("stream", *batch)]
        replay = self.buffer.sample(self.setup.replay_batch)
        return [
            Group("stream", *batch, allowed_classes(batch.labels, self.seen)),
            Group("replay", replay.pixels, self.views.augmented(replay.pixels), replay.labels),
        ]

    def pass_all(self, groups: Sequence[Group]) -> tuple[list[list[Outputs]], list[Terms]]:
        """What each network gives for each group, and its regularizers' losses."""
        pixels, labels = torch.cat([each.pixels for each in groups]), torch.cat([each.labels for each in groups])
        light = self.views.view(pixels, LIGHT)
        hard = self.views.view(light, HARD)
        hardest = self.views.view(hard, HARD)
        sizes = [len(group.labels) for group in groups]
        in_order = [self.views.plain(each).split(sizes) for each in (hardest, pixels, light, hard)]
        batches = [each.images for each in groups] + [each for chain in zip(*in_order, strict=True) for each in chain]
        outputs, penalties = [], []
        for network in self.network.members:
            logits, penalty = self.outputs(*batches, pixels=pixels, labels=labels, network=network)
            base, chains = logits[: len(groups)], logits[len(groups) :]
            x3, x0, x1, x2 = (chains[position::4] for position in range(4))
            outputs.append([Outputs(own, chain) for own, *chain in zip(base, x0, x1, x2, x3, strict=True)])
            penalties.append(penalty)
        return outputs, penalties

    def terms(self, groups: Sequence[Group], students: Sequence[Outputs], teachers: Sequence[Outputs]) -> Terms:
        """The loss of one network, `students`, with what its peer gives for the same groups."""
        terms = {
            group.name: (1.0 if self.is_ace else 0.5) * group.cross_entropy(own.base)
            for group, own in zip(groups, students, strict=True)
        }
        fit = [group.cross_entropy(each) for group, own in zip(groups, students, strict=True) for each in own.chain]
        learned = [each for pair in zip(teachers, students, strict=True) for each in self.lessons(*pair)]
        weight = WEIGHTS[self.options.base] if self.options.distill is None else self.options.distill
        return terms | {"chain": 0.5 * torch.stack(fit).sum(), "distillation": weight * torch.stack(learned).sum()}

    def lessons(self, teacher: Outputs, student: Outputs) -> list[Tensor]:
        """The terms of D: from each view to the easier one before it, and between peers from the hardest to itself."""
        pairs = list(zip(teacher.chain[1:], student.chain, strict=False))
        if teacher is not student:
            pairs.append((teacher.chain[-1], student.chain[-1]))
        return [distillation(*pair, self.options.temperature) for pair in pairs]


def added(*parts: Terms) -> Terms:
    """Terms of the same name, added."""
    terms: Terms = {}
    for part in parts:
        for name, term in part.items():
            terms[name] = terms[name] + term if name in terms else term
    return terms
