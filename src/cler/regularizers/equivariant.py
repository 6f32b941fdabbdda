"""CLER: tell from the features which rotation, or which jigsaw permutation, an image went through.

    L_r = λ_r · mean over the batch of CE(h_ξ(g_ψ(A_k(x))), k),    k uniform for each image

`network` up to `tap` is g_ψ, the pretext head is h_ξ, the family of transforms is A, `weight` is λ_r.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import itertools
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cler.data.augment import Views
from cler.errors import UsageError, unknown
from cler.nets.norm import Groups, frozen_statistics
from cler.nets.resnet import Guests, linear_in_full, pool
from cler.pretext import Jigsaw, PixelPermutations, Rotation, TransformFamily
from cler.regularizers.base import REGULARIZERS, Entry, Regularizer

FAMILIES: dict[str, type[PixelPermutations]] = {"rotation": Rotation, "jigsaw": Jigsaw}


class Equivariant(Regularizer):
    """Equivariant regularisation of any network, in three lines:

        regularizer = cler.Equivariant(network, "jigsaw", tap="layer3", head="layer4")
        optimizer = torch.optim.SGD([*network.parameters(), *regularizer.parameters()], lr=0.01)
        loss = loss + regularizer(images)        # images: normalised, not augmented

    Args:
        network: any module that takes a batch of images, wrapped by torch.compile or for distributed training or not.
        transforms: 'rotation', 'jigsaw', or an object with `n_transforms` and `apply(images, labels)`.
        tap: the sub-module whose output the pretext head reads; a dotted path.
        head: the sub-module that the head is a copy of, as it is now but for hooks, a dotted path or a slice of one
            ('blocks.9:12'); the mean over the map, or over all tokens, and a linear layer follow. Or a module of your
            own, which is trained itself and turns what the tap gives into (N, n_transforms).
        weight: λ_r.
        generator: where the transforms are drawn from; torch's default if there is none.
        example: images to pass at once, so that what does not fit is found here, and the head's width for certain.

    The pretext images go through the network up to the tap, in a pass of their own or as guests of another, normalised
    by their own batch statistics; the network's running statistics never see them. The network is referred to, not
    owned: it is no part of the regulariser's parameters, state and copies.
    """

    raw_only = True
    linear: nn.Linear | None

    def __init__(
        self,
        network: nn.Module,
        transforms: str | TransformFamily = "jigsaw",
        *,
        tap: str = "layer3",
        head: str | nn.Module = "layer4",
        weight: float = 1.0,
        generator: torch.Generator | None = None,
        example: Tensor | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise UsageError(f"network must be a torch.nn.Module, not {type(network).__name__}")
        if not weight >= 0:
            raise UsageError(f"weight must be zero or larger, not {weight}")
        self.transforms = _family(transforms)
        self.weight = weight
        self.generator = generator
        self.tap = tap
        network = unwrapped(network)
        self._network = _Reference(network)
        self._fits = False
        self._own = isinstance(head, nn.Module)
        if ":" in tap:
            raise UsageError(f"tap '{tap}' has to name one sub-module: the last one of the slice")
        _find(network, tap)
        self.stage = head if isinstance(head, nn.Module) else _trainable_copy(_find(network, head))
        self._takes_groups = "groups" in inspect.signature(self.stage.forward).parameters  # those of our networks do
        output = None if example is None else self._example_output(example)
        self.linear = None
        if isinstance(head, str):
            self.linear = nn.Linear(_width(self.stage, output, head), self.transforms.n_transforms)
            parameter = next(itertools.chain(self.stage.parameters(), network.parameters()))
            self.linear.to(parameter.device, torch.promote_types(parameter.dtype, torch.float32))
        if output is not None:
            self.classify(output)

    def forward(self, images: Tensor) -> Tensor:
        """The weighted loss on images that are normalised and not augmented."""
        if not isinstance(images, Tensor) or not images.is_floating_point():
            kind = getattr(images, "dtype", type(images).__name__)
            raise UsageError(f"the regulariser takes a tensor of normalised images, not {kind}: images / 255, say")
        if not len(images):
            raise UsageError("the regulariser needs at least one image")
        return self.loss(self._network.module, images, images)

    def loss(self, network: nn.Module, raw: Tensor, augmented: Tensor, groups: Groups | None = None) -> Tensor:
        """The weighted loss; only the raw images count."""
        labels = self.draw_labels(len(raw), raw.device)
        return self.weight * F.cross_entropy(self.logits(network, raw, labels, groups), labels)

    def logits(self, network: nn.Module, raw: Tensor, labels: Tensor, groups: Groups | None = None) -> Tensor:
        """What the head makes of each image under its transform, (N, n_transforms)."""
        apart = () if groups is None else (groups,)  # only our own networks take them
        return self.classify(self._head_output(network, self.transforms.apply(raw, labels), *apart))

    def invite(self, network: nn.Module, raw: Tensor, groups: Groups | None) -> Transformed | None:
        """The transformed images, as guests of a network that lets them off where the head reads."""
        if getattr(network, "tap", None) != self.tap or not self._takes_groups:
            return None
        labels = self.draw_labels(len(raw), raw.device)
        sizes = groups.sizes if groups else (len(raw),)
        return Transformed(self.transforms.apply(raw, labels), sizes, labels=labels)

    def loss_of(self, guests: Guests) -> Tensor:
        """The weighted loss, as `loss` gives it."""
        assert isinstance(guests, Transformed)
        logits = self.classify(self.stage(guests.maps, Groups(guests.sizes)))
        return self.weight * F.cross_entropy(logits, guests.labels)

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

    def _head_output(self, network: nn.Module, images: Tensor, *apart: Groups) -> Tensor:
        """What the head gives before pooling."""
        network = unwrapped(network)
        tap = _find(network, self.tap)
        with frozen_statistics(network), _uncompiled(network, self.tap):
            maps = output_at(network, tap, images, *apart)
        if self._fits or torch.compiler.is_compiling():
            return self._read(maps, *apart)
        self._check_tap(tap, maps)
        return self._checked_output(maps, len(images), *apart)

    def _read(self, maps: Tensor, groups: Groups | None = None) -> Tensor:
        """What the head makes of the tap's output, of each group apart."""
        if groups is None:
            return _first(self.stage(maps))
        if self._takes_groups:
            return _first(self.stage(maps, groups))
        return torch.cat([_first(self.stage(part)) for part in maps.split(list(groups.sizes))])

    def _check_tap(self, tap: nn.Module, maps: Any) -> None:
        """Refuse what the head cannot read, and what the network cannot learn from."""
        if not isinstance(maps, Tensor):
            kind = type(maps).__name__
            raise UsageError(f"tap '{self.tap}' gives a {kind}, not a tensor; name a sub-module inside or after it")
        trained = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in tap.parameters())
        if trained and not maps.requires_grad:
            raise UsageError(f"no gradient would reach tap '{self.tap}': turn off no_grad and checkpointing before it")

    def _checked_output(self, maps: Tensor, count: int, *apart: Groups) -> Tensor:
        """The head's first pass, which shows whether it takes what the tap gives."""
        try:
            output = self._read(maps, *apart)
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(f"the head does not take what tap '{self.tap}' gives, {_shape(maps)}: {reason}") from error
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
                f"{_shape(output)}; to have a sub-module copied, pooled and followed by a linear layer, give its name"
            )
        self._fits = maps.dim() != 3 or len(maps) != maps.shape[1]  # else it may be the tokens that come first
        return output

    def _example_output(self, images: Tensor) -> Tensor:
        """What the head gives for the images and, as they may be as many as the tokens, for one more."""
        for batch in (images, torch.cat([images, images[:1]])):
            untouched = self.transforms.apply(batch, torch.zeros(len(batch), dtype=torch.long, device=batch.device))
            with frozen_statistics(self.stage):
                output = self._head_output(self._network.module, untouched)
        return output


@dataclass
class Transformed(Guests):
    """Images with the transforms that they went through."""

    labels: Tensor = field(kw_only=True)


class _Reference:
    """Holds a network without making it a sub-module; a copy holds the same one, or its copy where that is made too."""

    def __init__(self, module: nn.Module, copies: dict[int, Any] | None = None) -> None:
        self._module = module
        self._copies = copies

    @property
    def module(self) -> nn.Module:
        if self._copies is not None:  # only now is all copied that was to be
            self._module, self._copies = self._copies.get(id(self._module), self._module), None
        return self._module

    def __deepcopy__(self, memo: dict[int, Any]) -> _Reference:
        copied = memo.get(id(self.module))
        return _Reference(self.module, memo) if copied is None else _Reference(copied)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Reference, (self.module,)


class _TapReached(Exception):  # noqa: N818 - not an error: it ends the pass where the rest is not needed
    pass


def output_at(network: nn.Module, tap: nn.Module, *inputs: Any) -> Tensor:
    """The output of sub-module `tap` for these inputs of the network; what comes after it is not computed."""

    def stop(module: nn.Module, inputs: Any, output: Tensor) -> None:
        raise _TapReached(output)

    hooks = tap._forward_hooks
    tap._forward_hooks = {**hooks, -1: stop}  # not register_forward_hook, which torch.compile cannot trace
    try:
        network(*inputs)
    except _TapReached as reached:
        return reached.args[0]
    finally:
        tap._forward_hooks = hooks
    raise UsageError("the network's forward pass never calls the sub-module named as tap")


def _uncompiled(network: nn.Module, tap: str) -> AbstractContextManager[None]:
    """For a pass that ends at the tap: compiled code on the way there is not used, as it would be given up for good."""
    if torch.compiler.is_compiling():
        return nullcontext()
    way = itertools.accumulate(tap.split("."), nn.Module.get_submodule, initial=network)
    functions = (function for module in way for function in (*vars(module).values(), module.forward))
    if any(hasattr(function, "_torchdynamo_orig_callable") for function in functions):
        return torch.compiler.set_stance("force_eager")
    return nullcontext()


def unwrapped(network: nn.Module) -> nn.Module:
    """The module inside what torch.compile and parallel training wrap around it."""
    while True:
        if isinstance(network, DistributedDataParallel | nn.DataParallel):
            network = network.module
        elif isinstance(inner := getattr(network, "_orig_mod", None), nn.Module):
            network = inner
        else:
            return network


def _find(network: nn.Module, path: str) -> nn.Module:
    """The sub-module at a dotted path, which may end in a slice: 'blocks.9:12'."""
    parent, _, last = path.rpartition(".")
    found = None
    try:
        if ":" in last:
            start, stop = (int(number) if number else None for number in last.split(":"))
            found = list(network.get_submodule(parent).children())
        elif path:
            return network.get_submodule(path)
    except (AttributeError, ValueError):
        pass
    if found is not None:
        if max(start or 0, stop or 0) > len(found) or not found[start:stop]:
            raise UsageError(f"'{path}' is not there: '{parent}' has {len(found)} sub-modules")
        return nn.Sequential(*found[start:stop])
    names = [name for name, _ in network.named_modules() if name]
    near = ", ".join(difflib.get_close_matches(path, names, n=6, cutoff=0))
    raise UsageError(f"the network has no sub-module '{path}'; near names: {near}")


def pooled(output: Tensor, width: int) -> Tensor:
    """The mean over all places, (N, width), of maps (N, C, H, W) or (N, H, W, C), or of tokens (N, T, C)."""
    if output.dim() == 4 and output.shape[1] == width:
        return pool(output)
    if output.shape[-1] != width:
        known = output.dim() > 1 and output.shape[1] == width
        advice = "without maps they come last, (N, T, C): give a head of your own" if known else "give example=images"
        raise UsageError(f"the head gives {_shape(output)} where {width} channels were expected: {advice}")
    return output.reshape(len(output), -1, width).mean(1, dtype=torch.promote_types(output.dtype, torch.float32))


def _trainable_copy(module: nn.Module) -> nn.Module:
    """A copy without the hooks, but for torch's own: those of spectral norm make the weights."""
    module = unwrapped(module)
    memo = {
        id(hooks): OrderedDict((key, hook) for key, hook in hooks.items() if _is_of_torch(hook))
        for part in module.modules()
        for hooks in (part._forward_pre_hooks, part._forward_hooks, part._backward_pre_hooks, part._backward_hooks)
    }
    return copy.deepcopy(module, memo).requires_grad_().train()


def _is_of_torch(hook: Any) -> bool:
    return str(getattr(hook, "__module__", None)).startswith("torch.")


def _first(output: Any) -> Any:
    """The output itself, or where it is a tuple, as layers that can give more have it, its first element."""
    return output[0] if isinstance(output, tuple) and output else output


def _family(transforms: str | TransformFamily) -> TransformFamily:
    if isinstance(transforms, str):
        if transforms not in FAMILIES:
            raise unknown("family of transforms", transforms, FAMILIES)
        return FAMILIES[transforms]()
    if isinstance(getattr(transforms, "n_transforms", None), int) and callable(getattr(transforms, "apply", None)):
        return transforms
    raise UsageError(
        f"{transforms!r} is no family of transforms: it needs n_transforms, an integer, and apply(images, labels)"
    )


def _width(stage: nn.Module, output: Tensor | None, name: str) -> int:
    """Width of what a stage gives out: that of its last layer that tells, unless the output says otherwise."""
    widths = [
        width
        for module in stage.modules()
        for attribute in ("out_features", "out_channels", "num_features")
        if isinstance(width := getattr(module, attribute, None), int)
    ]
    if output is not None and (not widths or widths[-1] not in (output.shape[1], output.shape[-1])):
        return output.shape[1] if output.dim() == 4 else output.shape[-1]
    if not widths:
        raise UsageError(f"cannot tell how many channels head '{name}' gives out: give example=images")
    return widths[-1]


def _shape(output: Tensor) -> str:
    return f"({', '.join(['N', *map(str, output.shape[1:])])})"


def _on_our_network(network: nn.Module, *, transforms: str, views: Views, **options: Any) -> Equivariant:
    """The regulariser where our own networks say that it belongs; it makes its own views."""
    return Equivariant(network, transforms, tap=str(network.tap), head=str(network.head), **options)


for _name, _kind in FAMILIES.items():
    _ours = _kind()
    REGULARIZERS[_name] = Entry(
        title=f"CLER ({_name})",
        summary=f"CLER: recognise which {_name} an image went through ({_ours.n_transforms} kinds)",
        build=partial(_on_our_network, transforms=_name),
        weight=1.0,
        check=_ours.check,
    )
