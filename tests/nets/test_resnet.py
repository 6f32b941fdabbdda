import copy

import pytest
import torch

from cler.data.views import Views
from cler.nets import ResNet18, forward_parts
from cler.nets.backbone import Parts
from cler.nets.resnet import compile_blocks
from toys import CIFAR


@pytest.mark.parametrize(("width", "parameters", "stage"), [(64, 11_220_132, 8_393_728), (20, 1_109_240, 820_800)])
def test_parameter_counts(width, parameters, stage):
    network = ResNet18(100, width=width)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert sum(p.numel() for p in network.layer4.parameters()) == stage


@pytest.mark.parametrize(("size", "maps"), [(32, [32, 16, 8, 4]), (84, [84, 42, 21, 11])])
def test_map_sizes(size, maps):
    network = ResNet18(10, width=4)
    x = network.stem(torch.zeros(2, 3, size, size))
    for stage, expected in zip((network.layer1, network.layer2, network.layer3, network.layer4), maps, strict=True):
        x = stage(x)
        assert x.shape[2:] == (expected, expected)


@pytest.mark.parametrize("size", ["s32", "s84"])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_golden_forward(golden, load_golden, assert_close, size, mode):
    fixture, weights = golden("resnet_forward"), golden("net_nf4")
    network = ResNet18(len(weights["classifier.bias"]), width=len(weights["stem.conv"])).double()
    load_golden(network, weights)
    network.train(mode == "train")
    maps = []
    network.layer3.register_forward_hook(lambda module, inputs, output: maps.append(output))
    images = Views(*CIFAR, dtype=torch.float64).plain(fixture[f"{size}.images"])
    features = network.features(images)
    assert_close(features, fixture[f"{size}.{mode}.features"])
    stored = fixture[f"{size}.{mode}.layer3"]
    stride = 4 if size == "s84" else 1
    assert_close(maps[0][:, :, ::stride, ::stride], stored)
    if mode == "train":
        state = network.state_dict()
        for name, value in fixture.under(f"{size}.after.").items():
            key = name.replace(".mean", ".running_mean").replace(".var", ".running_var")
            assert_close(state[key], value, name)
        load_golden(network, weights)
    assert_close(network(images), fixture[f"{size}.{mode}.logits"])


def test_parts_equal_separate_passes(assert_close):
    torch.manual_seed(0)
    together = ResNet18(7, width=4).double()
    one_by_one = ResNet18(7, width=4).double()
    one_by_one.load_state_dict(together.state_dict())
    batches = [torch.randn(n, 3, 16, 16, dtype=torch.float64) for n in (4, 6, 3)]
    joined = forward_parts(together, *batches)
    separate = [one_by_one(batch) for batch in batches]
    for ours, theirs in zip(joined, separate, strict=True):
        assert_close(ours, theirs)
    sum(out.square().sum() for out in joined).backward()
    sum(out.square().sum() for out in separate).backward()
    for (name, ours), theirs in zip(together.named_parameters(), one_by_one.parameters(), strict=True):
        assert_close(ours.grad, theirs.grad, name, 1e-8)
    for (name, ours), theirs in zip(together.named_buffers(), one_by_one.buffers(), strict=True):
        assert_close(ours, theirs, name)


@pytest.mark.usefixtures("shallow")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile warns of its own doing
def test_compiled_blocks_compute_the_same_in_training_and_are_left_out_of_evaluation(monkeypatch):
    monkeypatch.setattr("cler.nets.resnet.COMPILER", "aot_eager")  # all of torch.compile but the code it writes
    torch.manual_seed(0)
    plain = ResNet18(3, width=2).double()
    compiled = copy.deepcopy(plain)
    compile_blocks(compiled)
    images = torch.randn(6, 3, 8, 8, dtype=torch.float64)
    for network in (plain, compiled):
        network(images, Parts((2, 4))).square().sum().backward()
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(plain.state_dict(), compiled.state_dict())
    variants = torch._dynamo.utils.counters["frames"]["total"]
    assert variants > 0
    torch.testing.assert_close(plain.eval()(images), compiled.eval()(images))
    assert torch._dynamo.utils.counters["frames"]["total"] == variants


def test_a_copy_of_a_compiled_network_computes_with_its_own_weights(monkeypatch):
    monkeypatch.setattr("cler.nets.resnet.COMPILER", "eager")
    network = ResNet18(2, width=4)
    compile_blocks(network)
    images = torch.randn(4, 3, 8, 8)
    alone = copy.deepcopy(network)
    expected = alone.train()(images)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    statistics = network.state_dict()["layer1.0.bn1.running_mean"].clone()
    torch.testing.assert_close(alone(images), expected)
    assert torch.equal(network.state_dict()["layer1.0.bn1.running_mean"], statistics)
