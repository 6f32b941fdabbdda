import pytest
import torch

from cler.nets import ResNet18
from cler.nets.norm import BatchNorm
from cler.paper.filters import convolutions
from cler.paper.recovery import accuracy, drop_filters, recover


@pytest.fixture
def network():
    torch.manual_seed(0)
    return ResNet18(4, width=10)


def lost(network):
    return {
        name: float((layer.weight.abs().sum((1, 2, 3)) == 0).double().mean())
        for name, layer in convolutions(network).items()
    }


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_the_same_share_is_lost_everywhere_and_nothing_else(network, share):
    before = {name: each.clone() for name, each in network.state_dict().items()}
    drop_filters(network, share, torch.Generator().manual_seed(0))
    assert set(lost(network).values()) == {share}
    for name, each in network.state_dict().items():
        kept = each.flatten(1).abs().sum(1) > 0 if each.dim() == 4 else slice(None)
        assert torch.equal(each[kept], before[name][kept])


def test_other_filters_are_lost_with_another_generator(network):
    torch.manual_seed(0)
    other = ResNet18(4, width=10)
    drop_filters(network, 0.5, torch.Generator().manual_seed(0))
    drop_filters(other, 0.5, torch.Generator().manual_seed(1))
    assert not torch.equal(network.layer4[0].conv1.weight, other.layer4[0].conv1.weight)


def test_filters_grow_again_and_accuracy_comes_back(network):
    labels, of_class = torch.arange(4).repeat(10), torch.tensor([0, 0, 1, 1])
    images = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.1 + labels.view(-1, 1, 1, 1) - 1.5
    for layer in network.modules():
        if isinstance(layer, BatchNorm):
            torch.nn.init.constant_(layer.bias, 0.1)  # at 0 or below, ReLU lets no gradient through to a lost filter
    drop_filters(network, 0.3, torch.Generator().manual_seed(0))
    at_first = accuracy(network, (images, labels), of_class).tolist()
    found = recover(network, [(images, labels)] * 40, (images, labels), of_class=of_class, lr=0.05)
    assert len(found["class_il"]) == len(found["task_il"]) == 41
    assert [found["class_il"][0], found["task_il"][0]] == at_first
    assert found["class_il"][-1] > 90 > found["class_il"][0]
    assert all(task >= both for task, both in zip(found["task_il"], found["class_il"], strict=True))
    assert lost(network)["layer1.0.conv1"] == 0
