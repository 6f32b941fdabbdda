"""The `Backbone` interface: what methods and regularizers may use of a network.

Your own backbone is a class with six things, all of which are shown here:

    class Mine(cler.Backbone):
        tap, head = "early", "late"          # CLER's pretext head reads what `early` gives, and is a copy of `late`

        def __init__(self, n_outputs):
            super().__init__()
            self.early, self.late = ..., ...
            self.feature_size = 128
            self.classifier = nn.Linear(128, n_outputs)

        def features(self, images, parts=None, pretext=()):
            ...                              # (N, 128)

`features` has to respect `parts` and `pretext`. For a network whose layers know nothing of them, such as one with plain
`nn.BatchNorm2d`, `cler.backbone(module, tap=..., head=..., classifier=...)` does all of this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.nets.modes import full_precision


class Parts(NamedTuple):
    """What a batch is made up of: parts that are normalized separately, as if each had a pass of its own.

    In training, each part is normalized by its own statistics, and running statistics move part after part, in order.
    In evaluation, parts make no difference.
    """

    sizes: tuple[int, ...]
    """How many images each part has; they follow each other in the batch."""
    silent: int = 0
    """How many of the parts, the last ones, leave running statistics alone."""


@dataclass
class PretextImages:
    """Images that go through a network with a batch, but only as far as its tap.

    They are normalized separately from the batch, and running statistics never see them.
    """

    images: Tensor
    sizes: tuple[int, ...]
    """How many images each of their parts has."""
    maps: Tensor | None = None
    """What the tap gives for them: the network's `features` and `forward` fill this in."""


class Backbone(nn.Module, ABC):
    """A network that every method and regularizer can train."""

    tap: str
    """Name of the submodule whose output CLER's pretext head reads; a dotted path."""
    head: str
    """Name of the submodule that follows the tap, which the pretext head is a copy of; a dotted path, which may end in
    a slice ('blocks.9:12')."""
    feature_size: int
    """Width of the features."""
    classifier: nn.Linear
    """The last layer: from features to outputs."""
    one_pass: ClassVar[bool] = True
    """Whether a batch of several parts goes through the network in one pass."""
    evaluated: tuple[str, ...] = ()
    """Names of submodules that stay in evaluation mode while the network trains."""

    @abstractmethod
    def features(self, images: Tensor, parts: Parts | None = None, pretext: Sequence[PretextImages] = ()) -> Tensor:
        """What the classifier takes: features (N, feature_size) of normalized images (N, C, H, W).

        `parts` are normalized separately, see `Parts`. Each of `pretext` is given its `maps`, see `PretextImages`.
        """

    def forward(self, images: Tensor, parts: Parts | None = None, pretext: Sequence[PretextImages] = ()) -> Tensor:
        """Outputs (N, n_outputs), which are logits unless the method makes something else of them."""
        return linear_in_full(self.classifier, self.features(images, parts, pretext))

    def replace_classifier(self, classifier: nn.Linear) -> None:
        """Put another layer in the place of `classifier`."""
        self.classifier = classifier

    @property
    def members(self) -> tuple[Backbone, ...]:
        """The networks that it is made of, where those are trained side by side: a regularizer acts on each."""
        return (self,)

    def use(self, generator: torch.Generator | None) -> None:
        """Have all layers that draw random numbers draw them from this generator; without such layers, nothing."""

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation; what is frozen stays in evaluation."""
        super().train(mode)
        for name in self.evaluated:
            self.get_submodule(name).training = False
        return self


def with_pretext(images: Tensor, parts: Parts | None, pretext: Sequence[PretextImages]) -> tuple[Tensor, Parts | None]:
    """A batch with the pretext images behind it, in the layout of maps (channels last), and the parts of it all."""
    if pretext:
        own, silent = parts or Parts((len(images),))
        theirs = [size for each in pretext for size in each.sizes]
        parts = Parts((*own, *theirs), silent + len(theirs))
        images = torch.cat([images, *(each.images for each in pretext)])
    return images.contiguous(memory_format=torch.channels_last), parts


def without_pretext(maps: Tensor, pretext: Sequence[PretextImages]) -> Tensor:
    """The maps of the batch alone; the pretext images are given theirs."""
    if not pretext:
        return maps
    counts = [len(each.images) for each in pretext]
    own, *theirs = maps.split([len(maps) - sum(counts), *counts])
    for each, their_maps in zip(pretext, theirs, strict=True):
        each.maps = their_maps
    return own


def forward_parts(network: Callable[..., Tensor], *batches: Tensor) -> tuple[Tensor, ...]:
    """The network's outputs for several batches, each normalized by its own statistics, in one pass."""
    sizes = tuple(len(batch) for batch in batches)
    return network(torch.cat(batches), Parts(sizes)).split(sizes)


def pool(maps: Tensor) -> Tensor:
    """Average over the whole map, (N, C, H, W) to (N, C), summed in at least single precision."""
    return maps.mean((2, 3), dtype=torch.promote_types(maps.dtype, torch.float32))


def linear_in_full(layer: nn.Linear, features: Tensor) -> Tensor:
    """A linear layer kept out of autocast: logits in bfloat16 would tie, and cost accuracy for no speed."""
    with full_precision(features):
        return layer(features)


class FullLinear(nn.Linear):
    """A linear layer with the parameters of another one, which autocast leaves in full precision wherever it is."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, features: Tensor) -> Tensor:
        """(N, in_features) to (N, out_features)."""
        with full_precision(features):
            return F.linear(features.to(self.weight.dtype), self.weight, self.bias)
