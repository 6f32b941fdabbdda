"""Random numbers of networks: initial weights, dropout from a run's own generator, a search for other draws."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cler.errors import UsageError

SELU_FLOOR = -1.7580993408473766
"""What SELU gives for −∞, which alpha dropout puts in the place of what it drops."""


@contextmanager
def borrowed_generator() -> Iterator[None]:
    """Inside, one thread may seed and use PyTorch's global generator, which is restored afterwards.

    Initial weights come from it. Other threads wait here, or two networks would share the draws of one seed.
    """
    with _lent, torch.random.fork_rng(devices=[]):
        yield


def _give_back() -> None:
    """In a forked child, which has no other threads."""
    global _lent
    _lent = threading.RLock()


_lent = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_back)


class Source:
    """Where layers draw from; copies of the layers draw from the same. A generator does not go into a pickle."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def __deepcopy__(self, memo: dict[int, Any]) -> Source:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, ()


class Dropout(nn.Module):
    """`nn.Dropout`, and its relatives for whole channels and for SELU networks, that draws from a generator of its own.

    The generator is a run's, which makes the draws part of what a checkpoint carries and a CUDA graph records.
    """

    def __init__(self, p: float, *, channels: bool = False, alpha: bool = False) -> None:
        super().__init__()
        self.p, self.channels, self.alpha = p, channels, alpha
        self.source = Source()

    def forward(self, x: Tensor) -> Tensor:
        """The input in evaluation; in training with a share `p` of it dropped, and the rest scaled up."""
        if not self.training or self.p == 0:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self.channels else x.shape
        kept = torch.empty(shape, dtype=x.dtype, device=x.device)
        kept.bernoulli_(1 - self.p, generator=self.source.generator)
        if not self.alpha:
            return x * (kept / (1 - self.p) if self.p < 1 else kept)
        if self.p == 1:
            return x * kept
        scale = 1 / math.sqrt((1 - self.p) * (1 + self.p * SELU_FLOOR**2))
        return scale * (x * kept + SELU_FLOOR * (1 - kept)) - scale * SELU_FLOOR * self.p

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"p={self.p}, channels={self.channels}, alpha={self.alpha}"


KINDS: dict[type[nn.Module], dict[str, bool]] = {
    nn.Dropout: {},
    **{kind: {"channels": True} for kind in (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)},
    nn.AlphaDropout: {"alpha": True},
    nn.FeatureAlphaDropout: {"alpha": True, "channels": True},
}
"""Layers of PyTorch that can be replaced."""


def replace_dropout(module: nn.Module) -> None:
    """Put our own dropout in the place of PyTorch's, in all sub-modules."""
    replaced: dict[nn.Module, Dropout] = {}  # a layer that is used in two places stays one
    for parent in list(module.modules()):
        for name, layer in parent._modules.items():
            if layer is not None and type(layer) in KINDS:
                if layer not in replaced:
                    rate: Any = layer.p
                    replaced[layer] = Dropout(rate, **KINDS[type(layer)]).train(layer.training)
                parent._modules[name] = replaced[layer]


def draw_from(module: nn.Module, generator: torch.Generator | None) -> None:
    """Have all our dropout layers in a module draw from this generator."""
    source = Source(generator)
    for layer in module.modules():
        if isinstance(layer, Dropout):
            layer.source = source


class _Draws(TorchDispatchMode):
    """Refuses operations that draw from the global generator, by the name of the sub-module that calls them."""

    def __init__(self, running: list[str]) -> None:
        super().__init__()
        self.running = running

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return function(*args, **kwargs or {})
        before = torch.get_rng_state()  # as the tag only says that it could: attention has it with a rate of 0 too
        result = function(*args, **kwargs or {})
        if not torch.equal(torch.get_rng_state(), before):
            where = f"sub-module '{self.running[-1]}'" if self.running and self.running[-1] else "the network's forward"
            raise UsageError(
                f"{where} draws from PyTorch's global generator ({function.overloadpacket.__name__}), which a run "
                "cannot repeat: use nn.Dropout layers, which are given the run's generator, or set its rate to 0"
            )
        return result


@contextmanager
def no_global_draws(module: nn.Module) -> Iterator[None]:
    """Inside, a pass that draws from PyTorch's global generator is refused."""
    running: list[str] = []
    with running_modules(module, running), _Draws(running):
        yield


@contextmanager
def running_modules(module: nn.Module, running: list[str], prefix: str = "") -> Iterator[None]:
    """Inside, `running` has the names of the sub-modules whose forward is running, the innermost last."""
    hooks = []
    for name, each in module.named_modules(prefix=prefix):
        hooks.append(each.register_forward_pre_hook(lambda *_, name=name: running.append(name)))
        hooks.append(each.register_forward_hook(lambda *_: _pop(running)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _pop(running: list[str]) -> None:
    """Drop the innermost name; gives back nothing, since what a forward hook gives back replaces the output."""
    running.pop()
