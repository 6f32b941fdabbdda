import os
import subprocess
import sys
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F

from cler.nets import ResNet18, conv
from cler.nets.conv import Conv2d, WorkingCopies


def test_working_copies_pass_gradients_to_the_weights_and_follow_them():
    torch.manual_seed(0)
    network = ResNet18(3, width=4)
    copies = WorkingCopies([network])
    images, labels = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        torch.nn.functional.cross_entropy(network(images), labels).backward()
    convolutions = [layer for layer in network.modules() if isinstance(layer, Conv2d)]
    assert len(convolutions) == 20
    assert all(layer.weight.grad is None for layer in convolutions)
    copies.gather_gradients()
    assert all(layer.weight.grad.dtype == torch.float32 and layer.weight.grad.any() for layer in convolutions)
    assert all(layer.working.grad is None for layer in convolutions)
    before = [layer.working.clone() for layer in convolutions]
    torch.optim.SGD(network.parameters(), lr=1.0).step()
    copies.refresh()
    for layer, old in zip(convolutions, before, strict=True):
        assert torch.equal(layer.working, layer.weight.to(torch.bfloat16))
        assert not torch.equal(layer.working, old)


def test_a_copy_computes_with_its_own_weights():
    layer = Conv2d(1, 1, 1, bias=False)
    copies = WorkingCopies([layer])
    copy = deepcopy(layer)
    torch.nn.init.zeros_(copy.weight)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        assert not copy(torch.ones(1, 1, 1, 1)).any()
    assert layer.working is copies.copies[0]


def test_small_steps_are_not_lost_in_the_working_precision():
    layer = Conv2d(1, 1, 1, bias=False)
    torch.nn.init.ones_(layer.weight)
    copies = WorkingCopies([layer])
    optimizer = torch.optim.SGD([layer.weight], lr=1e-4)
    for _ in range(100):
        optimizer.zero_grad()
        layer.working.grad = torch.full_like(layer.working, 1.0)
        copies.gather_gradients()
        optimizer.step()
        copies.refresh()
    assert abs(float(layer.weight.detach()) - 0.99) < 1e-5
    assert float(layer.working.detach()) < 1


def test_a_loss_on_the_weights_themselves_counts_too():
    layer = Conv2d(1, 1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, 3.0)
    copies = WorkingCopies([layer])
    (layer(torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)).float().sum() + layer.weight.square().sum()).backward()
    copies.gather_gradients()
    assert layer.weight.grad.item() == 1 + 2 * 3


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_stride_is_what_pytorch_makes_of_it(kernel):
    torch.manual_seed(0)
    layer = Conv2d(5, 7, kernel, stride=2, padding=kernel // 2).double()
    x = torch.randn(2, 5, 41, 40, dtype=torch.float64, requires_grad=True)
    inputs = [x, layer.weight, layer.bias]
    outputs = [layer(x), F.conv2d(x, layer.weight, layer.bias, 2, kernel // 2)]
    assert torch.allclose(*outputs, rtol=1e-12)
    for ours, expected in zip(*(torch.autograd.grad(each.square().sum(), inputs) for each in outputs), strict=True):
        assert torch.allclose(ours, expected, rtol=1e-12)


def test_narrow_networks_learn_from_large_images_and_in_several_threads():
    """In a process of its own: with a strided 1×1 convolution of PyTorch 2.13 it would crash."""
    code = """
import torch, cler
network = cler.ResNet18(3, width=8)
for threads, shape in (1, (4, 3, 84, 84)), (1, (20, 3, 256, 32)), (2, (5, 3, 32, 32)), (3, (10, 3, 32, 32)):
    torch.set_num_threads(threads)
    for _ in range(2):
        network(torch.randn(shape)).sum().backward()
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"})


def test_a_single_pixel_teaches_only_the_middle_of_a_kernel():
    """Elsewhere in bfloat16 on a CPU the gradient would be what memory happened to hold."""
    torch.manual_seed(0)
    layer = Conv2d(8, 16, 3, stride=2, padding=1, bias=False).to(memory_format=torch.channels_last)
    copies = WorkingCopies([layer])
    outside = torch.ones(3, 3, dtype=torch.bool)
    outside[1, 1] = False
    for _ in range(10):
        junk = [torch.full((size,), torch.nan, dtype=torch.bfloat16) for size in (16 * 8 * 9, 16 * 8 * 9 + 8, 4096)]
        del junk  # it stays in memory
        x = torch.randn(10, 8, 1, 1).bfloat16().to(memory_format=torch.channels_last)
        output = layer(x)
        output.float().square().sum().backward()
        copies.gather_gradients()
        assert torch.allclose(output.float(), F.conv2d(x.float(), layer.working.float(), None, 2, 1), atol=0.05)
        assert layer.weight.grad[:, :, outside].count_nonzero() == 0
        assert layer.weight.grad[:, :, ~outside].count_nonzero() > 0


class Ours:
    """Stands for our kernels: computes as PyTorch does, and counts how often it was asked."""

    def __init__(self):
        self.asked = 0

    def convolve(self, x, weight, stride):
        self.asked += 1
        return F.conv2d(x, weight, None, stride, weight.shape[-1] // 2)


@pytest.fixture
def ours(monkeypatch):
    """Our kernels, as if there were a GPU."""
    kernels = Ours()
    monkeypatch.setattr(conv, "on_gpu", lambda x: True)
    monkeypatch.setattr(conv, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(conv, "gpu_kernels", lambda name: kernels)
    return kernels


@pytest.mark.parametrize(
    ("inputs", "outputs", "options", "taken"),
    [
        (20, 20, {"padding": 1}, True),
        (40, 80, {"padding": 1, "stride": 2, "bias": False}, True),
        (3, 64, {"padding": 1}, True),
        (3, 256, {"padding": 1}, False),  # too many outputs for the memory of a program
        (64, 64, {"padding": 1}, False),
        (20, 20, {}, False),
        (20, 20, {"padding": 1, "stride": 3}, False),
        (20, 20, {"padding": 1, "stride": (1, 2)}, False),
        (20, 20, {"padding": 2, "dilation": 2}, False),
        (20, 20, {"padding": 1, "groups": 2}, False),
        (20, 20, {"padding": "same"}, False),
    ],
)
def test_our_kernels_take_plain_convolutions_between_few_channels(ours, inputs, outputs, options, taken):
    torch.manual_seed(0)
    layer = Conv2d(inputs, outputs, 3, **options)
    WorkingCopies([layer])
    x = torch.randn(2, inputs, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x).float()
    assert ours.asked == taken
    expected = F.conv2d(x, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)
    assert torch.allclose(found, expected, atol=0.05)


def test_our_kernels_work_in_bfloat16_only_and_on_maps_that_they_can_count(ours, monkeypatch):
    layer = Conv2d(4, 8, 3, stride=2, padding=1)
    x = torch.randn(2, 4, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
        assert ours.asked == 0
        WorkingCopies([layer])
        layer(x)
        assert ours.asked == 1
        with monkeypatch.context() as patch:
            patch.setattr(conv, "MOST_VALUES", x.numel())
            layer(x)
            patch.setattr(conv, "MOST_VALUES", 2 * 8)
            layer(x[:, :, :1, :1])  # whose map is no smaller for the stride
            patch.undo()
            patch.setattr(conv, "has_bfloat16", lambda device: False)
            layer(x)
        assert ours.asked == 1
