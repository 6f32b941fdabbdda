import copy
import math

import pytest
import torch
import torch.nn.functional as F

from cler.nets.backbone import Parts, PretextImages
from cler.nets.conv import Conv2d
from cler.nets.mose import MoseNetwork, doubled
from cler.nets.norm import BatchNorm


def images(count, size=16):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("size", [8, 12, 16, 33])
def test_all_experts_have_features_of_one_width_whatever_the_size(size):
    network = MoseNetwork(5, width=2)
    assert network.experts(images(3, size)).shape == (3, 4, network.feature_size)
    assert network(images(3, size)).shape == (3, 5)


def test_as_one_network_it_is_its_last_expert():
    network = MoseNetwork(5, width=2).eval()
    assert torch.equal(network.features(images(3)), network.experts(images(3))[:, -1])
    assert torch.equal(network(images(3)), network.expert[3].classifier(network.features(images(3))))


def test_parts_equal_passes_and_pretext_images_are_silent():
    one = MoseNetwork(5, width=2)
    other = copy.deepcopy(one)
    batch, pretext = images(7), PretextImages(images(4), (4,))
    together = one.experts(batch, Parts((4, 3)), [pretext])
    apart = torch.cat([other.experts(batch[:4]), other.experts(batch[4:])])
    assert torch.allclose(together, apart, atol=1e-5)
    assert pretext.maps.shape == (4, 8, 4, 4)
    for mine, theirs in zip(one.buffers(), other.buffers(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_initial_weights_are_kaiming_normal_by_fan_out():
    torch.manual_seed(0)
    network = MoseNetwork(5, width=16)
    large = [each for each in network.modules() if isinstance(each, Conv2d) and each.weight.numel() > 10_000]
    assert large
    for layer in large:
        expected = math.sqrt(2 / (layer.out_channels * layer.kernel_size[0] ** 2))
        assert abs(float(layer.weight.detach().std()) / expected - 1) < 0.05
    assert all((each.weight == 1).all() for each in network.modules() if isinstance(each, BatchNorm))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_maps_are_scaled_up_bilinearly(size):
    maps = torch.randn(2, 3, size, size + 1, dtype=torch.float64, requires_grad=True)
    found = doubled(doubled(maps, 2), 3)
    expected = F.interpolate(maps, scale_factor=2, mode="bilinear")
    assert torch.allclose(found, expected)
    slopes = [torch.autograd.grad(each.square().sum(), maps)[0] for each in (found, expected)]
    assert torch.allclose(*slopes)
