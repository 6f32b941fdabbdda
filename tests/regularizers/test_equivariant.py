import copy
import itertools

import pytest
import torch
from scipy import stats
from torch import nn

from cler import Equivariant, Jigsaw, ResNet18
from cler.data.views import Views
from toys import CIFAR


def with_permutations(permutations):
    """A jigsaw whose labels are numbered as in the golden files."""
    family = Jigsaw()
    family.permutations = permutations
    return family


def golden_regularizer(golden, load_golden, golden_cler, name, fixture):
    weights = golden("net_nf4")
    network = ResNet18(len(weights["classifier.bias"]), width=len(weights["stem.conv"])).double()
    load_golden(network, weights)
    return network, golden_cler(network, name, fixture)


@pytest.mark.parametrize("name", ["rotation", "jigsaw"])
def test_golden_loss_and_gradients(golden, load_golden, golden_cler, assert_close, name):
    fixture = golden("cler_loss")
    network, regularizer = golden_regularizer(golden, load_golden, golden_cler, name, fixture)
    labels = fixture[f"{name}.labels"]
    regularizer.draw_labels = lambda count, device: labels
    before = copy.deepcopy(network.state_dict())
    images = Views(*CIFAR, dtype=torch.float64).plain(fixture["images"])
    transformed = regularizer.transforms.apply(images, labels)
    stored = fixture[f"{name}.inputs"]
    assert_close(transformed[: len(stored)], stored)
    assert_close(regularizer.logits(network, images, labels), fixture[f"{name}.logits"])

    head_before = copy.deepcopy(dict(regularizer.named_buffers()))
    loss = regularizer(images)
    loss.backward()
    assert_close(loss, fixture[f"{name}.loss"])
    parameters = {**dict(network.named_parameters())}
    parameters |= {f"pretext.{key}": value for key, value in regularizer.named_parameters()}
    gradients = fixture.under(f"{name}.grad.")
    assert gradients
    for key, gradient in gradients.items():
        conv = key.rpartition(".")[2] in ("conv", "conv1", "conv2")
        assert_close(parameters[f"{key}.weight" if conv else key].grad, gradient, key)
    outside = itertools.chain(network.layer4.parameters(), network.classifier.parameters())
    assert all(parameter.grad is None for parameter in outside)
    assert float(fixture[f"{name}.grad_norm.layer4_and_classifier"]) == 0
    for key, value in network.named_buffers():
        assert torch.equal(value, before[key]), key
    assert any(not torch.equal(value, head_before[key]) for key, value in regularizer.named_buffers())


@pytest.mark.parametrize(("width", "name", "parameters"), [(64, "rotation", 8_395_780), (64, "jigsaw", 8_406_040)])
def test_head_is_a_copy_of_the_last_stage(width, name, parameters):
    network = ResNet18(100, width=width)
    regularizer = Equivariant(network, name)
    assert sum(p.numel() for p in regularizer.parameters()) == parameters
    for ours, theirs in zip(regularizer.stage.parameters(), network.layer4.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours is not theirs


def test_running_statistics_move_again_after_the_pretext_pass():
    network = ResNet18(10, width=4)
    regularizer = Equivariant(network, "rotation")
    images = torch.randn(4, 3, 16, 16)
    before = copy.deepcopy(dict(network.named_buffers()))
    regularizer(images)
    assert all(torch.equal(value, before[key]) for key, value in network.named_buffers())
    network(images)
    assert all(not torch.equal(value, before[key]) for key, value in network.named_buffers())


def test_three_lines_on_a_network_of_ones_own():
    torch.manual_seed(0)
    network = nn.Sequential()
    network.add_module("early", nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()))
    network.add_module("late", nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()))
    network.add_module("out", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)))
    images = torch.rand(64, 3, 8, 8) + torch.linspace(0, 2, 8).view(1, 1, 8, 1)  # brighter below: turns can be told

    regularizer = Equivariant(network, "rotation", tap="early", head="late")
    optimizer = torch.optim.SGD([*network.parameters(), *regularizer.parameters()], lr=0.5)
    losses = []
    for _ in range(60):
        loss = regularizer(images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 < 1.2 < losses[0]


def test_every_transform_is_drawn_as_often_as_any_other():
    regularizer = Equivariant(ResNet18(2, width=2), "jigsaw", generator=torch.Generator().manual_seed(0))
    counts = regularizer.draw_labels(4800, torch.device("cpu")).bincount(minlength=24)
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_weight_scales_the_loss():
    network = ResNet18(10, width=4).eval()
    images = torch.randn(4, 3, 16, 16)
    losses = []
    for weight in (1.0, 2.5):
        torch.manual_seed(1)
        regularizer = Equivariant(network, "jigsaw", weight=weight, generator=torch.Generator().manual_seed(3))
        losses.append(float(regularizer(images).detach()))
    assert losses[1] == pytest.approx(2.5 * losses[0], rel=1e-5)
