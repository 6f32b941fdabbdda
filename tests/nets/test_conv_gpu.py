"""Our convolutions against PyTorch's: on a GPU, or anywhere in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
device = "cpu" if interpreted else "cuda"
dtype = torch.float32 if interpreted else torch.bfloat16
rounding = 1e-5 if interpreted else 5e-3
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not interpreted and not torch.cuda.is_available(), reason="needs a GPU, or TRITON_INTERPRET=1"),
]


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(
    ("images", "inputs", "outputs", "taps", "stride", "size"),
    [
        (3, 3, 20, 3, 1, (9, 9)),
        (3, 20, 20, 3, 1, (12, 10)),
        (2, 20, 40, 3, 2, (9, 11)),
        (2, 20, 40, 3, 2, (8, 8)),
        (2, 20, 40, 1, 2, (9, 8)),
        (2, 40, 80, 3, 2, (7, 5)),
        (5, 5, 7, 1, 1, (6, 6)),
        (1, 8, 8, 3, 2, (1, 1)),
        (1, 1, 1, 3, 1, (1, 2)),
    ],
)
def test_a_convolution_and_its_gradients(images, inputs, outputs, taps, stride, size, memory_format):
    from cler.nets import conv_gpu

    torch.manual_seed(0)
    x = torch.randn(images, inputs, *size, device=device, dtype=dtype).to(memory_format=memory_format)
    weight = torch.randn(outputs, inputs, taps, taps, device=device, dtype=dtype).to(memory_format=memory_format)
    x.requires_grad_()
    weight.requires_grad_()
    out = conv_gpu.convolve(x, weight, stride)
    expected = F.conv2d(x.double(), weight.double(), None, stride, taps // 2)
    slope = torch.randn_like(out)
    gradients = torch.autograd.grad(out, (x, weight), slope)
    wanted = torch.autograd.grad(expected, (x, weight), slope.double())
    for ours, theirs in zip((out, *gradients), (expected, *wanted), strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == dtype
        assert (ours - theirs).norm() <= rounding * theirs.norm()


def test_many_pixels_are_summed_up_in_chunks(monkeypatch):
    from cler.nets import conv_gpu

    monkeypatch.setattr(conv_gpu, "CHUNKS", 3)
    torch.manual_seed(0)
    x = torch.randn(5, 4, 9, 9, device=device, dtype=dtype)
    weight = torch.randn(6, 4, 3, 3, device=device, dtype=dtype, requires_grad=True)
    (ours,) = torch.autograd.grad(conv_gpu.convolve(x, weight, 1).sum(), weight)
    (theirs,) = torch.autograd.grad(F.conv2d(x.double(), weight.double(), None, 1, 1).sum(), weight)
    assert (ours - theirs).norm() <= rounding * theirs.norm()
