from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cler.errors import UsageError
from cler.methods.optimizers import OPTIMIZERS, OptimizerEntry, make_optimizer


def steps(optimizer, parameters, count=3):
    """Some steps on a loss that pulls every parameter to its own place."""
    for _ in range(count):
        optimizer.zero_grad()
        sum((each - place).square().sum() for place, each in enumerate(parameters)).backward()
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in parameters])


def some_parameters():
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 2), (4,))]


@pytest.mark.parametrize(
    ("name", "changes", "by_hand"),
    [
        ("sgd", {}, lambda p: torch.optim.SGD(p, lr=0.1, foreach=False)),
        ("sgd", {"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False)),
        ("sgd", {"weight_decay": 0.2}, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.2, foreach=False)),
        ("adam", {}, lambda p: torch.optim.Adam(p, lr=0.1, foreach=False)),
        ("adam", {"weight_decay": 0.2}, lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.2, foreach=False)),
        ("adamw", {}, lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False)),
        ("adamw", {"weight_decay": 0.0}, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0, foreach=False)),
    ],
)
def test_they_are_torchs_own_with_its_defaults(name, changes, by_hand):
    ours, theirs = some_parameters(), some_parameters()
    moved = steps(make_optimizer(name, ours, 0.1, **changes), ours)
    assert torch.allclose(moved, steps(by_hand(theirs), theirs), atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_table_says_what_they_remember(name, momentum):
    if momentum and not OPTIMIZERS[name].takes_momentum:
        with pytest.raises(UsageError, match=f"momentum 0.9 has no effect with {name}: leave it out, or .* sgd"):
            make_optimizer(name, some_parameters(), 0.1, momentum=momentum)
        return
    parameters = some_parameters()
    optimizer = make_optimizer(name, parameters, 0.1, momentum=momentum)
    steps(optimizer, parameters)
    for parameter in parameters:
        kept = {key for key, value in optimizer.state[parameter].items() if value is not None}
        assert kept == OPTIMIZERS[name].state_keys(momentum)


def test_an_unknown_one_is_refused():
    with pytest.raises(UsageError, match=r"unknown optimizer 'adamm'.*did you mean 'adam'"):
        make_optimizer("adamm", some_parameters(), 0.1)


def test_a_new_one_is_an_entry(monkeypatch):
    entry = OptimizerEntry(torch.optim.Adamax, frozenset({"step", "exp_avg", "exp_inf"}))
    monkeypatch.setitem(OPTIMIZERS._entries, "adamax", entry)
    assert isinstance(make_optimizer("adamax", some_parameters(), 0.1), torch.optim.Adamax)


def test_a_gpu_takes_the_step_of_an_optimizer_in_one_kernel_where_there_is_one(monkeypatch):
    for name, fused in (("one", True), ("several", False)):
        entry = OptimizerEntry(lambda parameters, **options: options, frozenset({"step"}), fused=fused)
        monkeypatch.setitem(OPTIMIZERS._entries, name, entry)
    for is_cuda in (True, False):
        parameters = [SimpleNamespace(is_cuda=is_cuda)]
        one, several = (make_optimizer(name, parameters, 0.1) for name in ("one", "several"))
        assert one.get("fused", False) is is_cuda
        assert several["foreach"]
        assert one["capturable"] is is_cuda
