"""MOSE, multi-level online sequential experts: each stage of the network learns to classify, and teaches the last.

A step learns from images of this task (new), and from images of all tasks (balanced). Each image comes four times:
itself, mirrored, and a random view of both. With the features f_k of expert k, k = 0 … 3, and y the labels,

    L = Σ_k [ SupCon(projector_k(f_k), y) + 2 · CE(classifier_k(f_k), y; balanced) + CE(classifier_k(f_k), y; new) ]
        + Σ_{k<3} ‖ n(A f_3) − n(f_k) ‖

the second CE over the classes of this task; A is the adapter, n makes rows of unit length, f_k is not moved by the last
term, and its norm is that of the whole matrix. In the first task there is only "new", with a CE over all classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cler.config.schema import setting
from cler.data.strong_views import gray
from cler.methods.base import About, Method, Terms, register
from cler.methods.nearest_mean import CHUNK, class_means, squared_distances
from cler.nets.backbone import linear_in_full
from cler.nets.modes import full_precision
from cler.nets.mose import Expert, MoseNetwork
from cler.streams import Batch

CURRENT_SHARE = 22, 64
"""Images of this task that are drawn from the buffer, to the replay batch."""
MOST_PER_CLASS = 7
"""Images of other tasks that are drawn at most, for each class seen."""


@dataclass(frozen=True)
class MoseOptions:
    """Settings that only MOSE has."""

    temperature: float = setting(0.07, "Temperature τ of MOSE's contrastive loss.", above=0)
    experts: str = setting("all", "Who answers: the mean of all experts, or the last alone.", choices=("all", "last"))


class Sizes(NamedTuple):
    """How many images a step takes from where."""

    present: int
    """Drawn of this task, beside the stream."""
    again: int
    """First ones of the stream that are balanced with images of other tasks."""
    past: int
    """Drawn of other tasks."""

    @classmethod
    def of(cls, replay_batch: int, stream: int, present_classes: int, seen_classes: int) -> Sizes:
        """Balanced are `replay_batch` images: of this task its share of the classes seen, as far as the stream goes.

        Of this task 22 are drawn for a replay batch of 64, and as large a share of any other; in the first task all.
        """
        if present_classes == seen_classes:
            return cls(replay_batch, 0, 0)
        again = min(replay_batch * present_classes // seen_classes, stream)
        present = replay_batch * CURRENT_SHARE[0] // CURRENT_SHARE[1]
        return cls(present, again, min(replay_batch - again, MOST_PER_CLASS * seen_classes))


def contrastive_loss(projections: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """SupCon of projections (N, D), which are normalized here.

    −mean_i mean_p log softmax_{j≠i}(z_i·z_j / τ)_p, over the other images p of the class of i, and over all images i
    whose class has others.
    """
    with full_precision(projections):
        unit = F.normalize(projections)
        itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        similarities = (unit @ unit.T / temperature).masked_fill(itself, -math.inf)
    positive = (labels.unsqueeze(1) == labels) & ~itself
    number = positive.sum(1)
    log_probabilities = similarities.log_softmax(1).masked_fill(~positive, 0.0)
    return -(log_probabilities.sum(1) / number.clamp(min=1)).sum() / (number > 0).sum().clamp(min=1)


def random_view(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """A window of each image, scaled to the image's size, in a quarter of the cases without colors; for any numbers.

    Its area is uniform from 0.3 of the image to all of it, the logarithm of its ratio of width to height is uniform
    from 3/4 to 4/3, its place is uniform; a side that would be longer than the image's is as long.
    """
    draws = torch.rand(5, len(images), generator=generator, device=images.device, dtype=images.dtype)
    area, ratio = 0.3 + 0.7 * draws[0], torch.exp(math.log(4 / 3) * (2 * draws[1] - 1))
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    right, down = (2 * draws[2] - 1) * (1 - width), (2 * draws[3] - 1) * (1 - height)
    nothing = torch.zeros_like(width)
    windows = torch.stack([width, nothing, right, nothing, height, down], 1).view(-1, 2, 3)
    with full_precision(images):  # else places would be rounded to a hundredth of the image
        grid = F.affine_grid(windows, list(images.shape), align_corners=False)
        seen = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    return torch.where((draws[4] < 0.25).view(-1, 1, 1, 1), gray(seen), seen)


@register
class Mose(Method):
    """MOSE: an expert after each stage of the network learns from new and from balanced images.

    New: the stream and a draw of this task. Balanced: a draw of other tasks and the first images of the stream
    (`Sizes`). All of them, in all their views, are normalized together. If the buffer has fewer images of a kind than
    are drawn, some come repeatedly; without any, it is the stream that does. An image belongs to the class with the
    nearest mean, in the features of one expert or of all: the means are those of the buffer's images.
    """

    name = "mose"
    about = About(
        title="MOSE",
        summary="an expert after each stage of the network, contrastive replay, and the nearest class mean",
    )
    replays = True
    Options = MoseOptions
    own_network = MoseNetwork
    options: MoseOptions
    network: MoseNetwork
    means: Callable[[], tuple[Tensor, Tensor]] | None = None
    """Gives the class means of the network that answers, computed once; None outside of `answering`."""

    def sizes(self, stream: int) -> Sizes:
        """How many images to take from where, in this task, with so many of the stream."""
        return Sizes.of(self.setup.replay_batch, stream, len(self.present_classes), len(self.seen_classes))

    def observe(self, batch: Batch) -> Terms:
        """One step on all views of new and balanced images, then offer the stream batch to the buffer."""
        sizes, of_class = self.sizes(len(batch.labels)), self.setup.tasks.of_class
        present_pixels, present_labels = self.replay_of(sizes.present, of_class == self.task, instead=batch)
        past_pixels, past_labels = self.replay_of(sizes.past, of_class != self.task, instead=batch)
        pixels = torch.cat([batch.pixels, present_pixels, past_pixels])
        labels = torch.cat([batch.labels, present_labels, past_labels])
        n_new = len(batch.labels) + sizes.present
        images = self.four_views(torch.cat([pixels, batch.pixels[: sizes.again]]))
        (features,), penalties = self.outputs(images, pixels=pixels, labels=labels, forward=self.network.experts)
        all_labels = torch.cat([labels, batch.labels[: sizes.again]]).repeat(4)
        terms = self.terms(features, all_labels, n_new) | penalties
        self.descend(terms)
        self.buffer.add(batch.pixels, batch.labels)
        return terms

    def four_views(self, pixels: Tensor) -> Tensor:
        """Normalized images: themselves, mirrored, and a random view of both; (4·N, C, H, W)."""
        images = self.views.plain(pixels)
        both = torch.cat([images, images.flip(3)])
        return torch.cat([both, self.random_view(both)])

    def random_view(self, images: Tensor) -> Tensor:
        """The function of that name, with the run's generator."""
        return random_view(images, self.setup.generator)

    def terms(self, features: Tensor, labels: Tensor, n_new: int) -> Terms:
        """The loss of features (4·N, 4, D): four views of N images, of which the first `n_new` are the new ones."""
        contrast, fit = [], []
        for expert, own in zip(self.network.expert, features.unbind(1), strict=True):
            assert isinstance(expert, Expert)
            projections = linear_in_full(expert.projector, own)
            contrast.append(contrastive_loss(projections, labels, self.options.temperature))
            fit.append(self.fit(linear_in_full(expert.classifier, own), labels, n_new))
        *others, last = features.unbind(1)
        adapted = F.normalize(linear_in_full(self.network.adapter, last))
        teach = [torch.linalg.matrix_norm(adapted - F.normalize(each.detach())) for each in others]
        named = {"contrastive": contrast, "cross-entropy": fit, "distillation": teach}
        return {name: torch.stack(each).sum() for name, each in named.items()}

    def fit(self, logits: Tensor, labels: Tensor, n_new: int) -> Tensor:
        """Cross-entropy of one expert: of new images among the classes of this task, and of balanced ones."""
        if self.task == 0:
            return F.cross_entropy(logits, labels)
        new, balanced = logits.unflatten(0, (4, -1)).tensor_split([n_new], 1)
        new_labels, balanced_labels = labels.view(4, -1).tensor_split([n_new], 1)
        of_task = self.loss_within_task(new.flatten(0, 1), new_labels.flatten())
        return of_task + 2 * F.cross_entropy(balanced.flatten(0, 1), balanced_labels.flatten())

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Inside, the answering network is in evaluation, and class means are computed at most once."""
        with super().answering():
            self.means = cache(self.class_means)
            try:
                yield
            finally:
                self.means = None

    @torch.no_grad()
    def class_means(self) -> tuple[Tensor, Tensor]:
        """The mean features (4, C, D) of the classes in the buffer, of unit length, and which classes have none."""
        pixels, labels = self.buffer.stored()
        features = [self.unit_features(self.views.plain(each)) for each in pixels.split(CHUNK)]
        return class_means(torch.cat(features, 1), labels, self.n_classes)

    def unit_features(self, images: Tensor) -> Tensor:
        """The features of all experts, of unit length, (4, N, D)."""
        return F.normalize(self.network.experts(images), dim=2).transpose(0, 1)

    def logits(self, images: Tensor) -> Tensor:
        """Minus the squared distance to the mean of each class, −∞ for classes that the buffer has no image of."""
        means, absent = (self.means or self.class_means)()
        distances = squared_distances(self.unit_features(images), means)
        chosen = distances.mean(0) if self.options.experts == "all" else distances[-1]
        return (-chosen).masked_fill(absent, -math.inf)

    def logits_in_passing(self, images: Tensor) -> Tensor:
        """Those of the last expert's classifier: class means would take a pass over the buffer."""
        return self.network(images)
