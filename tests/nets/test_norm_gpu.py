"""The Triton kernels against PyTorch: on a GPU, or anywhere in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import pytest
import torch

from cler.nets.backbone import Parts
from cler.nets.norm import BatchNorm

pytest.importorskip("triton")
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
device = "cpu" if interpreted else "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not interpreted and not torch.cuda.is_available(), reason="needs a GPU, or TRITON_INTERPRET=1"),
]


def make_layer(channels):
    torch.manual_seed(0)
    layer = BatchNorm(channels).to(device, torch.float64)  # in float64 the layer takes PyTorch's path
    torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
    torch.nn.init.normal_(layer.bias)
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    return layer


@pytest.mark.parametrize(
    ("channels", "size", "parts", "silent", "relu", "residual", "tracked"),
    [
        (20, 6, (3,), 0, True, True, True),
        (64, 32, (2, 3, 4), 1, True, False, True),
        (70, 5, (2, 3), 0, False, False, True),
        (24, 9, (4, 2), 1, True, True, False),
        (16, 4, (2, 2, 3), 2, False, True, True),
        (20, 84, (1, 3), 0, True, True, True),  # so large that chunks are long
        (40, 50, (7,), 0, True, False, True),
    ],
)
def test_kernels_equal_pytorch(channels, size, parts, silent, relu, residual, tracked):
    from cler.nets import norm_gpu

    layer = make_layer(channels)
    layer.track_running_stats = tracked
    shape = sum(parts), channels, size, size
    x = (3 + 2 * torch.randn(shape, dtype=torch.float64, device=device)).requires_grad_()
    added = torch.randn_like(x).requires_grad_() if residual else None
    slope = torch.randn_like(x)

    def leaf(tensor):
        return tensor.detach().float().clone().requires_grad_()

    x32, added32 = leaf(x), leaf(added) if residual else None
    weight32, bias32 = leaf(layer.weight), leaf(layer.bias)
    running = (layer.running_mean.float(), layer.running_var.float()) if tracked else None
    ours = norm_gpu.batch_norm(
        x32,
        added32,
        weight32,
        bias32,
        running,
        parts=Parts(parts, silent),
        relu=relu,
        momentum=layer.momentum,
        eps=layer.eps,
    )
    expected = layer(x, residual=added, relu=relu, parts=Parts(parts, silent))
    assert (ours - expected).abs().max() < 1e-5
    inputs = [x, layer.weight, layer.bias, *([added] if residual else [])]
    inputs32 = [x32, weight32, bias32, *([added32] if residual else [])]
    for mine, theirs in zip(
        torch.autograd.grad(ours, inputs32, slope.float()), torch.autograd.grad(expected, inputs, slope), strict=True
    ):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()
    if tracked:
        assert (running[0] - layer.running_mean).abs().max() < 1e-5
        assert (running[1] - layer.running_var).abs().max() < 1e-4


def test_deviations_that_are_small_beside_the_mean_are_not_lost():
    from cler.nets import norm_gpu

    x = 1000 + 0.1 * torch.randn(4, 8, 16, 16, device=device)
    mean, variance = torch.zeros(8, device=device), torch.zeros(8, device=device)
    ones = torch.ones(8, device=device)
    norm_gpu.batch_norm(x, None, ones, 0 * ones, (mean, variance), parts=None, relu=False, momentum=1.0, eps=1e-5)
    expected = x.double().var((0, 2, 3))
    assert (mean - x.double().mean((0, 2, 3))).abs().max() < 1e-3
    assert (variance - expected).abs().max() < 1e-3 * expected.min()


@pytest.mark.parametrize(
    ("channels", "size", "relu", "residual"), [(20, 6, True, True), (64, 32, True, False), (70, 5, False, True)]
)
def test_given_statistics(channels, size, relu, residual):
    from cler.nets import norm_gpu

    layer = make_layer(channels).eval()
    x = 3 + 2 * torch.randn(3, channels, size, size, dtype=torch.float64, device=device)
    added = torch.randn_like(x) if residual else None
    expected = layer(x, residual=added, relu=relu)
    ours = norm_gpu.apply_statistics(
        x.float(),
        added.float() if residual else None,
        layer.weight.detach().float(),
        layer.bias.detach().float(),
        (layer.running_mean.float(), layer.running_var.float()),
        relu=relu,
        eps=layer.eps,
    )
    assert (ours - expected).abs().max() < 1e-5


@pytest.mark.parametrize("training", [True, False])
def test_a_run_that_diverges_is_not_rectified_away(training):
    from cler.nets import norm_gpu

    layer = make_layer(8).float()
    x = torch.randn(2, 8, 4, 4, device=device)
    x[0, 3, 1, 1] = float("nan")
    parameters = x, None, layer.weight.detach(), layer.bias.detach(), (layer.running_mean, layer.running_var)
    if training:
        out = norm_gpu.batch_norm(*parameters, parts=None, relu=True, momentum=layer.momentum, eps=layer.eps)
    else:
        out = norm_gpu.apply_statistics(*parameters, relu=True, eps=layer.eps)
    assert out[0, 3, 1, 1].isnan()
