"""CLER: tell from the features which rotation, or which jigsaw permutation, an image went through.

    L_r = λ_r · mean over the batch of CE(h_ξ(g_ψ(A_k(x))), k),    k uniform for each image

`network` up to `tap` is g_ψ, the pretext head is h_ξ, the family of transforms is A, `weight` is λ_r.
"""

from __future__ import annotations

import inspect
import itertools
import math
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.data.views import Views
from cler.errors import UsageError, unknown
from cler.nets.backbone import Backbone, Parts, PretextImages, linear_in_full
from cler.nets.norm import frozen_statistics
from cler.nets.submodules import (
    Reference,
    find_part,
    first_output,
    output_at,
    pooled,
    shape_of,
    trainable_copy,
    uncompiled,
    unwrapped,
    width_of,
)
from cler.pretext import Jigsaw, PixelPermutations, Rotation, TransformFamily
from cler.regularizers.base import Entry, Regularizer, register

FAMILIES: dict[str, type[PixelPermutations]] = {"rotation": Rotation, "jigsaw": Jigsaw}


class Equivariant(Regularizer):
    """Equivariant regularization of any network, in three lines:

        regularizer = cler.Equivariant(network, "jigsaw", tap="layer3", head="layer4")
        optimizer = torch.optim.SGD([*network.parameters(), *regularizer.parameters()], lr=0.01)
        loss = loss + regularizer(images)        # images: normalized, not augmented

    Args:
        network: any module that takes a batch of images; it may be compiled or wrapped for distributed training.
        transforms: 'rotation', 'jigsaw', or an object with `n_transforms` and `apply(images, labels)`.
        tap: the submodule whose output the pretext head reads; a dotted path. By default the one that a `cler.Backbone`
            names, and layer3 of any other network; the head's default is that of the backbone, or layer4.
        head: the submodule to copy as the head, as it is now but without hooks: a dotted path, or a slice of one
            ('blocks.9:12'). The mean over the map, or over all tokens, and a linear layer follow it. Or your own
            module, which is used and trained itself and turns the tap's output into (N, n_transforms).
        weight: weight of the loss (λ_r).
        generator: what the transforms are drawn from; by default torch's own generator.
        example: images to try right away, so that a tap and head that do not fit, or an unclear width, are found here.

    The pretext images go through the network up to the tap, in a separate pass or together with another batch. While
    the network trains, they are normalized by their own batch statistics; its running statistics never see them. The
    regularizer only refers to the network: the network is not part of its parameters, state or copies.
    """

    raw_only = True
    linear: nn.Linear | None

    def __init__(
        self,
        network: nn.Module,
        transforms: str | TransformFamily = "jigsaw",
        *,
        tap: str | None = None,
        head: str | nn.Module | None = None,
        weight: float = 1.0,
        generator: torch.Generator | None = None,
        example: Tensor | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise UsageError(f"network must be a torch.nn.Module, not {type(network).__name__}")
        self.weight = _number(weight)
        if not 0 <= self.weight < math.inf:
            raise UsageError(f"weight must be a number that is at least zero, not {weight!r}")
        network = unwrapped(network)
        usual = (network.tap, network.head) if isinstance(network, Backbone) else ("layer3", "layer4")
        tap, head = usual[0] if tap is None else tap, usual[1] if head is None else head
        if not isinstance(tap, str):
            raise UsageError(f"tap must be the name of a sub-module, as in tap='layer3', not a {type(tap).__name__}")
        if not isinstance(head, str | nn.Module):
            raise UsageError(f"head must be the name of a sub-module, or a module, not a {type(head).__name__}")
        if not isinstance(generator, torch.Generator | None):
            raise UsageError(f"generator must be a torch.Generator, as from .manual_seed(0), not {generator!r}")
        self.transforms = _family(transforms)
        self.generator = generator
        self.tap = tap
        self._network = Reference(network)
        self._fits = False
        self._own = isinstance(head, nn.Module)
        if ":" in tap:
            raise UsageError(f"tap '{tap}' has to name one sub-module: the last one of the slice")
        find_part(network, tap)
        self.stage = head if isinstance(head, nn.Module) else trainable_copy(find_part(network, head))
        self._takes_parts = "parts" in inspect.signature(self.stage.forward).parameters  # those of our networks do
        output = None if example is None else self._example_output(example)
        self.linear = None
        if isinstance(head, str):
            self.linear = nn.Linear(width_of(self.stage, output, head), self.transforms.n_transforms)
            parameter = next(itertools.chain(self.stage.parameters(), network.parameters()))
            self.linear.to(parameter.device, torch.promote_types(parameter.dtype, torch.float32))
        if output is not None:
            self.classify(output)

    def forward(self, images: Tensor) -> Tensor:
        """The weighted loss on images that are normalized and not augmented."""
        _check_images(images)
        return self.loss(self._network.module, images, images)

    def loss(
        self,
        network: nn.Module,
        raw: Tensor,
        augmented: Tensor,
        labels: Tensor | None = None,
        parts: Parts | None = None,
    ) -> Tensor:
        """The weighted loss; only the raw images count."""
        drawn = self.draw_labels(len(raw), raw.device)
        return self.weight * F.cross_entropy(self.logits(network, raw, drawn, parts), drawn)

    def logits(self, network: nn.Module, raw: Tensor, labels: Tensor, parts: Parts | None = None) -> Tensor:
        """What the head makes of each image under its transform, (N, n_transforms)."""
        images = self.transforms.apply(raw, labels)
        if len(images) != len(raw):
            raise UsageError(f"the transforms give {len(images)} images for {len(raw)}: apply has to give one for each")
        return self.classify(self._head_output(network, images, parts))

    def pretext_images(self, network: nn.Module, raw: Tensor, parts: Parts | None) -> Transformed | None:
        """The transformed images, to go with a batch through a network whose tap is where the head reads."""
        if not isinstance(network, Backbone) or network.tap != self.tap or self._own:
            return None
        labels = self.draw_labels(len(raw), raw.device)
        sizes = parts.sizes if parts else (len(raw),)
        return Transformed(self.transforms.apply(raw, labels), sizes, labels=labels)

    def loss_of(self, pretext: PretextImages) -> Tensor:
        """The weighted loss, as `loss` gives it."""
        assert isinstance(pretext, Transformed)
        assert pretext.maps is not None
        parts = Parts(pretext.sizes)
        output = (
            self._read(pretext.maps, parts)
            if self._fits
            else self._checked_output(pretext.maps, len(pretext.images), parts)
        )
        self._fits = True
        logits = self.classify(output)
        return self.weight * F.cross_entropy(logits, pretext.labels)

    def classify(self, output: Tensor) -> Tensor:
        """What the head gives after pooling."""
        if self.linear is None:
            return output
        features = pooled(output, self.linear.in_features)
        return linear_in_full(self.linear, features.to(self.linear.weight.dtype))

    def draw_labels(self, count: int, device: torch.device) -> Tensor:
        """One transform for each image, uniform."""
        if self.generator is not None and self.generator.device.type != device.type:
            raise UsageError(f"the images are on {device}, the generator is not: torch.Generator('{device.type}')")
        return torch.randint(self.transforms.n_transforms, (count,), generator=self.generator, device=device)

    def _head_output(self, network: nn.Module, images: Tensor, parts: Parts | None = None) -> Tensor:
        """What the head gives before pooling."""
        network = unwrapped(network)
        tap = find_part(network, self.tap)
        with frozen_statistics(network), uncompiled(network, self.tap):
            maps = output_at(network, tap, images, parts)
        if self._fits or torch.compiler.is_compiling():
            return self._read(maps, parts)
        self._check_tap(tap, maps)
        output = self._checked_output(maps, len(images), parts)
        self._fits = maps.dim() != 3 or len(maps) != maps.shape[1]  # else it may be the tokens that come first
        return output

    def _read(self, maps: Tensor, parts: Parts | None = None) -> Tensor:
        """What the head makes of the tap's output, of each part separately."""
        if parts is None:
            return first_output(self.stage(maps))
        if self._takes_parts:
            return first_output(self.stage(maps, parts))
        return torch.cat([first_output(self.stage(part)) for part in maps.split(list(parts.sizes))])

    def _check_tap(self, tap: nn.Module, maps: Any) -> None:
        """Refuse what the head cannot read, and what the network cannot learn from."""
        if not isinstance(maps, Tensor):
            kind = type(maps).__name__
            raise UsageError(f"tap '{self.tap}' gives a {kind}, not a tensor; name a sub-module inside or after it")
        trained = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in tap.parameters())
        if trained and not maps.requires_grad:
            raise UsageError(f"no gradient would reach tap '{self.tap}': turn off no_grad and checkpointing before it")

    def _checked_output(self, maps: Tensor, count: int, parts: Parts | None = None) -> Tensor:
        """The head's first pass, which shows whether it takes what the tap gives."""
        try:
            output = self._read(maps, parts)
        except torch.OutOfMemoryError:
            raise
        except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(
                f"the head does not take what tap '{self.tap}' gives, {shape_of(maps)}: {reason}"
            ) from error
        if not isinstance(output, Tensor):
            raise UsageError(f"the head gives a {type(output).__name__}, not a tensor or a tuple that begins with one")
        if output.shape[:1] != (count,):
            raise UsageError(
                f"the head gives {tuple(output.shape)} for {count} images, which have to come first: "
                "batch_first=True, or a head of your own that turns what the tap gives"
            )
        if self._own and output.shape != (count, self.transforms.n_transforms):
            raise UsageError(
                f"a head of your own has to give (N, {self.transforms.n_transforms}), this one gives "
                f"{shape_of(output)}; to have a sub-module copied, pooled and followed by a linear layer, give its name"
            )
        return output

    def _example_output(self, images: Tensor) -> Tensor:
        """What the head gives for the images and, as they may be as many as the tokens, for one more."""
        _check_images(images)
        for batch in (images, torch.cat([images, images[:1]])):
            untouched = self.transforms.apply(batch, torch.zeros(len(batch), dtype=torch.long, device=batch.device))
            with frozen_statistics(self.stage):
                output = self._head_output(self._network.module, untouched)
        return output


@dataclass
class Transformed(PretextImages):
    """Images with the transforms that they went through."""

    labels: Tensor = field(kw_only=True)


def _check_images(images: Any) -> None:
    """Refuse what cannot be normalized images."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        kind, advice = type(images).__name__, "torch.as_tensor(images).float(), and normalize them"
        if isinstance(images, Tensor):
            kind, advice = str(images.dtype), "images / 255, say"
        raise UsageError(f"the regularizer takes a tensor of normalized images, not {kind}: {advice}")
    if not len(images):
        raise UsageError("the regularizer needs at least one image")


def _number(value: object) -> float:
    """NaN for what is none."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan


def _family(transforms: str | TransformFamily) -> TransformFamily:
    if isinstance(transforms, str):
        if transforms not in FAMILIES:
            raise unknown("family of transforms", transforms, [*FAMILIES, "or an object such as cler.Flips()"])
        return FAMILIES[transforms]()
    if isinstance(getattr(transforms, "n_transforms", None), int) and callable(getattr(transforms, "apply", None)):
        return transforms
    raise UsageError(
        f"{transforms!r} is not a family of transforms: it needs n_transforms, an integer, and apply(images, labels)"
    )


def _on_our_network(network: nn.Module, *, transforms: str, views: Views, **options: Any) -> Equivariant:
    """The regularizer where a backbone says that it belongs; it makes its own views."""
    return Equivariant(network, transforms, **options)


for _name, _kind in FAMILIES.items():
    _ours = _kind()
    register(
        Entry(
            name=_name,
            title=f"CLER ({_name})",
            summary=f"CLER: recognize which of {_ours.n_transforms} {_name}s was applied to an image",
            build=partial(_on_our_network, transforms=_name),
            weight=1.0,
            check=_ours.check,
        )
    )
