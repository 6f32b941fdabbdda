"""The adapter that makes a `Backbone` of any module, with one pass for each part of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from cler.errors import UsageError
from cler.nets.backbone import Backbone, FullLinear, Parts, PretextImages
from cler.nets.norm import frozen_statistics
from cler.nets.randomness import draw_from, replace_dropout
from cler.nets.submodules import find_part, input_of, output_at, unwrapped


def backbone(module: nn.Module, *, tap: str, head: str, classifier: str) -> Backbone:
    """Turn any module that gives logits for images into a network that every method and regularizer can train.

        network = cler.backbone(torchvision.models.resnet18(), tap="layer3", head="layer4", classifier="fc")

    Args:
        module: takes normalized images (N, C, H, W) and returns logits (N, classes). It is used itself, not copied, and
            its dropout layers are replaced by ones that draw from the run's generator.
        tap: the submodule whose output CLER's pretext head reads; a dotted path.
        head: the submodule between the tap and the classifier, which the pretext head is a copy of; a dotted path,
            which may end in a slice ('blocks.9:12').
        classifier: the last layer, an `nn.Linear` that takes features (N, D); a dotted path. If a method needs a
            different number of outputs, a new layer replaces it.

    A submodule that is in evaluation mode while the module is in training, as of `module.stem.eval()`, stays in it.
    In training, parts of a batch that are normalized separately get one pass each, and pretext images get separate
    passes up to the tap, which leave running statistics alone. That is slower than the built-in networks, which do it
    inside their layers, with the same result.
    """
    return AdaptedBackbone(module, tap=tap, head=head, classifier=classifier)


class AdaptedBackbone(Backbone):
    """What `backbone` makes of a module."""

    one_pass = False

    def __init__(self, module: nn.Module, *, tap: str, head: str, classifier: str) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise UsageError(f"cler.backbone takes a torch.nn.Module, not {type(module).__name__}")
        for name, path in {"tap": tap, "head": head, "classifier": classifier}.items():
            if not isinstance(path, str):
                raise UsageError(f"{name} must be the name of a sub-module, as named_modules() gives it, not {path!r}")
        if isinstance(module, Backbone):
            raise UsageError(f"a {type(module).__name__} is a backbone already: use it as it is")
        self.module = unwrapped(module)
        if ":" in tap:
            raise UsageError(f"tap '{tap}' has to name one sub-module: the last one of the slice")
        for path in (tap, head):
            find_part(self.module, path)
        self.tap, self.head = f"module.{tap}", f"module.{head}"
        layer = find_part(self.module, classifier, "give the last layer as classifier=")
        if not isinstance(layer, nn.Linear):
            raise UsageError(f"classifier '{classifier}' has to be an nn.Linear, not a {type(layer).__name__}")
        self._classifier = classifier
        if self.module.training:
            self.evaluated = tuple(f"module.{name}" for name, each in self.module.named_modules() if not each.training)
        self.feature_size = layer.in_features
        self.replace_classifier(layer)
        replace_dropout(self.module)
        _check_norms(self.module)

    @property
    def classifier(self) -> nn.Linear:  # type: ignore[override]
        """The module's last layer."""
        return self.module.get_submodule(self._classifier)  # type: ignore[return-value]

    def replace_classifier(self, classifier: nn.Linear) -> None:
        """Put another layer in the place of the module's last one; autocast leaves it in full precision."""
        self.module.set_submodule(
            self._classifier, FullLinear(classifier) if type(classifier) is nn.Linear else classifier
        )

    def use(self, generator: torch.Generator | None) -> None:
        """Have dropout draw from this generator."""
        draw_from(self.module, generator)

    def features(self, images: Tensor, parts: Parts | None = None, pretext: Sequence[PretextImages] = ()) -> Tensor:
        """What the classifier is given, (N, feature_size), in the type of its weights."""
        classifier = self.classifier
        features = self._in_parts(lambda piece: input_of(self.module, classifier, piece), images, parts)
        self._fill_in(pretext)
        return features.to(classifier.weight.dtype)

    def forward(self, images: Tensor, parts: Parts | None = None, pretext: Sequence[PretextImages] = ()) -> Tensor:
        """What the module gives."""
        outputs = self._in_parts(self.module, images, parts)
        self._fill_in(pretext)
        return outputs

    def _in_parts(self, compute: Callable[[Tensor], Tensor], images: Tensor, parts: Parts | None) -> Tensor:
        """What `compute` gives for each part in a pass of its own, or in evaluation for all parts in one."""
        if parts is None or not self.training:
            return compute(images)
        pieces = images.split(list(parts.sizes))
        tracked = len(pieces) - parts.silent
        outputs = [compute(piece) for piece in pieces[:tracked]]
        with frozen_statistics(self.module):
            outputs += [compute(piece) for piece in pieces[tracked:]]
        return torch.cat(outputs)

    def _fill_in(self, pretext: Sequence[PretextImages]) -> None:
        """Set the maps of pretext images: the tap's output for them."""
        tap = self.get_submodule(self.tap)
        for each in pretext:
            silent = Parts(each.sizes, silent=len(each.sizes))
            each.maps = self._in_parts(lambda piece: output_at(self.module, tap, piece), each.images, silent)


def _check_norms(module: nn.Module) -> None:
    """Refuse batch norms whose average is weighted by a count that the host would have to read in every step."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats and layer.momentum is None:
            raise UsageError(
                f"batch norm {name} has momentum=None, which a step cannot be recorded with; set it to 0.1"
            )
