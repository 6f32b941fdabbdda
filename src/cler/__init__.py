"""CLER: equivariant regularization for online continual learning.

`train` trains a method on a stream, `compare` and `results` show runs in a table, `Learner` learns from images as they
arrive, and `Equivariant` adds CLER to your own training loop. Subclass `Method`, `Regularizer`, `Teacher` or `Stream`
for your own parts; `check` tests all but streams.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cler import data, metrics
    from cler.api import Runs, compare, register, results, train
    from cler.config.schema import setting
    from cler.engine import events
    from cler.errors import UsageError
    from cler.learner import Learner
    from cler.methods.base import About, Method
    from cler.nets import Backbone, ResNet18
    from cler.nets.adapter import backbone
    from cler.pretext import Flips, Jigsaw, Product, Rotation
    from cler.promises import check
    from cler.regularizers import Equivariant, Regularizer
    from cler.streams import Batch, Stream
    from cler.teachers import Teacher

__version__ = "0.2.0"
_WHERE = {
    "cler.api": ("Runs", "compare", "register", "results", "train"),
    "cler.config.schema": ("setting",),
    "cler.engine": ("events",),
    "cler.errors": ("UsageError",),
    "cler.learner": ("Learner",),
    "cler.methods.base": ("About", "Method"),
    "cler.nets": ("Backbone", "ResNet18"),
    "cler.nets.adapter": ("backbone",),
    "cler.promises": ("check",),
    "cler.pretext": ("Flips", "Jigsaw", "Product", "Rotation"),
    "cler.regularizers": ("Equivariant", "Regularizer"),
    "cler.streams": ("Batch", "Stream"),
    "cler.teachers": ("Teacher",),
}
_HOME = {name: module for module, names in _WHERE.items() for name in names}
_MODULES = ("data", "metrics")
__all__ = [
    "About",
    "Backbone",
    "Batch",
    "Equivariant",
    "Flips",
    "Jigsaw",
    "Learner",
    "Method",
    "Product",
    "Regularizer",
    "ResNet18",
    "Rotation",
    "Runs",
    "Stream",
    "Teacher",
    "UsageError",
    "__version__",
    "backbone",
    "check",
    "compare",
    "data",
    "events",
    "metrics",
    "register",
    "results",
    "setting",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that a command that needs no PyTorch does not wait for it."""
    if name in _MODULES:
        return import_module(f"cler.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'cler' has no attribute '{name}'")
    home = import_module(_HOME[name])
    return import_module(f"{_HOME[name]}.{name}") if name == "events" else getattr(home, name)


def __dir__() -> list[str]:
    return __all__
