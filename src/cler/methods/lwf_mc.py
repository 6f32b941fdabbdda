"""LwF.MC: no buffer; the network as it was before the task says what to keep.

    L = BCE(stream) + w · Σθ²

over several epochs, each class with a sigmoid of its own: the labels are the targets of new classes, the old network's
outputs those of past ones. That is the method as iCaRL's authors compare with it, and the paper's numbers come out with
it. What the paper's authors released under this name is another one, here the variants 'released' and 'normalized':

    L = CE(stream) + α · KD + w · Σθ²

after the new rows of the classifier have been trained alone, for as long. The options `alpha` and `decay` are α and w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cler.config.schema import setting
from cler.errors import UsageError
from cler.methods.base import About, Method, Terms, register
from cler.methods.optimizers import make_optimizer
from cler.methods.setup import Setup
from cler.nets.backbone import Backbone, linear_in_full
from cler.nets.frozen import Frozen
from cler.streams import Batch

VARIANTS = ("sigmoid", "released", "normalized")
TEMPERATURE = 2.0


@dataclass(frozen=True)
class LwfMcOptions:
    """Settings that only LwF.MC has.

    The variants: 'sigmoid', as in iCaRL's comparison; 'released', as in the authors' code, with a softmax, a warm-up
    and an old network that is asked about images that are not normalized; 'normalized', the same with images that are.
    """

    alpha: float = setting(1.0, "Weight of the distillation (α); no effect with sigmoids.", least=0)
    decay: float = setting(0.0, "Weight of the sum of all squared parameters (w).", least=0)
    variant: str = setting("sigmoid", "Sigmoids, or the softmax that the paper's authors released.", choices=VARIANTS)

    def __post_init__(self) -> None:
        if self.variant == "sigmoid" and self.alpha != LwfMcOptions.alpha:
            raise UsageError(
                f"{self.alpha} has no effect with sigmoids: leave it out, or use variant=released", "alpha"
            )


def distillation(logits: Tensor, old_logits: Tensor) -> Tensor:
    """KD: cross-entropy of softened outputs with the softened old ones."""
    old = F.softmax(old_logits / TEMPERATURE, dim=1)
    return -(old * F.log_softmax(logits / TEMPERATURE, dim=1)).sum(1).mean()


@register
class LwfMc(Method):
    """LwF.MC: what a copy of the network from before the task says of past classes is kept.

    Without sigmoids there are two phases a task, a warm-up of the new rows of the classifier and the learning itself.
    """

    name = "lwf-mc"
    about = About(title="LwF.MC", summary="no buffer: distillation from the network as it was before the task")
    Options = LwfMcOptions
    options: LwfMcOptions
    network: Backbone

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.old = Frozen(self.network)
        self.warmer = make_optimizer("sgd", list(self.network.classifier.parameters()), setup.lr)

    @classmethod
    def phases(cls, options: Any, task: int, *, epoch: int, epochs: int) -> dict[str, int]:
        """Without sigmoids a warm-up as long as the task, from the second one on."""
        warm_up = {"warm_up": epochs * epoch} if task > 0 and options.variant != "sigmoid" else {}
        return warm_up | {"observe": epochs * epoch}

    def begin_task(self, task: int) -> None:
        """Keep a copy of the network as it is: it says what to keep, and has the features of the warm-up."""
        super().begin_task(task)
        self.old.become(self.network)

    def warm_up(self, batch: Batch) -> Terms:
        """A step of the classifier's new rows; no other one has a gradient, and plain SGD leaves it alone."""
        with torch.no_grad():
            features = self.old.network.features(batch.images)
        terms = {"warm-up": self.loss_within_task(linear_in_full(self.network.classifier, features), batch.labels)}
        self.descend(terms, self.warmer)
        return terms

    def observe(self, batch: Batch) -> Terms:
        """A step of everything."""
        (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
        terms = (self.sigmoid_terms if self.options.variant == "sigmoid" else self.softmax_terms)(logits, batch)
        if self.options.decay:
            terms["weight decay"] = self.options.decay * self.sum_of_squares()
        terms |= penalties
        self.descend(terms)
        return terms

    def softmax_terms(self, logits: Tensor, batch: Batch) -> Terms:
        """CE over the classes seen, and α · KD over those of the past."""
        labels = self.setup.tasks.rank[batch.labels]
        terms = {"stream": F.cross_entropy(logits.index_select(1, self.seen_classes), labels)}
        if self.task > 0:
            images = self.views.plain(batch.pixels) if self.options.variant == "normalized" else batch.pixels / 255
            distilled = distillation(logits.index_select(1, self.past_classes), self.old_logits(images))
            terms["distillation"] = self.options.alpha * distilled
        return terms

    def sigmoid_terms(self, logits: Tensor, batch: Batch) -> Terms:
        """Binary cross-entropy over the classes seen: with the labels for new ones, the old outputs for the others."""
        targets = (batch.labels[:, None] == self.seen_classes).to(logits.dtype)
        if self.task > 0:
            new = targets[:, len(self.past_classes) :]
            targets = torch.cat([self.old_logits(batch.images).sigmoid(), new], dim=1)
        outputs = self.by_task(logits)[:, : len(self.seen_classes)]
        return {"cross-entropy": F.binary_cross_entropy_with_logits(outputs, targets)}

    def by_task(self, logits: Tensor) -> Tensor:
        """All logits in the order of tasks, so that those of past and of seen classes are slices.

        A slice is laid out in memory as the logits are, a selection is not; on a CPU that changes the last bit of a
        sigmoid.
        """
        return logits.index_select(1, self.setup.tasks.ordered)

    @torch.no_grad()
    def old_logits(self, images: Tensor) -> Tensor:
        """What the old network says of the past classes."""
        return self.by_task(self.old.network(images))[:, : len(self.past_classes)]

    def sum_of_squares(self) -> Tensor:
        """Σθ² over all that is trained."""
        return torch.stack(torch._foreach_norm(self.trained)).square().sum()
