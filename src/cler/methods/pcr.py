"""PCR, proxy-based contrastive replay: images gather around the proxy of their class, among the classes of the batch.

    L_PCR = mean_i [ log Σ_c n_c · e^{z_ic} − z_{i,y_i} ],    z_ic = u(h_i) · u(w_c) / τ,    u(v) = v / (‖v‖ + 1e-6)

over all images of a step, raw and a view of each, with features h and labels y. The proxies w are the rows of the
classifier, and n_c is how often class c occurs in the step: classes that do not are not in the sum.

HPCR, with `variant` hpcr, distills from what the buffer has stored with its images as well:

    L = k · L_PCR + λ_pcd · L_PCD + λ_scd · L_SCD

    k     = rises from `scale_least` to `scale_most` and falls again, a cosine of the step in the task
    L_PCD = Σ_ic n_c · (z_ic − stored z_ic)² / (N · Σ_c n_c)
    L_SCD = mean_i Σ_{j≠i} −q_ij · log p_ij,    p, q = softmax over j≠i of u(h_i) · u(h_j) / τ, present and stored

over the replayed images; the last two from the second task on.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cler.config.schema import setting
from cler.memory import Recollection, Replay, Reservoir
from cler.methods.base import About, Method, Terms, register
from cler.methods.setup import Setup
from cler.nets.cosine import CosineClassifier, unit
from cler.nets.modes import full_precision
from cler.streams import Batch
from cler.teachers.base import Lesson

VARIANTS = ("pcr", "hpcr")
VIEW = "full"
"""The view that goes with each raw image."""


@dataclass(frozen=True)
class PcrOptions:
    """Settings that only PCR has; all but `variant` are for HPCR."""

    variant: str = setting("pcr", "PCR, or HPCR, which distills too (hpcr).", choices=VARIANTS)
    pcd_weight: float = setting(0.1, "Weight of the distance to the stored logits (λ_pcd).", least=0)
    scd_weight: float = setting(0.5, "Weight of the distance to the stored similarities (λ_scd).", least=0)
    scale_least: float = setting(0.5625, "What L_PCR is multiplied by at the start of a task.", least=0)
    scale_most: float = setting(1.8, "What L_PCR is multiplied by half a period later.", least=0)
    period: int = setting(500, "Steps after which that factor is back where it started.", least=1, most=1_000_000_000)


def occurrences(labels: Tensor, like: Tensor) -> Tensor:
    """n_c: how often each class occurs, (C,), in the type of logits (N, C)."""
    return like.new_zeros(like.shape[1]).index_add(0, labels, like.new_ones(len(labels)))


def pcr_loss(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """L_PCR of logits (N, C), a scalar; `counts` (C,) are n_c."""
    among = torch.where(counts > 0, logits + counts.log(), -math.inf)
    return (among.logsumexp(1) - logits.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()


def pcd_loss(logits: Tensor, stored: Tensor, counts: Tensor) -> Tensor:
    """L_PCD from stored logits to logits, both (N, C); `counts` (C,) are n_c."""
    return (counts * (logits - stored).square()).sum() / (len(logits) * counts.sum())


def scd_loss(features: Tensor, stored: Tensor, temperature: float) -> Tensor:
    """L_SCD from stored features to features, both (N, D)."""
    itself = torch.eye(len(features), dtype=torch.bool, device=features.device)
    new, old = (similarities(each, temperature).masked_fill(itself, -math.inf) for each in (features, stored))
    log_p = new.log_softmax(1).masked_fill(itself, 0.0)
    return -(old.softmax(1) * log_p).sum(1).mean()


def similarities(features: Tensor, temperature: float) -> Tensor:
    """Cosines of all pairs (N, N), divided by the temperature."""
    with full_precision(features):
        return unit(features) @ unit(features).T / temperature


@register
class Pcr(Method):
    """L = L_PCR of the stream and the replay, of each image as it is and a view of it.

    Stream and replay are normalized separately, each with its views. Until there is something to replay the loss is 0.
    Classes that have not been seen are never predicted. In a stream without tasks, HPCR distills from when the buffer
    holds a replay batch.
    """

    name = "pcr"
    about = About(
        title="PCR",
        summary="replay with a contrast of images and proxies of the classes in the batch",
        counted=About.counted | {"steps"},
    )
    replays = True
    teachable = ("strong", "raw")
    task_free = True
    Options = PcrOptions
    options: PcrOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.seen = torch.zeros(self.n_classes, dtype=torch.bool, device=setup.device)
        self.steps = torch.zeros((), dtype=torch.int64, device=setup.device)
        """Steps that this task has had, for the scale of HPCR."""

    @classmethod
    def make_classifier(cls, classifier: nn.Linear, n_classes: int) -> nn.Linear:
        """A new classifier, whose rows are the proxies of the classes."""
        return CosineClassifier(classifier, n_classes)

    @property
    def is_hpcr(self) -> bool:
        """Whether the setting `variant` is 'hpcr'."""
        return self.options.variant == "hpcr"

    def make_buffer(self) -> Reservoir:
        """A reservoir, for HPCR with the logits and features of its images."""
        if not self.is_hpcr:
            return self.make_reservoir()
        return self.make_reservoir(logits=(self.n_classes,), features=(self.network.feature_size,))

    @property
    def recording_key(self) -> Hashable:
        """Every task is learned alike, but for the first one of HPCR."""
        return self.is_hpcr and self.task == 0

    def begin_task(self, task: int) -> None:
        """HPCR's scale starts over."""
        super().begin_task(task)
        self.steps.zero_()

    @property
    def proxies(self) -> CosineClassifier:
        """The network's classifier, whose rows are the proxies of the classes."""
        classifier = self.network.classifier
        assert isinstance(classifier, CosineClassifier)
        return classifier

    def observe(self, batch: Batch) -> Terms:
        """One step on stream and replay, then offer the stream batch, with what it was raw before the step."""
        self.seen.index_fill_(0, batch.labels, True)
        replay = self.buffer.sample(self.setup.replay_batch)
        features, penalties = self.features(batch, replay)
        logits = self.proxies(features)
        labels = torch.cat([batch.labels, batch.labels, replay.labels, replay.labels])
        counts = occurrences(labels, logits)
        terms = {"contrast": self.scale * pcr_loss(logits, labels, counts)}
        if self.is_hpcr and self.task > 0:
            replayed = slice(2 * len(batch.labels), None)
            terms |= self.distillation(features[replayed], logits[replayed], replay, counts)
        terms |= penalties
        self.descend(terms)
        raw = slice(len(batch.labels))
        kept = {"logits": logits[raw].detach(), "features": features[raw].detach()} if self.is_hpcr else {}
        self.buffer.add(batch.pixels, batch.labels, **kept)
        self.steps.add_(1)
        return terms

    def features(self, batch: Batch, replay: Replay) -> tuple[Tensor, Terms]:
        """Features of the stream raw, its views, the replay raw, its views; and the regularizers' losses."""
        sizes = [len(each.labels) for each in (batch, replay) if len(each.labels)]
        pixels, labels = torch.cat([batch.pixels, replay.pixels]), torch.cat([batch.labels, replay.labels])
        raw, views = self.views.plain(pixels), self.views.augmented(pixels, VIEW)
        parts, penalties = self.outputs(
            *(torch.cat(both) for both in zip(raw.split(sizes), views.split(sizes), strict=True)),
            pixels=pixels,
            augmented=views,
            labels=labels,
            forward=self.network.features,
            lesson=self.lesson(replay, batch) if self.buffer.filled else None,
        )
        return torch.cat(parts).to(self.proxies.weight.dtype), penalties

    def lesson(self, *sources: Batch | Replay | Recollection) -> Lesson | None:
        """The teacher's, on the logits of what the network has made features of."""
        lesson = super().lesson(*sources)
        if lesson is None:
            return None
        terms = lesson.terms
        return replace(lesson, terms=lambda seen: terms({name: self.proxies(each) for name, each in seen.items()}))

    @property
    def scale(self) -> Tensor | float:
        """What L_PCR is multiplied by: k of HPCR, 1 otherwise; 0 while there is nothing to replay."""
        if not self.buffer.filled:
            return 0.0
        if not self.is_hpcr:
            return 1.0
        least, most = self.options.scale_least, self.options.scale_most
        angle = 2 * math.pi * self.steps.to(self.proxies.weight.dtype) / self.options.period
        return least + (most - least) * (1 - angle.cos()) / 2

    def distillation(self, features: Tensor, logits: Tensor, replay: Replay, counts: Tensor) -> Terms:
        """λ_pcd · L_PCD and λ_scd · L_SCD; an image raw and its view are both held to what the raw one had stored."""
        stored = {name: torch.cat([values, values]) for name, values in replay.extra.items()}
        similar = scd_loss(features, stored["features"], self.proxies.temperature)
        return {
            "proxy distillation": self.options.pcd_weight * pcd_loss(logits, stored["logits"], counts),
            "sample distillation": self.options.scd_weight * similar,
        }

    def logits(self, images: Tensor) -> Tensor:
        """Cosine with each class's proxy, divided by τ; −∞ for classes not seen yet."""
        return self.network(images).masked_fill(~self.seen, -math.inf)
