"""CLER: equivariant regularization for online continual learning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cler.learner import Learner
    from cler.nets import Backbone, ResNet18
    from cler.nets.adapter import backbone
    from cler.pretext import Flips, Jigsaw, Product, Rotation
    from cler.regularizers import Equivariant

__version__ = "0.1.0"
__all__ = [
    "Backbone",
    "Equivariant",
    "Flips",
    "Jigsaw",
    "Learner",
    "Product",
    "ResNet18",
    "Rotation",
    "__version__",
    "backbone",
]
_WHERE = {
    "Equivariant": "regularizers",
    "Learner": "learner",
    "Backbone": "nets",
    "ResNet18": "nets",
    "backbone": "nets.adapter",
    **dict.fromkeys(("Flips", "Jigsaw", "Product", "Rotation"), "pretext"),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that a command that needs no PyTorch does not wait for it."""
    if name not in _WHERE:
        raise AttributeError(f"module 'cler' has no attribute '{name}'")
    return getattr(import_module(f"cler.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
