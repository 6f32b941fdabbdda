"""CLER: tell from the features which rotation, or which jigsaw permutation, an image went through.

    L_r = λ_r · mean over the batch of CE(h_ξ(g_ψ(A_k(x))), k),    k uniform for each image

`network` up to `tap` is g_ψ, the pretext head is h_ξ, the family of transforms is A, `weight` is λ_r.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.data.augment import Views
from cler.errors import UsageError, unknown
from cler.nets.norm import frozen_statistics
from cler.nets.resnet import linear_in_full, pool
from cler.pretext import Jigsaw, PixelPermutations, Rotation, TransformFamily
from cler.regularizers.base import REGULARIZERS, Entry, Regularizer

FAMILIES: dict[str, type[PixelPermutations]] = {"rotation": Rotation, "jigsaw": Jigsaw}


class Equivariant(Regularizer):
    """Equivariant regularisation of any network, in three lines:

        regularizer = cler.Equivariant(network, "jigsaw", tap="layer3", head="layer4")
        optimizer = torch.optim.SGD([*network.parameters(), *regularizer.parameters()], lr=0.01)
        loss = loss + regularizer(images)        # images: normalised, not augmented

    Args:
        network: any module that takes a batch of images.
        transforms: 'rotation', 'jigsaw', or an object with `n_transforms` and `apply(images, labels)`.
        tap: the sub-module whose output the pretext head reads; a dotted path.
        head: the sub-module that the head is a copy of, as it is now; average pooling and a linear layer follow.
        weight: λ_r.
        generator: where the transforms are drawn from; torch's default if there is none.

    The pretext images go through the network in a pass of their own, up to the tap, normalised by their own batch
    statistics; the network's running statistics never see them.
    """

    def __init__(
        self,
        network: nn.Module,
        transforms: str | TransformFamily = "jigsaw",
        *,
        tap: str = "layer3",
        head: str = "layer4",
        weight: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if isinstance(transforms, str):
            if transforms not in FAMILIES:
                raise unknown("family of transforms", transforms, FAMILIES)
            transforms = FAMILIES[transforms]()
        self.transforms = transforms
        self.weight = weight
        self.generator = generator
        self.tap = tap
        self._network = (network,)  # in a tuple, so that the network's parameters do not become the regulariser's
        _find(network, tap)
        self.stage = copy.deepcopy(_find(network, head))
        example = next(self.stage.parameters())
        self.linear = nn.Linear(_output_channels(self.stage, head), transforms.n_transforms)
        self.linear.to(example.device, example.dtype)

    def forward(self, images: Tensor) -> Tensor:
        """The weighted loss on images that are normalised and not augmented."""
        return self.loss(self._network[0], images, images)

    def loss(self, network: nn.Module, raw: Tensor, augmented: Tensor, groups: Sequence[int] | None = None) -> Tensor:
        """The weighted loss; only the raw images count."""
        labels = self.draw_labels(len(raw), raw.device)
        return self.weight * F.cross_entropy(self.logits(network, raw, labels, groups), labels)

    def logits(self, network: nn.Module, raw: Tensor, labels: Tensor, groups: Sequence[int] | None = None) -> Tensor:
        """What the head makes of each image under its transform, (N, n_transforms)."""
        apart = () if groups is None else (groups,)  # only our own networks take them
        transformed = self.transforms.apply(raw, labels)
        with frozen_statistics(network):
            maps = output_at(network, _find(network, self.tap), transformed, *apart)
        return linear_in_full(self.linear, pool(self.stage(maps, *apart)))

    def draw_labels(self, count: int, device: torch.device) -> Tensor:
        """One transform for each image, uniform."""
        return torch.randint(self.transforms.n_transforms, (count,), generator=self.generator, device=device)


class _TapReached(Exception):  # noqa: N818 - not an error: it ends the pass where the rest is not needed
    pass


def output_at(network: nn.Module, tap: nn.Module, *inputs: Any) -> Tensor:
    """The output of sub-module `tap` for these inputs of the network; what comes after it is not computed."""
    outputs: list[Tensor] = []

    def stop(module: nn.Module, inputs: Any, output: Tensor) -> None:
        outputs.append(output)
        raise _TapReached

    hook = tap.register_forward_hook(stop)
    try:
        network(*inputs)
    except _TapReached:
        pass
    finally:
        hook.remove()
    if not outputs:
        raise UsageError("the network's forward pass never calls the sub-module named as tap")
    return outputs[0]


def _find(network: nn.Module, path: str) -> nn.Module:
    try:
        return network.get_submodule(path)
    except AttributeError:
        raise unknown("sub-module", path, [name for name, _ in network.named_modules() if name]) from None


def _output_channels(stage: nn.Module, name: str) -> int:
    """Width of what a stage gives out: that of its last layer that tells."""
    for module in reversed(list(stage.modules())):
        for attribute in ("num_features", "out_channels", "out_features"):
            if isinstance(width := getattr(module, attribute, None), int):
                return width
    raise UsageError(f"cannot tell how many channels '{name}' gives out; name a sub-module that ends in a layer")


def _on_our_network(network: nn.Module, *, transforms: str, views: Views, **options: Any) -> Equivariant:
    """The regulariser where our own networks say that it belongs; it makes its own views."""
    return Equivariant(network, transforms, tap=str(network.tap), head=str(network.head), **options)


for _name, _family in FAMILIES.items():
    REGULARIZERS[_name] = Entry(
        title=f"CLER ({_name})",
        summary=f"CLER: recognise which {_name} an image went through ({_family.n_transforms} kinds)",
        build=partial(_on_our_network, transforms=_name),
        weight=1.0,
        check=_family().check,
    )
