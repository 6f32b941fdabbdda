"""Networks."""

from cler.nets.resnet import ResNet18, forward_apart

__all__ = ["ResNet18", "forward_apart"]
