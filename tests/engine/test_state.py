from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from cler.config.making import make_settings
from cler.engine.state import State, collect, restore
from cler.errors import UsageError
from cler.methods.optimizers import OPTIMIZERS
from cler.runs.build import build_run
from toys import noise


def make_run(method="er-ace", n_classes=6, seed=0, **changes):
    options = {"tasks": 2, "width": 2, "batch": 4, "replay_batch": 4, "buffer": 8} | changes
    return build_run(make_settings(method=method, **options), seed, noise(n_classes, 8))


def after_steps(run, count=2):
    run.begin_task(0)
    for _ in range(count):
        run.step()
    return run.method


def test_everything_that_a_method_has_learned_has_a_name():
    state = collect(after_steps(make_run("dualnet", regularizer="jigsaw")))
    for name in (
        "network.slow.layer1.0.conv1.weight",
        "network.slow.stem.bn.running_mean",
        "regularizers.0.stage.conv.weight",
        "buffer.pixels",
        "buffer.extra.logits",
        "buffer.offered",
    ):
        assert name in state.tensors
    assert (state.numbers["task"], state.numbers["buffer.filled"]) == (0, 8)
    assert state.numbers["slow_optimizer.param_groups.0.lr"] == 0.005


def test_what_is_in_one_place_is_stored_once():
    method = after_steps(make_run("dualnet", regularizer="jigsaw", precision="bf16"))
    state = collect(method)
    places = [(tensor.data_ptr(), tensor.shape) for tensor in state.tensors.values()]
    assert len(set(places)) == len(places)
    assert not any("look_ahead.state" in name for name in state.tensors)  # views of the network's own
    assert not any(tensor.dtype == torch.bfloat16 for tensor in state.tensors.values())  # made from the weights


def test_what_settings_give_is_not_stored():
    assert not any("corners" in name for name in collect(make_run("xder").method).tensors)
    jigsaw = collect(after_steps(make_run(regularizer="jigsaw")))
    assert not any("_tables" in name for name in jigsaw.tensors)


def layout(tensor):
    """How it lies in memory: the steps of the dimensions that have any."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


EVERY_OPTIMIZER = [{"optimizer": name} for name in OPTIMIZERS] + [{"sgd_momentum": 0.9, "weight_decay": 1e-3}]


@pytest.mark.parametrize("changes", EVERY_OPTIMIZER, ids=str)
def test_it_is_put_back_in_place(changes):
    old, new = after_steps(make_run(**changes)), make_run(seed=1, **changes).method
    places = {name: tensor.data_ptr() for name, tensor in collect(new).tensors.items()}
    restore(new, collect(old))
    stored, restored = collect(old).tensors, collect(new).tensors
    assert stored.keys() == restored.keys()
    assert all(torch.equal(stored[name], restored[name]) for name in stored)
    assert all(layout(stored[name]) == layout(restored[name]) for name in stored)
    assert all(restored[name].data_ptr() == place for name, place in places.items())
    assert collect(old).numbers == collect(new).numbers
    kept = {name.rpartition(".")[2] for name in stored if ".state." in name}
    assert kept == OPTIMIZERS[old.setup.optimizer].state_keys(old.setup.momentum)


def test_working_copies_follow():
    old, new = after_steps(make_run(precision="bf16")), make_run(precision="bf16", seed=1).method
    restore(new, collect(old))
    for layer, other in zip(old.network.modules(), new.network.modules(), strict=True):
        assert getattr(layer, "working", None) is None or torch.equal(layer.working, other.working)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"width": 4},
            r"network\.stem\.conv\.weight is float32 \[2, 3, 3, 3\], not float32 \[4, 3, 3, 3\]",
        ),
        ({"buffer": 9}, r"does not fit: buffer\.pixels is uint8 \[9, 3, 8, 8\], not uint8 \[10, 3, 8, 8\]"),
        ({"n_classes": 8}, r"does not fit: network\.classifier\.weight"),
        ({"method": "er"}, "belongs to something else: it differs in seen"),
        ({"regularizer": "rotation"}, r"belongs to something else: it differs in regularizers\.0"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(changes, says):
    state, new = collect(after_steps(make_run())), make_run(**changes).method
    before = {name: tensor.detach().clone() for name, tensor in collect(new).tensors.items()}
    with pytest.raises(UsageError, match=says):
        restore(new, state)
    assert all(torch.equal(before[name], tensor) for name, tensor in collect(new).tensors.items())


@pytest.mark.parametrize("kept", [set(), deque(), np.zeros(2), bytearray(), [{"inner": set()}], {"inner": deque()}])
def test_what_cannot_be_carried_is_refused_by_name(kept):
    method = make_run().method
    method.buffer.kept = kept
    with pytest.raises(
        UsageError, match=r"buffer\.kept\S* is a \w+, which checkpoints cannot store: keep it in tensors"
    ):
        collect(method)


@dataclass(frozen=True)
class Options:
    """Of a method that does not come with the package."""

    speed: int = 3


@pytest.mark.parametrize(
    "kept", [None, "text", print, torch.float32, torch.device("cpu"), torch.Generator(), (1, "a"), Options()]
)
def test_settings_may_be_of_any_kind_that_does_not_change(kept):
    method = make_run().method
    before = collect(method)
    method.kept = kept
    after = collect(method)
    assert (after.tensors.keys(), after.numbers) == (before.tensors.keys(), before.numbers)


def test_numbers_of_another_type_are_refused():
    state = collect(make_run().method)
    wrong = State(state.tensors | {"seen": state.tensors["seen"].float()}, state.numbers)
    with pytest.raises(UsageError, match=r"seen is float32 \[6\], not bool \[6\]"):
        restore(make_run().method, wrong)


@pytest.mark.parametrize("changes", EVERY_OPTIMIZER, ids=str)
def test_more_classes_keep_what_is_known_of_the_others(changes):
    old = after_steps(make_run("cope", **changes))
    new = make_run("cope", n_classes=8, seed=1, **changes).method
    untouched = new.prototypes[6:].clone()
    restore(new, collect(old), grow=True)
    assert new.n_classes == 8
    assert torch.equal(new.prototypes[:6], old.prototypes)
    assert torch.equal(new.prototypes[6:], untouched)
    assert new.seen.tolist() == [*old.seen.tolist(), False, False]
    assert torch.equal(new.buffer.pixels, old.buffer.pixels)
    assert new.buffer.filled == old.buffer.filled
    with pytest.raises(UsageError, match="does not fit"):
        restore(make_run("cope").method, collect(new), grow=True)  # nothing becomes smaller


@pytest.mark.parametrize(
    ("changes", "moment"),
    [
        ({"optimizer": "adam"}, "exp_avg"),
        ({"optimizer": "adamw"}, "exp_avg_sq"),
        ({"sgd_momentum": 0.9}, "momentum_buffer"),
    ],
    ids=str,
)
def test_what_an_optimizer_remembers_grows_too(changes, moment):
    old, new = make_run(**changes).method, make_run(n_classes=8, **changes).method
    restore(new, collect(old), grow=True)
    assert not new.optimizer.state
    old = after_steps(make_run(**changes))
    restore(new, collect(old), grow=True)
    moments = [run.optimizer.state[run.network.classifier.weight][moment] for run in (old, new)]
    assert torch.equal(moments[0], moments[1][:6])
    assert not moments[1][6:].any()
    nn.functional.cross_entropy(new.network(torch.rand(4, 3, 8, 8)), torch.tensor([0, 1, 6, 7])).backward()
    new.optimizer.step()
