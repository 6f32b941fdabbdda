"""CLER: equivariant regularisation for online continual learning."""

from cler.nets import ResNet18
from cler.pretext import Jigsaw, Rotation
from cler.regularizers import Equivariant

__version__ = "0.1.0"
__all__ = ["Equivariant", "Jigsaw", "ResNet18", "Rotation", "__version__"]
