"""Which kernels batch norm takes: the arithmetic of ours is tested in test_norm_gpu."""

from types import SimpleNamespace

import pytest
import torch

from cler.errors import UsageError
from cler.nets import norm
from cler.nets.backbone import Parts
from cler.nets.kernels import without_our_kernels
from cler.nets.norm import BatchNorm


@pytest.fixture
def layer(monkeypatch):
    """A layer that would be told to take our kernels, which only say that they were asked."""
    kernels = SimpleNamespace(
        batch_norm=lambda *_, **about: "trained", apply_statistics=lambda *_, **about: "evaluated"
    )
    monkeypatch.setattr(norm, "kernels_for", lambda x: kernels)
    return BatchNorm(3)


def test_our_kernels_take_what_they_can_count_on_a_gpu_unless_they_are_left_out(monkeypatch):
    monkeypatch.setattr(norm, "gpu_kernels", lambda name: name)
    some = {"is_cuda": True, "dtype": torch.bfloat16, "numel": lambda: 2**31 - 1}
    assert norm.kernels_for(SimpleNamespace(**some)) == "norm_gpu"
    with without_our_kernels():
        assert norm.kernels_for(SimpleNamespace(**some)) is None
    assert norm.kernels_for(SimpleNamespace(**some)) == "norm_gpu"
    for other in ({"is_cuda": False}, {"dtype": torch.float64}, {"numel": lambda: 2**31}):
        assert norm.kernels_for(SimpleNamespace(**some | other)) is None


def test_training_takes_the_kernels_that_have_a_way_back(layer):
    assert layer(torch.zeros(2, 3, 4, 4)) == "trained"
    with torch.no_grad():
        assert layer(torch.zeros(2, 3, 4, 4)) == "trained"


def test_evaluation_takes_the_kernel_without_a_way_back_only_where_none_is_wanted(layer):
    layer.eval()
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    out = layer(x)
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], torch.full_like(x, (1 + layer.eps) ** -0.5))
    with torch.no_grad():
        assert layer(x) == "evaluated"


def test_a_single_pixel_alone_is_refused_in_training_and_nowhere_else():
    layer, pixel = BatchNorm(3), torch.zeros(1, 3, 1, 1)
    for parts in (None, Parts((1, 2)), Parts((2, 1), silent=1)):
        x = pixel if parts is None else torch.zeros(3, 3, 1, 1)
        with pytest.raises(
            UsageError, match=r"one image alone .* a single pixel: .* batch and replay_batch at least 2"
        ):
            layer(x, parts=parts)
    assert layer(torch.zeros(1, 3, 1, 2)).shape == (1, 3, 1, 2)
    assert layer.eval()(pixel).shape == pixel.shape


def test_a_single_pixel_alone_is_refused_before_our_kernels_are_asked(layer):
    for parts in (None, Parts((1,))):
        with pytest.raises(UsageError, match="one image alone"):
            layer(torch.zeros(1, 3, 1, 1), parts=parts)


def test_on_a_cpu_there_are_none():
    assert norm.kernels_for(torch.zeros(1)) is None
