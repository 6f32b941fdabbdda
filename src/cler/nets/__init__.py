"""Networks."""

from cler.config.registry import NETWORKS
from cler.nets.resnet import ResNet18, forward_apart

NETWORKS.register("resnet18", ResNet18)

__all__ = ["NETWORKS", "ResNet18", "forward_apart"]
