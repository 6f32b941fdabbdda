"""All tensors that a run holds, to compare two runs by, or a run with itself a step later."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cler.engine import Run
from cler.engine.state import is_ours

NAMED = 4
"""Tensors that a message names; of the others it tells their number."""


def tensors_of(thing: Any) -> dict[str, Tensor]:
    """Every tensor that can be reached from an object's attributes, by the way that leads there."""
    found: dict[str, Tensor] = {}
    _visit(thing, "run", found, set())
    return found


def _visit(thing: Any, path: str, found: dict[str, Tensor], visited: set[int]) -> None:
    if id(thing) in visited:
        return
    visited.add(id(thing))
    if isinstance(thing, Tensor):
        found[path] = thing
    elif isinstance(thing, dict):
        for i, (key, value) in enumerate(thing.items()):
            _visit(value, f"{path}.{key if isinstance(key, str) else i}", found, visited)
    elif isinstance(thing, list | tuple | set):
        for i, value in enumerate(thing):
            _visit(value, f"{path}.{i}", found, visited)
    elif isinstance(thing, nn.Module | torch.optim.Optimizer) or (is_ours(thing) and hasattr(thing, "__dict__")):
        _visit(vars(thing), path, found, visited)


def snapshot(run: Run) -> dict[str, Tensor]:
    """Copies of every tensor, and the generator's state."""
    values = {path: tensor.detach().clone() for path, tensor in tensors_of(run).items()}
    return values | {"generator": run.generator.get_state()}


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """The names that only one of them has, or whose tensors differ."""
    return [
        path for path in {**one, **other} if path not in one or path not in other or not _same(one[path], other[path])
    ]


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal to the bit; what is not a number equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or (
        one.is_floating_point() and bool(((one == other) | (one.isnan() & other.isnan())).all())
    )


def named(paths: list[str]) -> str:
    """Some of the names, for a message."""
    shown = ", ".join(map(_named, paths[:NAMED]))
    return shown if len(paths) <= NAMED else f"{shown} and {len(paths) - NAMED} more"


def _named(path: str) -> str:
    shown = path.removeprefix("run.").removeprefix("method.").removeprefix("setup.")
    return shown.replace("._parameters.", ".").replace("._buffers.", ".").replace("._modules.", ".")
