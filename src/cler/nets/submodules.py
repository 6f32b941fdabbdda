"""Networks of any kind: their sub-modules by name, passes that end at one, and what those give out."""

from __future__ import annotations

import copy
import difflib
import itertools
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cler.errors import UsageError
from cler.nets.backbone import Parts, pool


class Reference:
    """Holds a network without making it a sub-module; a copy holds the same one, or its copy where that is made too."""

    def __init__(self, module: nn.Module, copies: dict[int, Any] | None = None) -> None:
        self._module = module
        self._copies = copies

    @property
    def module(self) -> nn.Module:
        """The network."""
        if self._copies is not None:  # only now is all copied that was to be
            self._module, self._copies = self._copies.get(id(self._module), self._module), None
        return self._module

    def __deepcopy__(self, memo: dict[int, Any]) -> Reference:
        copied = memo.get(id(self.module))
        return Reference(self.module, memo) if copied is None else Reference(copied)

    def __reduce__(self) -> tuple[Any, ...]:
        return Reference, (self.module,)


class _Reached(BaseException):  # not an error, which a network might catch: it ends the pass early
    pass


def output_at(network: nn.Module, tap: nn.Module, images: Tensor, parts: Parts | None = None) -> Tensor:
    """The output of sub-module `tap` for these images, or the first of several; what comes after is not computed.

    A network that does not know of parts has a pass for each.
    """

    def stop(module: nn.Module, inputs: Any, output: Tensor) -> None:
        raise _Reached(first_output(output))

    if parts is not None and not getattr(network, "one_pass", True):
        return torch.cat([output_at(network, tap, piece) for piece in images.split(list(parts.sizes))])
    hooks = tap._forward_hooks
    tap._forward_hooks = {**hooks, -1: stop}  # not register_forward_hook, which torch.compile cannot trace
    try:
        network(images) if parts is None else network(images, parts)
    except _Reached as reached:
        return reached.args[0]
    finally:
        tap._forward_hooks = hooks
    raise UsageError("the network's forward pass never calls the sub-module named as tap")


def input_of(network: nn.Module, layer: nn.Module, images: Tensor) -> Tensor:
    """What sub-module `layer` is given for these images; neither it nor what comes after it is computed."""

    def stop(module: nn.Module, inputs: Any) -> None:
        raise _Reached(*inputs)

    hooks = layer._forward_pre_hooks
    layer._forward_pre_hooks = {**hooks, -1: stop}
    try:
        network(images)
    except _Reached as reached:
        return reached.args[0]
    finally:
        layer._forward_pre_hooks = hooks
    raise UsageError("the network's forward pass never calls the sub-module named as classifier")


def uncompiled(network: nn.Module, tap: str) -> AbstractContextManager[None]:
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


def find_part(network: nn.Module, path: str, remedy: str = "give them as tap= and head=") -> nn.Module:
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
            raise UsageError(f"there is no '{path}': '{parent}' has {len(found)} sub-modules")
        return nn.Sequential(*found[start:stop])
    names = [name for name, _ in network.named_modules() if name]
    near = ", ".join(difflib.get_close_matches(path, names, n=6, cutoff=0))
    told = f"near names: {near} ({remedy})" if near else "it has none at all, and CLER needs two"
    raise UsageError(f"the network has no sub-module '{path}'; {told}")


def pooled(output: Tensor, width: int) -> Tensor:
    """The mean over all places, (N, width), of maps (N, C, H, W) or (N, H, W, C), or of tokens (N, T, C)."""
    if output.dim() == 4 and output.shape[1] == width:
        return pool(output)
    if output.shape[-1] != width:
        known = output.dim() > 1 and output.shape[1] == width
        advice = "without maps they come last, (N, T, C): give a head of your own" if known else "give example=images"
        raise UsageError(f"the head gives {shape_of(output)} where {width} channels were expected: {advice}")
    return output.reshape(len(output), -1, width).mean(1, dtype=torch.promote_types(output.dtype, torch.float32))


def trainable_copy(module: nn.Module) -> nn.Module:
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


def first_output(output: Any) -> Any:
    """The output itself, or where it is a tuple, as layers that can give more have it, its first element."""
    return output[0] if isinstance(output, tuple) and output else output


def width_of(stage: nn.Module, output: Tensor | None, name: str) -> int:
    """Width of what a stage gives out: that of its last layer that has one, unless the output says otherwise."""
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


def shape_of(output: Tensor) -> str:
    """A shape of any number of images, for messages: '(N, 3, 8, 8)'."""
    return f"({', '.join(['N', *map(str, output.shape[1:])])})"
