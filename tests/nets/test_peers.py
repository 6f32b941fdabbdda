import pytest
import torch
from torch import nn

from cler import ResNet18
from cler.nets.backbone import Parts, PretextImages
from cler.nets.peers import Peers


@pytest.mark.parametrize("bias", [True, False])
def test_outputs_are_the_mean_of_the_peers_and_its_classifier_gives_them(bias):
    network = Peers([ResNet18(5, width=2), ResNet18(5, width=4)]).eval()
    for each in network.members:
        each.replace_classifier(nn.Linear(each.feature_size, 5, bias=bias))
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        outputs = network(images)
        assert torch.allclose(outputs, sum(each(images) for each in network.members) / 2)
        assert network.features(images).shape == (3, network.feature_size)
        assert torch.allclose(network.classifier(network.features(images)), outputs, atol=1e-6)


def test_parts_and_pretext_images_go_through_it():
    network = Peers([ResNet18(5, width=2) for _ in range(2)])
    other = Peers([ResNet18(5, width=2) for _ in range(2)])
    other.load_state_dict(network.state_dict())
    images, pretext = torch.randn(5, 3, 16, 16), PretextImages(torch.randn(2, 3, 16, 16), (2,))
    together = network(images, Parts((3, 2)), [pretext])
    apart = torch.cat([other(images[:3]), other(images[3:])])
    assert torch.allclose(together, apart, atol=1e-5)
    assert pretext.maps.shape == (2, 8, 4, 4)
    for mine, theirs in zip(network.buffers(), other.buffers(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
