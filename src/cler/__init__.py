"""CLER: equivariant regularisation for online continual learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cler.nets import ResNet18
from cler.pretext import Flips, Jigsaw, Product, Rotation
from cler.regularizers import Equivariant

if TYPE_CHECKING:
    from cler.learner import Learner

__version__ = "0.1.0"
__all__ = ["Equivariant", "Flips", "Jigsaw", "Learner", "Product", "ResNet18", "Rotation", "__version__"]


def __getattr__(name: str) -> Any:
    """The learner is imported when it is asked for: it needs more than the rest."""
    if name != "Learner":
        raise AttributeError(f"module 'cler' has no attribute '{name}'")
    from cler.learner import Learner

    return Learner
