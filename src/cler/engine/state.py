"""The state of a method that lasts from step to step: collected by name from its attributes, and put back in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cler.errors import UsageError
from cler.methods.base import Method
from cler.regularizers.base import Regularizer

Number = bool | int | float


@dataclass(frozen=True)
class State:
    """The complete state of a method, by dotted names that depend only on its settings."""

    tensors: dict[str, Tensor]
    """The method's own, not copies; those of its optimizers too."""
    numbers: dict[str, Number]
    """Counters that the host keeps."""


def collect(method: Method) -> State:
    """The method's state as it is now."""
    walk = _Walk(method)
    moments = {
        f"{name}.state.{position}.{key}": tensor
        for name, optimizer in walk.optimizers.items()
        for position, state in optimizer.state_dict()["state"].items()
        for key, tensor in state.items()
    }
    return State(walk.tensors | moments, {name: owner[key] for name, (owner, key) in walk.numbers.items()})


@torch.no_grad()
def restore(method: Method, state: State, *, grow: bool = False) -> None:
    """Give a new method this state, in place; a state that does not fit changes nothing.

    With `grow` a tensor may be larger than the stored one, which then fills its leading part: so a method gets more
    classes and keeps what it knows of the others.
    """
    walk = _Walk(method)
    moments = {name for name in state.tensors if any(name.startswith(f"{each}.state.") for each in walk.optimizers)}
    _check_names(state.tensors.keys() - moments, walk.tensors)
    _check_names(state.numbers, walk.numbers)
    for name, tensor in walk.tensors.items():
        _check_fit(name, state.tensors[name], tensor, grow)
    remembered = {
        name: _moments(optimizer, f"{name}.state.", state.tensors, grow) for name, optimizer in walk.optimizers.items()
    }
    for name, tensor in walk.tensors.items():
        _fill(tensor, state.tensors[name])
    for name, (owner, key) in walk.numbers.items():
        owner[key] = state.numbers[name]
    for name, optimizer in walk.optimizers.items():
        optimizer.load_state_dict(optimizer.state_dict() | {"state": remembered[name]})
    if method.working_copies:
        method.working_copies.refresh()


class _Walk:
    """Finds every tensor, number and optimizer that can be reached from a method's attributes, each once."""

    def __init__(self, method: Method) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.numbers: dict[str, tuple[Any, Any]] = {}
        """The dictionary or list that holds the number, and its key there."""
        self.optimizers: dict[str, Optimizer] = {}
        derived = method.working_copies.copies if method.working_copies else []
        self._known: set[Hashable] = {_memory_of(tensor) for tensor in derived}
        self._visit("", method)

    def _visit(self, name: str, thing: Any) -> None:
        identity = _memory_of(thing) if isinstance(thing, Tensor) else id(thing)
        if identity in self._known:
            return
        self._known.add(identity)
        if isinstance(thing, Tensor):
            self.tensors[name] = thing
        elif isinstance(thing, Optimizer):
            self.optimizers[name] = thing
            for number, group in enumerate(thing.param_groups):
                self.numbers[f"{name}.param_groups.{number}.lr"] = group, "lr"
        for owner, key in _parts(thing):
            path = f"{name}.{key}" if name else str(key)
            if not isinstance(owner[key], Number):
                if _counts(thing):
                    _check_kind(path, owner[key])
                self._visit(path, owner[key])
            elif _counts(thing):
                self.numbers[path] = owner, key


def _memory_of(tensor: Tensor) -> Hashable:
    """Equal for two tensors that are the same numbers in the same place."""
    if not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _parts(thing: Any) -> Iterator[tuple[Any, Any]]:
    """Where the parts of a thing are: each in a dictionary or list, under a key.

    Settings (frozen), what is made from them (buffers that do not persist), tables kept by other keys than names, and
    objects of other libraries have no parts that last.
    """
    if isinstance(thing, nn.Module):
        buffers = thing._buffers.keys() - thing._non_persistent_buffers_set
        yield from ((thing._parameters, key) for key in thing._parameters)
        yield from ((thing._buffers, key) for key in thing._buffers if key in buffers)
        yield from ((thing._modules, key) for key in thing._modules)
        yield from ((vars(thing), key) for key in vars(thing) if key not in _OF_EVERY_MODULE)
    elif isinstance(thing, dict):
        yield from ((thing, key) for key in thing if isinstance(key, str | int))
    elif isinstance(thing, list | tuple):
        yield from ((thing, position) for position in range(len(thing)))
    elif is_ours(thing) and not _is_frozen(thing):
        yield from ((vars(thing), key) for key in vars(thing))


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _counts(thing: Any) -> bool:
    """Whether numbers in this thing may change: those of a network are how it was made."""
    return isinstance(thing, Regularizer) or not isinstance(thing, nn.Module | tuple)


def _check_kind(name: str, thing: Any) -> None:
    """Refuse what may change and cannot be saved; strings, functions and the like are taken for settings."""
    carried = isinstance(thing, Tensor | Optimizer | nn.Module | dict | list | tuple) or is_ours(thing)
    settings = thing is None or callable(thing) or _is_frozen(thing) or isinstance(thing, _OF_SETTINGS)
    if not carried and not settings:
        raise UsageError(
            f"{name} is a {type(thing).__name__}, which checkpoints cannot store: keep it in tensors, numbers, lists "
            "or dictionaries of these"
        )


_OF_SETTINGS = (str, torch.Generator, torch.device, torch.dtype)


def is_ours(thing: Any) -> bool:
    """Whether a thing is of a class of this package, or of one derived from such a class."""
    return any(base.__module__.startswith("cler.") for base in type(thing).__mro__)


def _is_frozen(thing: Any) -> bool:
    parameters = getattr(type(thing), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def _check_names(stored: Iterable[str], wanted: Iterable[str]) -> None:
    if differing := sorted(set(stored) ^ set(wanted)):
        raise UsageError(
            f"the stored state belongs to something else: it differs in {', '.join(differing[:3])}; what lasts has "
            "to be made in __init__, and filled later"
        )


def _check_fit(name: str, stored: Tensor, wanted: Tensor, grow: bool) -> None:
    smaller = stored.dim() == wanted.dim() and all(n <= m for n, m in zip(stored.shape, wanted.shape, strict=True))
    if stored.dtype != wanted.dtype or not (stored.shape == wanted.shape or (grow and smaller)):
        found, needed = (f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in (stored, wanted))
        raise UsageError(f"the stored state does not fit: {name} is {found}, not {needed}")


def _fill(tensor: Tensor, stored: Tensor) -> None:
    tensor[tuple(slice(length) for length in stored.shape)].copy_(stored)


def _moments(optimizer: Optimizer, prefix: str, stored: dict[str, Tensor], grow: bool) -> dict[int, dict[str, Tensor]]:
    """What an optimizer remembers of each parameter; laid out in memory as the parameter, where it is of its shape."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    found: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in stored.items():
        if name.startswith(prefix):
            position, key = name.removeprefix(prefix).split(".")
            parameter = parameters[int(position)]
            if tensor.dim():
                _check_fit(name, tensor, parameter, grow)
                _fill(moment := torch.zeros_like(parameter), tensor)
            else:
                moment = tensor.clone()
            found[int(position)][key] = moment
    return found
