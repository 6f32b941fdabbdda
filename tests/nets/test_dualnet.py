import pytest
import torch
from torch.nn import functional as F

from cler.data.views import Views
from cler.nets.backbone import Parts
from cler.nets.dualnet import DualNetwork
from cler.nets.projector import Projector
from cler.nets.submodules import output_at
from toys import CIFAR


def golden_network(golden, load_golden):
    weights = golden("dualnet_net_nf4")
    network = DualNetwork(len(weights["classifier.bias"]), width=len(weights["slow.stem.conv"])).double()
    load_golden(network, weights)
    return network


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_golden_forward(golden, load_golden, assert_close, mode):
    fixture = golden("dualnet").under("forward.")
    network = golden_network(golden, load_golden).train(mode == "train")
    images = Views(*CIFAR, dtype=torch.float64).plain(fixture["images"])
    expected = {name: value for name, value in fixture.items() if name.startswith(f"{mode}.")}
    found = {
        f"{mode}.logits": network(images),
        f"{mode}.fused_features": network.features(images),
        f"{mode}.slow_features": network.slow_features(images),
    }
    if mode == "eval":
        for j, stage in enumerate(network.slow.stages, start=1):
            found[f"{mode}.h{j}"] = output_at(network, stage, images)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert_close(found[name], value, name)


def test_golden_forward_of_larger_images(golden, load_golden, assert_close):
    fixture = golden("dualnet").under("forward84.")
    network = golden_network(golden, load_golden).eval()
    assert_close(network(Views(*CIFAR, dtype=torch.float64).plain(fixture["images"])), fixture["eval.logits"])


@pytest.mark.parametrize(
    ("size", "maps"), [(32, [16, 8, 4, 2]), (84, [42, 21, 11, 6]), (12, [6, 3, 2, 1]), (7, [4, 2, 1, 1])]
)
def test_slow_and_fast_maps_have_the_same_size(size, maps):
    network = DualNetwork(10, width=4)
    images = torch.zeros(2, 3, size, size)
    for stage, unit, expected in zip(network.slow.stages, network.fast.values(), maps, strict=True):
        slow, fast = output_at(network, stage, images), output_at(network, unit, images)
        assert slow.shape == fast.shape
        assert slow.shape[2:] == (expected, expected)


def test_the_fusion_by_hand():
    torch.manual_seed(0)
    network = DualNetwork(5, width=2).eval()
    images = torch.randn(3, 3, 16, 16)
    fused, slow = images, network.slow.first_maps(images)
    for j in range(1, 5):
        slow = network.slow.stages[j - 1](slow)
        unit = network.fast[str(j)]
        fused = F.max_pool2d(F.relu(unit.bn(unit.conv(fused))), 2, ceil_mode=True) * slow  # ReLU and pooling commute
    assert torch.allclose(network(images), network.classifier(fused.mean((2, 3))), atol=1e-6)


def test_a_pass_up_to_the_tap_leaves_the_later_slow_stages_out():
    network = DualNetwork(5, width=2)
    called = []
    for name in ("layer1", "layer2", "layer3", "layer4"):
        stage = network.slow.get_submodule(name)
        stage.register_forward_hook(lambda module, inputs, output, name=name: called.append(name))
    output_at(network, network.get_submodule(network.tap), torch.randn(2, 3, 16, 16))
    assert called == ["layer1", "layer2"]


def test_projector_equals_plain_layers(assert_close):
    torch.manual_seed(0)
    projector, norm = Projector(6, 9).double(), torch.nn.BatchNorm1d(9).double()
    batches = [torch.randn(n, 6, dtype=torch.float64) for n in (5, 4)]
    expected = [projector.fc2(F.relu(norm(projector.fc1(batch)))) for batch in batches]
    assert_close(projector(torch.cat(batches), Parts((5, 4))), torch.cat(expected))
    assert_close(projector.bn.running_mean, norm.running_mean)
    assert_close(projector.bn.running_var, norm.running_var)
    assert all(layer.bias is None for layer in (projector.fc1, projector.fc2))
