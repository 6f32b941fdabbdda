"""Networks: what methods may use of one, those that are built in, and the adapter for any other."""

from cler.config.registry import NETWORKS
from cler.nets.backbone import Backbone, Parts, PretextImages, forward_parts
from cler.nets.build import Network, build_network, find_network
from cler.nets.resnet import ResNet18

__all__ = [
    "NETWORKS",
    "Backbone",
    "Network",
    "Parts",
    "PretextImages",
    "ResNet18",
    "build_network",
    "find_network",
    "forward_parts",
]
