"""R-DFCIL: no buffer; images that the old network would know are made up, and relations between features are kept.

From the second task on there are three phases: a synthesizer learns to make images for the network as it was, then

    L = λ_ce · CE(stream, new classes) + λ_hkd · HKD(made-up images) + λ_rkd · RKD(stream)

then everything is refined on both kinds of images. That is what the paper's authors released, with its quirks. With the
variant 'text' it is R-DFCIL as its own authors describe it: only the classifier is refined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.config.schema import setting
from cler.methods.base import About, Method, Terms, register
from cler.methods.loss import backward, total
from cler.methods.optimizers import make_optimizer
from cler.methods.setup import Setup
from cler.nets import forward_parts
from cler.nets.backbone import Backbone, linear_in_full
from cler.nets.frozen import Frozen
from cler.nets.modes import evaluating, full_precision
from cler.nets.norm import frozen_statistics
from cler.nets.synthesizer import Synthesizer, begin_anew, one_sidedness, roughness, watched
from cler.streams import Batch

VARIANTS = ("released", "text")
CONFIDENCE, SMOOTHNESS, STATISTICS = 1000.0, 1e-3, 50.0
"""What inversion divides logits by, and its weights."""


@dataclass(frozen=True)
class RDfcilOptions:
    """Settings that only R-DFCIL has.

    'released' is R-DFCIL as in the code of CLER's authors. 'text' is R-DFCIL as its own authors describe it: refinement
    trains only the classifier, with classes weighted by how often they were seen, and keeps what the old network says
    of the made-up images, not of others; and that counts fully, not divided by the number of past classes.
    """

    inversion_steps: int = setting(5000, "Steps of the synthesizer before each task.", least=1, most=1_000_000)
    inversion_lr: float = setting(0.001, "Learning rate of the synthesizer.", above=0)
    noise: int = setting(1000, "Random numbers that the synthesizer makes an image from.", least=1, most=10_000)
    refinement_epochs: int = setting(40, "Refinement passes over a task's images after the task.", least=1, most=10_000)
    refinement_lr: float = setting(0.005, "Learning rate of the refinement passes.", above=0)
    variant: str = setting(
        "released", "R-DFCIL as CLER's authors released it, or as its own authors describe it (text).", choices=VARIANTS
    )


def weights(n_past: int, n_new: int) -> tuple[float, float, float]:
    """λ_ce, λ_hkd and λ_rkd in a task with so many new classes after so many past ones."""
    new, old = math.log2(n_new / 2 + 1), math.sqrt(n_past / n_new)
    return 0.5 * (1 + 1 / new) / old, 0.15 * new * old, 0.5 * new * old


def relations(features: Tensor) -> Tensor:
    """Cosines of the angles of all triangles: at i, between the ways to j and to k."""
    with full_precision(features):
        ways = F.normalize(features[None, :] - features[:, None], dim=2)
        return ways @ ways.transpose(1, 2)


@register
class RDfcil(Method):
    """R-DFCIL, in up to three phases a task: inversion, learning, refinement.

    The classifier has no bias, and classes of later tasks are never predicted.
    """

    name = "r-dfcil"
    revision = 2
    about = About(
        title="R-DFCIL",
        summary="no buffer: made-up images of old classes, with relations between features preserved",
        running_bytes=2_200_000_000,  # a synthesizer, and its optimizer's moments
    )
    smallest_batch = 2
    Options = RDfcilOptions
    options: RDfcilOptions
    network: Backbone

    def __init__(self, setup: Setup) -> None:
        channels, height, width = setup.image_shape
        features = setup.network.feature_size
        with torch.random.fork_rng(devices=[]):  # weights are drawn when they are needed
            synthesizer = Synthesizer(height, width, noise=setup.options.noise, channels=channels).to(setup.device)
            projections = [nn.Linear(features, 2 * features) for _ in range(2)]
        super().__init__(setup, also_trained=projections)
        self.old = Frozen(self.network)
        self.synthesizer = synthesizer
        self.projection, self.old_projection = projections
        """Projections of the network's features, and of the old network's."""
        self.draw_weights()
        self.refiner = self.make_refiner()
        self.counts = torch.zeros(self.n_classes, device=setup.device)
        """How many images of each class this refinement has had, if it is not as released."""
        self.inverter = self.make_inverter()

    @classmethod
    def make_classifier(cls, classifier: nn.Linear, n_classes: int) -> nn.Linear:
        """A new classifier, without a bias."""
        weight = classifier.weight
        return nn.Linear(classifier.in_features, n_classes, bias=False, device=weight.device, dtype=weight.dtype)

    @property
    def as_released(self) -> bool:
        """Whether the setting `variant` is 'released'."""
        return self.options.variant == "released"

    def make_inverter(self) -> torch.optim.Optimizer:
        """The optimizer of the synthesizer."""
        on_gpu = self.setup.device.type == "cuda"
        parameters, lr = self.synthesizer.parameters(), self.options.inversion_lr
        return torch.optim.Adam(parameters, lr=lr, fused=True, capturable=on_gpu)

    def make_refiner(self) -> torch.optim.Optimizer:
        """The optimizer of the refinement: SGD with the momentum and the weight decay of the learning."""
        refined = self.network if self.as_released else self.network.classifier
        parameters, lr, setup = list(refined.parameters()), self.options.refinement_lr, self.setup
        return make_optimizer("sgd", parameters, lr, momentum=setup.momentum, weight_decay=setup.weight_decay)

    @classmethod
    def phases(cls, options: Any, task: int, *, epoch: int, epochs: int) -> dict[str, int]:
        """Inversion before and refinement after, from the second task on."""
        if task == 0:
            return {"observe": epochs * epoch}
        refinement = options.refinement_epochs * epoch
        return {"invert": options.inversion_steps, "observe": epochs * epoch, "refine": refinement}

    def begin_task(self, task: int) -> None:
        """Keep a copy of the network as it is, and draw new weights for the synthesizer and the projections."""
        super().begin_task(task)
        if task > 0:
            self.old.become(self.network)
            self.draw_weights()

    def begin_phase(self, phase: str) -> None:
        """Inversion and refinement begin with new optimizers; once they are over, moments need no more room."""
        super().begin_phase(phase)
        self.inverter, self.refiner = self.make_inverter(), self.make_refiner()
        self.counts.zero_()

    def draw_weights(self) -> None:
        """Reinitialize synthesizer and projections."""
        for module in (self.synthesizer, self.projection, self.old_projection):
            begin_anew(module, self.setup.generator)

    def make_up(self, count: int, *, training: bool) -> Tensor:
        """Made-up images, `count` of them, from noise."""
        noise = torch.randn(count, self.options.noise, generator=self.setup.generator, device=self.setup.device)
        return self.synthesizer.train(training)(noise)

    @property
    def weights(self) -> tuple[float, float, float]:
        """λ_ce, λ_hkd and λ_rkd of the present task."""
        return weights(len(self.past_classes), len(self.present_classes))

    def invert(self, batch: Batch) -> Terms:
        """A step of the synthesizer, towards images that the old network is sure of."""
        terms = self.inversion_terms(self.make_up(len(batch.labels), training=True))
        self.inverter.zero_grad()
        backward(total(terms))
        self.inverter.step()
        return terms

    def inversion_terms(self, images: Tensor) -> Terms:
        """What the synthesizer minimizes."""
        with watched(self.old.network) as strange:
            logits = self.old.network(images).index_select(1, self.past_classes)
        terms = {
            "confidence": F.cross_entropy(logits / CONFIDENCE, logits.argmax(1)),
            "class balance": one_sidedness(logits),
            "smoothness": SMOOTHNESS * roughness(images),
        }
        if strange:  # a network may have no batch norm
            terms["statistics"] = STATISTICS * torch.stack(strange).mean()
        return terms

    def observe(self, batch: Batch) -> Terms:
        """A step on the stream and, from the second task on, on made-up images."""
        if self.task == 0:
            (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
            terms = {"stream": self.loss_within_task(logits, batch.labels), **penalties}
        else:
            with torch.no_grad():
                made_up = self.make_up(len(batch.labels), training=False)
            terms = self.terms(batch, made_up)
        self.descend(terms)
        return terms

    def terms(self, batch: Batch, made_up: Tensor) -> Terms:
        """λ_ce · CE + λ_hkd · HKD + λ_rkd · RKD, and the regularizers' losses."""
        network, old = self.network, self.old.network
        (features, made_up_features), penalties = self.outputs(
            batch.images, made_up, pixels=batch.pixels, labels=batch.labels, forward=network.features
        )
        with torch.no_grad():
            old_features, old_logits = old.features(batch.images), old(made_up)
        fit = self.loss_within_task(linear_in_full(network.classifier, features), batch.labels)
        keep = self.keep(linear_in_full(network.classifier, made_up_features), old_logits)
        ways, old_ways = linear_in_full(self.projection, features), linear_in_full(self.old_projection, old_features)
        relate = F.l1_loss(relations(ways), relations(old_ways))
        ce, hkd, rkd = self.weights
        return {"stream": ce * fit, "distillation": hkd * keep, "relations": rkd * relate, **penalties}

    def keep(self, logits: Tensor, old_logits: Tensor) -> Tensor:
        """HKD: distance of the logits of past classes from old ones, as released divided by their number once more."""
        past = self.past_classes
        distance = F.l1_loss(logits.index_select(1, past), old_logits.index_select(1, past))
        return distance / len(past) if self.as_released else distance

    def recognized(self, old_logits: Tensor) -> Tensor:
        """The past class that the old network takes each image for, (N,)."""
        return self.past_classes[old_logits.index_select(1, self.past_classes).argmax(1)]

    def refine(self, batch: Batch) -> Terms:
        """A step on the stream and on made-up images, labeled by the old network."""
        with torch.no_grad():
            made_up = self.make_up(len(batch.labels), training=self.as_released)
        terms = (self.refinement_terms if self.as_released else self.head_terms)(batch, made_up)
        self.descend(terms, self.refiner)
        return terms

    def head_terms(self, batch: Batch, made_up: Tensor) -> Terms:
        """½ · CE among all classes seen, rare ones weighted more, and λ_hkd · HKD; features do not learn."""
        with torch.no_grad():
            with evaluating(self.network):
                features = self.network.features(torch.cat([batch.images, made_up]))
            old_logits = self.old.network(made_up)
            labels = torch.cat([batch.labels, self.recognized(old_logits)])
            self.counts.index_add_(0, labels, torch.ones_like(labels, dtype=self.counts.dtype))
        logits = linear_in_full(self.network.classifier, features)
        class_weights = (1 / self.counts.clamp(min=1)).to(logits.dtype)
        fit = self.fit_all(logits, labels, class_weights)
        _, hkd, _ = self.weights
        return {"refinement": 0.5 * fit, "distillation": hkd * self.keep(logits[len(batch.labels) :], old_logits)}

    def refinement_terms(self, batch: Batch, made_up: Tensor) -> Terms:
        """λ_ce · weighted CE among all classes seen, and λ_hkd · HKD with the old logits of the stream's images.

        The made-up images pass twice, once for each term: the outputs agree, but running statistics see them twice.
        """
        old = self.old.network
        with torch.no_grad():
            labels = torch.cat([batch.labels, self.recognized(old(made_up))])
            with frozen_statistics(old):
                old_logits = old.train()(batch.images)
            old.eval()
        logits, made_up_logits, again = forward_parts(self.network, batch.images, made_up, made_up)
        of_past = len(self.past_classes) / len(self.present_classes)
        class_weights = torch.where(self.setup.tasks.of_class < self.task, of_past, 1.0).to(logits.dtype)
        fit = self.fit_all(torch.cat([logits, made_up_logits]), labels, class_weights)
        ce, hkd, _ = self.weights
        return {"refinement": ce * fit, "distillation": hkd * self.keep(again, old_logits)}

    def fit_all(self, logits: Tensor, labels: Tensor, class_weights: Tensor) -> Tensor:
        """CE among all classes seen, weighted (C,)."""
        seen = self.seen_classes
        return F.cross_entropy(logits.index_select(1, seen), self.setup.tasks.rank[labels], class_weights[seen])

    def logits(self, images: Tensor) -> Tensor:
        """Scores (N, n_classes) of normalized images; those of classes to come are −∞."""
        return self.network(images).masked_fill(self.setup.tasks.of_class > self.task, -math.inf)
