"""What holds for every method with every regularizer: a new one is tested by being registered."""

import copy
import itertools
import random
import sys
from statistics import fmean

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from cler.config.schema import settings_of
from cler.config.settings import make_settings
from cler.data.images import ImageData
from cler.engine import Control, train
from cler.engine.evaluate import evaluate
from cler.engine.state import collect
from cler.errors import UsageError
from cler.methods import METHODS
from cler.methods.base import register
from cler.methods.finetune import Finetune
from cler.regularizers import REGULARIZERS, Regularizer
from cler.regularizers import base as regularizers
from cler.regularizers.base import Entry
from cler.runs.build import build_run
from cler.streams import Tasks
from cler.streams.class_incremental import _members

REGULARIZER_NAMES = ["none", *REGULARIZERS]
PAIRS = [(method, regularizer) for method in METHODS for regularizer in REGULARIZER_NAMES]
OTHER_VARIANTS = [
    (name, variant)
    for name, method in METHODS.items()
    for variant in getattr(sys.modules[method.__module__], "VARIANTS", ())
    if variant != method.Options().variant
]
every_pair = pytest.mark.parametrize(("method", "regularizer"), PAIRS, ids=["+".join(pair) for pair in PAIRS])


def toy_data(size=12, train_images=24, test_images=10):
    """Four classes of different color, brighter below so that turns and shuffled quadrants show."""
    generator = torch.Generator().manual_seed(0)
    colors = torch.tensor([[200, 60, 60], [60, 200, 60], [60, 60, 200], [200, 200, 60]]).view(4, 1, 3, 1, 1)
    ramp = torch.linspace(-50, 50, size).view(size, 1)

    def images(count):
        noise = 30 * torch.randn(4, count, 3, size, size, generator=generator)
        return (colors + ramp + noise).clamp(0, 255).to(torch.uint8).flatten(0, 1)

    return ImageData(
        name="toy",
        train_images=images(train_images),
        train_labels=torch.arange(4).repeat_interleave(train_images),
        test_images=images(test_images),
        test_labels=torch.arange(4).repeat_interleave(test_images),
        classes=("red", "green", "blue", "yellow"),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    )


DATA = toy_data()


LOOPS = {"inner": 2, "slow_steps": 2, "fast_steps": 2, "inversion_steps": 3, "refinement_epochs": 1, "noise": 8}
"""Shorter loops inside a step, of the methods that have them."""


def make_run(method, regularizer, seed=0, data=DATA, loops=LOOPS, **changes):
    loops = {name: count for name, count in loops.items() if name in settings_of(METHODS[method].Options)}
    options = {"tasks": 2, "width": 4, "lr": 0.02, "batch": 8, "replay_batch": 8, "buffer": 16} | loops | changes
    if not METHODS[method].replays:
        del options["buffer"], options["replay_batch"]
    return build_run(make_settings(method=method, regularizer=regularizer, **options), seed, data)


def trained(*run, **changes):
    run = make_run(*run, **changes)
    train([run])
    return run


def in_later_task(run, steps=2):
    """A run in its last task, a few steps on, so that everything it allocates is allocated."""
    last = len(run.schedule) - 1
    for task in range(last):
        run.begin_task(task)
        for _ in range(steps):
            run.step()
        run.end_task(task)
    run.begin_task(last)
    for _ in range(steps):
        run.step()
    return run


def tensors_of(thing, path="run", found=None, visited=None):
    """Every tensor that can be reached from an object's attributes, by the way that leads there."""
    found = {} if found is None else found
    visited = set() if visited is None else visited
    if id(thing) in visited:
        return found
    visited.add(id(thing))
    if isinstance(thing, Tensor):
        found[path] = thing
    elif isinstance(thing, dict):
        for i, (key, value) in enumerate(thing.items()):
            tensors_of(value, f"{path}.{key if isinstance(key, str) else i}", found, visited)
    elif isinstance(thing, list | tuple | set):
        for i, value in enumerate(thing):
            tensors_of(value, f"{path}.{i}", found, visited)
    elif isinstance(thing, nn.Module | torch.optim.Optimizer) or is_ours(thing):
        tensors_of(vars(thing), path, found, visited)
    return found


def is_ours(thing):
    return any(base.__module__.startswith("cler.") for base in type(thing).__mro__)


def snapshot(run):
    """Copies of every tensor, and the generator's state."""
    values = {path: tensor.detach().clone() for path, tensor in tensors_of(run).items()}
    return values | {"generator": run.generator.get_state()}


def differences(one, other):
    assert one.keys() == other.keys()
    return [path for path in one if not torch.equal(one[path], other[path])]


# -- learning ----------------------------------------------------------------------------------------------------------


@every_pair
def test_learns_a_toy_stream(method, regularizer):
    """A smoke test: its limits were set after seeing what the methods reach on this toy, with room to spare.

    Of a method with a memory it asks that the first task is kept, not that the last one is predicted: in so few steps
    X-DER and DualNet often never predict their newest classes (class-incremental [100, 0]).
    """
    data = toy_data(size=16, train_images=32)
    fewer = {"inversion_steps": 10, "noise": 8, "refinement_epochs": 1}
    changes = {"data": data, "loops": fewer, "lr": 0.03, "epochs": 3, "replay_batch": 16, "buffer": 32}
    if method == "cope":
        changes |= {"lr": 0.003, "epochs": 6}  # its gradients add up
    if method == "lwf-mc":
        changes |= {"lr": 0.1, "epochs": 4}  # its loss is a mean over classes too
    if regularizer == "barlow-twins":
        changes["weight"] = 0.01  # a sum over dimensions, not a mean
    runs = [trained(method, regularizer, seed, **changes) for seed in (1, 2)]
    for run in runs:
        assert run.complete
        assert run.failure is None
    class_il = [run.accuracy["class_il"][-1] for run in runs]
    assert fmean(fmean(run.accuracy["task_il"][-1]) for run in runs) > 65  # chance: 50
    if METHODS[method].replays:
        assert fmean(row[0] for row in class_il) > 60  # chance: 25; a forgotten task gets 0
    else:
        limit = 60 if METHODS[method].merged else 30 if method == "lwf-mc" else 40
        assert fmean(map(fmean, class_il)) > limit  # chance: 25; one whole task: 50


# -- randomness --------------------------------------------------------------------------------------------------------


@every_pair
def test_the_seed_decides_everything(method, regularizer):
    torch.manual_seed(1)
    first = trained(method, regularizer, seed=3)
    torch.manual_seed(2)
    again, other = trained(method, regularizer, seed=3), trained(method, regularizer, seed=4)
    assert first.accuracy == again.accuracy
    assert not differences(snapshot(first), snapshot(again))
    assert any(path.endswith("classifier._parameters.weight") for path in differences(snapshot(first), snapshot(other)))


@every_pair
def test_initial_weights_and_draws_come_from_the_seed(method, regularizer):
    state = torch.get_rng_state()
    first, again, other = (make_run(method, regularizer, seed) for seed in (3, 3, 4))
    assert torch.equal(state, torch.get_rng_state())
    assert not differences(snapshot(first), snapshot(again))
    changed = differences(snapshot(first), snapshot(other))
    assert "generator" in changed
    assert any(path.endswith("classifier._parameters.weight") for path in changed)


# -- together equals alone ---------------------------------------------------------------------------------------------


def assert_together_equals_alone(wanted):
    together = [make_run(*each) for each in wanted]
    train(together)
    for each, beside in zip(wanted, together, strict=True):
        alone = trained(*each)
        assert alone.complete
        assert beside.accuracy == alone.accuracy
        assert not differences(snapshot(beside), snapshot(alone))


@every_pair
def test_seeds_trained_together_equal_each_alone(method, regularizer):
    assert_together_equals_alone([(method, regularizer, seed) for seed in (0, 1)])


@pytest.mark.parametrize("schedule", sorted({str(make_run(method, "none").phases) for method in METHODS}))
def test_different_methods_trained_together_equal_each_alone(schedule):
    """Every method that can be, with one regularizer or another."""
    alike = [method for method in METHODS if str(make_run(method, "none").phases) == schedule]
    pairs = zip(alike, itertools.cycle(REGULARIZER_NAMES), strict=False)
    assert_together_equals_alone([(*pair, seed) for seed, pair in enumerate(pairs)])


# -- the rule of `observe` ---------------------------------------------------------------------------------------------


class BrokenRule(Exception):  # noqa: N818 - it reads as what happened
    pass


LOOKS = {
    "item", "tolist", "numpy", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__",
    "__contains__", "__iter__", "is_nonzero", "equal", "allclose",
}  # fmt: skip
COMPARED = bool | int | float | str | torch.dtype | torch.device | torch.layout | torch.memory_format
FROM_THE_HOST = {"aten::lift_fresh", "aten::lift_fresh_copy", "aten::_pin_memory"}


class NoLooks(TorchFunctionMode):
    """Refuses what brings a value to the host without an operator that a dispatch mode could see."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in LOOKS:
            raise BrokenRule(f"{name}: a tensor's value reaches the host")
        return function(*args, **(kwargs or {}))


class Recording(TorchDispatchMode):
    """Refuses looks, shapes that depend on data, and random numbers from elsewhere; lists every operator it sees."""

    def __init__(self, generator):
        super().__init__()
        self.generator = generator
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.check(function, args, kwargs)
        out = function(*args, **kwargs)
        flat, _ = tree_flatten((args, kwargs, out))
        self.seen.append((str(function), *map(self.shape_or_value, flat)))
        return out

    def check(self, function, args, kwargs):
        name = function._schema.name
        if torch.Tag.data_dependent_output in function.tags:
            raise BrokenRule(f"{function}: a tensor's value reaches the host")
        if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
            if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
                raise BrokenRule(f"{function}: boolean indexing")
        elif torch.Tag.dynamic_output_shape in function.tags:
            raise BrokenRule(f"{function}: a shape that depends on data")
        if torch.Tag.nondeterministic_seeded in function.tags and not self.is_mine(kwargs.get("generator")):
            raise BrokenRule(f"{function}: a random number that is not from the run's generator")
        if name in FROM_THE_HOST:
            raise BrokenRule(f"{function}: data from the host")

    def is_mine(self, generator):
        # the same generator may come as another Python object
        return generator is not None and torch.equal(generator.get_state(), self.generator.get_state())

    @staticmethod
    def shape_or_value(value):
        if isinstance(value, Tensor):
            return tuple(value.shape), value.stride(), str(value.dtype), str(value.device)
        return value if isinstance(value, COMPARED) else type(value).__name__


def recorded_step(run):
    """One step under the rule; gives back all that it ran."""
    with NoLooks(), Recording(run.generator) as recording:
        run.step()
    return recording.seen


def assert_same_kernels(first, second):
    if first != second:
        pairs = zip([*first, None], [*second, None], strict=False)
        raise BrokenRule("two steps differ: {} and {}".format(*next(pair for pair in pairs if pair[0] != pair[1])))


def assert_keeps_the_rule(run):
    """Nothing forbidden in a step, the same operators with the same shapes and constants in the next."""
    global_states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    own_state = run.generator.get_state()
    assert_same_kernels(recorded_step(run), recorded_step(run))
    after = random.getstate(), np.random.get_state(), torch.get_rng_state()
    if not (
        global_states[0] == after[0]
        and all(np.array_equal(a, b) for a, b in zip(global_states[1], after[1], strict=True))
        and torch.equal(global_states[2], after[2])
    ):
        raise BrokenRule("a global random state has moved")
    assert not torch.equal(own_state, run.generator.get_state())


@every_pair
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_phase_keeps_the_rule(method, regularizer, precision):
    assert_every_phase_keeps_the_rule(make_run(method, regularizer, precision=precision))


@pytest.mark.parametrize(("method", "variant"), OTHER_VARIANTS)
def test_every_variant_keeps_the_rule(method, variant):
    assert_every_phase_keeps_the_rule(make_run(method, "rotation", variant=variant))


def assert_every_phase_keeps_the_rule(run):
    in_later_task(run)
    assert run.method.settled
    for phase in run.phases[-1]:
        run.begin_phase(phase)
        run.step()
        assert_keeps_the_rule(run)


@every_pair
def test_observe_keeps_the_rule_in_the_first_task(method, regularizer):
    run = make_run(method, regularizer)
    run.begin_task(0)
    for _ in range(len(DATA.train_images)):
        run.step()
        if run.method.settled:
            break
    run.begin_task(0)
    run.step()
    assert_keeps_the_rule(run)


@every_pair
def test_a_recorded_step_serves_all_tasks_with_its_key(method, regularizer):
    run = make_run(method, regularizer, tasks=4)
    recorded = {}
    for task in range(len(run.schedule)):
        run.begin_task(task)
        run.step()
        run.step()
        assert run.method.settled
        kernels, state = recorded_step(run), tensors_of(run)
        before_kernels, before_state = recorded.setdefault(run.recording_key, (kernels, state))
        assert_same_kernels(before_kernels, kernels)
        assert {path: tensor.data_ptr() for path, tensor in before_state.items()} == {
            path: tensor.data_ptr() for path, tensor in state.items()
        }
        run.end_task(task)
    assert 1 <= len(recorded) <= len(run.schedule)


def looks_at_the_loss(method, batch, loss):
    return loss if float(loss.detach()) > 0 else 2 * loss


def branches_on_labels(method, batch, loss):
    if batch.labels.max() > 1:
        return loss + 0
    return loss


def lists_labels(method, batch, loss):
    return loss + 0.0 * len(set(batch.labels.tolist()))


def reads_as_numpy(method, batch, loss):
    return loss * float(batch.labels.numpy().size > 0)


def copies_to_the_host(method, batch, loss):
    return loss + 0.0 * batch.images.cpu().sum()


def selects_by_mask(method, batch, loss):
    return loss + 0.0 * batch.images[batch.labels > 2].sum()


def writes_by_mask(method, batch, loss):
    batch.images[batch.labels > 2] = torch.zeros(1, 1, 1, 1)
    return loss


def counts_classes(method, batch, loss):
    return loss + 0.0 * batch.labels.unique().sum()


def finds_positions(method, batch, loss):
    return loss + 0.0 * batch.labels.nonzero().sum()


def selects_values(method, batch, loss):
    return loss + 0.0 * batch.labels.masked_select(batch.labels > 2).sum()


def repeats_by_counts(method, batch, loss):
    return loss + 0.0 * batch.labels.repeat_interleave(batch.labels).sum()


def draws_from_torch(method, batch, loss):
    return loss + 0.0 * torch.rand(3).sum()


def draws_from_another_generator(method, batch, loss):
    return loss + 0.0 * torch.rand(3, generator=torch.Generator().manual_seed(0)).sum()


def drops_out(method, batch, loss):
    return F.dropout(loss.view(1), 0.5)[0]


def draws_from_python(method, batch, loss):
    random.random()
    return loss


def draws_from_numpy(method, batch, loss):
    np.random.rand()
    return loss


def brings_numbers_from_the_host(method, batch, loss):
    return loss + 0.0 * torch.tensor([1.0, 2.0]).sum()


def counts_on_the_host(method, batch, loss):
    method.count = getattr(method, "count", 0) + 1
    return loss * (1.0 + 0.1 * method.count)


def changes_its_mind(method, batch, loss):
    method.odd = not getattr(method, "odd", False)
    return loss + loss if method.odd else loss


def grows(method, batch, loss):
    method.history = torch.cat([getattr(method, "history", batch.labels), batch.labels])
    return loss


MISTAKES = {
    looks_at_the_loss: "reaches the host",
    branches_on_labels: "reaches the host",
    lists_labels: "reaches the host",
    reads_as_numpy: "reaches the host",
    copies_to_the_host: "reaches the host",
    selects_by_mask: "boolean indexing",
    writes_by_mask: "boolean indexing",
    counts_classes: "depends on data",
    finds_positions: "depends on data",
    selects_values: "depends on data",
    repeats_by_counts: "depends on data",
    draws_from_torch: "not from the run's generator",
    draws_from_another_generator: "not from the run's generator",
    drops_out: "not from the run's generator",
    draws_from_python: "global random state",
    draws_from_numpy: "global random state",
    brings_numbers_from_the_host: "data from the host",
    counts_on_the_host: "two steps differ",
    changes_its_mind: "two steps differ",
    grows: "two steps differ",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_method_that_breaks_the_rule_is_caught(mistake, monkeypatch):
    class Bad(Finetune):
        def observe(self, batch):
            loss = mistake(self, batch, F.cross_entropy(self.network(batch.images), batch.labels))
            terms = {"loss": loss}
            self.descend(terms)
            return terms

    monkeypatch.setitem(METHODS._entries, "finetune", Bad)
    run = in_later_task(make_run("finetune", "none"))
    with pytest.raises(BrokenRule, match=MISTAKES[mistake]):
        assert_keeps_the_rule(run)


# -- state that lasts --------------------------------------------------------------------------------------------------


def assert_state_stays_in_place(run, steps=4):
    before = tensors_of(run)  # kept alive, so that no address is used twice
    for _ in range(steps):
        run.step()
        after = tensors_of(run)
        assert after.keys() == before.keys()
        for path, tensor in after.items():
            assert tensor.shape == before[path].shape, path
            assert tensor.data_ptr() == before[path].data_ptr(), path


@every_pair
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_state_is_updated_in_place(method, regularizer, precision):
    run = in_later_task(make_run(method, regularizer, precision=precision))
    assert_state_stays_in_place(run)
    if METHODS[method].replays:
        assert any(path.startswith("run.method.buffer") for path in tensors_of(run))


def test_state_that_is_replaced_is_caught(monkeypatch):
    class Bad(Finetune):
        def begin_task(self, task):
            super().begin_task(task)
            self.total = torch.zeros(())

        def observe(self, batch):
            self.total = self.total + 1
            return super().observe(batch)

    monkeypatch.setitem(METHODS._entries, "finetune", Bad)
    with pytest.raises(AssertionError, match=r"method\.total"):
        assert_state_stays_in_place(in_later_task(make_run("finetune", "none")))


# -- the terms of the loss ---------------------------------------------------------------------------------------------


@every_pair
def test_every_phase_names_its_terms_and_the_regularizer(method, regularizer, monkeypatch):
    """A step gives back what it has descended on; the regularizer's loss has the name that it is registered by."""
    run = in_later_task(make_run(method, regularizer))
    for phase in run.phases[-1]:
        run.begin_phase(phase)
        terms = getattr(run.method, phase)(run._batch(torch.arange(8)))
        assert terms
        for name, term in terms.items():
            assert name == name.strip().lower() != ""
            assert term.shape == ()
            assert term.isfinite()
        assert (regularizer in terms) == (regularizer != "none" and phase == "observe")


# -- regularizers that follow the network ------------------------------------------------------------------------------


class Follower(Regularizer):
    """Keeps a moving average of the classifier."""

    def __init__(self, network, *, weight, views, generator):
        super().__init__()
        self.register_buffer("average", network.classifier.weight.detach().clone())

    def loss(self, network, raw, augmented, labels, parts=None):
        return raw.new_zeros(())

    def after_step(self, network):
        self.average.lerp_(network.classifier.weight.detach(), 0.5)


@pytest.mark.parametrize("method", METHODS)
def test_a_regulariser_is_told_of_every_step_of_the_network(method, monkeypatch):
    entry = Entry("follower", "follower", "", build=Follower, weight=1.0, check=lambda height, width: None)
    monkeypatch.setitem(REGULARIZERS._entries, "follower", entry)
    run = make_run(method, "follower")
    (follower,) = run.method.regularizers
    weight, expected, steps = run.method.network.classifier.weight, follower.average.clone(), []

    def follow(optimizer, arguments, options):
        steps.append(expected.lerp_(weight.detach(), 0.5))

    own = set(run.method.network.parameters())
    for optimizer in [each for each in vars(run.method).values() if isinstance(each, torch.optim.Optimizer)]:
        if own.intersection(optimizer.param_groups[0]["params"]):
            optimizer.register_step_post_hook(follow)
    train([run])
    assert len(steps) >= sum(run.phases[0].values())
    assert torch.equal(follower.average, expected)
    assert "regularizers.0.average" in collect(run.method).tensors


# -- regularizers and running statistics -------------------------------------------------------------------------------


def moves_statistics(regularizer):
    """Whether a method's pass with it leaves other running statistics in the network than the pass without."""
    run = make_run("finetune", regularizer)
    alone, pixels, labels = copy.deepcopy(run.method.network), DATA.train_images[::6], DATA.train_labels[::6]
    images = run.views.plain(pixels)
    alone(images)
    run.method.outputs(images, pixels=pixels, labels=labels)
    pairs = zip(run.method.network.named_buffers(), alone.buffers(), strict=True)
    return any("running" in name and not torch.allclose(moved, once) for (name, moved), once in pairs)


@pytest.mark.parametrize("name", REGULARIZERS)
def test_a_regularizer_says_whether_it_moves_the_running_statistics(name):
    (regularizer,) = make_run("finetune", name).method.regularizers
    assert moves_statistics(name) == regularizer.moves_statistics


class SecondPass(Regularizer):
    """Passes the images through the network once more, and forgets about batch norm."""

    def __init__(self, network, *, weight, views, generator):
        super().__init__()

    def loss(self, network, raw, augmented, labels, groups=None):
        return network.features(augmented).square().mean()


def test_a_regularizer_that_moves_the_running_statistics_without_saying_so_is_caught(monkeypatch):
    entry = Entry("second-pass", "second pass", "", build=SecondPass, weight=1.0, check=lambda height, width: None)
    monkeypatch.setitem(REGULARIZERS._entries, "second-pass", entry)
    assert not SecondPass.moves_statistics
    assert moves_statistics("second-pass")


# -- tasks of different sizes ------------------------------------------------------------------------------------------


def make_unequal_run(method, sizes, seed=0):
    """A run with tasks of these numbers of classes."""
    return make_run(method, "jigsaw", seed, tasks="+".join(map(str, sizes)))


@pytest.mark.parametrize("sizes", [(1, 3), (3, 1), (1, 2, 1)], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_unequal_tasks_together_equal_each_alone(method, sizes):
    alone = [make_unequal_run(method, sizes, seed) for seed in (0, 1)]
    together = [make_unequal_run(method, sizes, seed) for seed in (0, 1)]
    train(together)
    for one, beside in zip(alone, together, strict=True):
        train([one])
        assert one.complete
        assert one.failure is None
        assert one.accuracy == beside.accuracy
        assert not differences(snapshot(one), snapshot(beside))
        rows = [len(sizes)] if METHODS[method].merged else list(range(1, len(sizes) + 1))
        assert [len(row) for row in one.accuracy["task_il"]] == rows
        for row in one.accuracy["task_il"]:
            assert all(right == 100 for right, size in zip(row, sizes, strict=False) if size == 1)


@pytest.mark.parametrize("method", METHODS)
def test_unequal_tasks_resume_as_if_nothing_had_happened(method):
    """In the larger second task, in the middle of its last phase."""
    whole = make_unequal_run(method, (1, 3))
    train([whole])
    first = make_unequal_run(method, (1, 3))
    stopper = StopBeforeTheEnd()
    with pytest.raises(KeyboardInterrupt):
        train([first], control=stopper)
    later = make_unequal_run(method, (1, 3), seed=5)
    later.restore(stopper.state, copy.deepcopy(first.accuracy))
    train([later])
    assert later.accuracy == whole.accuracy
    ours, theirs = later.state(), whole.state()
    assert not differences(ours.tensors, theirs.tensors)


class StopBeforeTheEnd(Control):
    """Keeps the state of a run one step before its end, and stops it."""

    checkpoint_every = 0.0

    def keep(self, run):
        self.state = copy.deepcopy(run.state())
        if run.task == len(run.schedule) - 1 and run.taken == run.schedule[-1] - 1:
            self.stop = KeyboardInterrupt()


@pytest.mark.parametrize("method", METHODS)
def test_every_phase_keeps_the_rule_with_unequal_tasks(method):
    assert_every_phase_keeps_the_rule(make_unequal_run(method, (1, 3)))


@pytest.mark.parametrize("method", METHODS)
def test_only_the_order_of_tasks_matters_not_the_numbers_of_classes(method):
    """Classes of a task need not have successive numbers; ER-ACE alone goes by them."""
    run = make_run(method, "none")
    tasks = Tasks(torch.tensor([0, 1, 0, 1]))
    object.__setattr__(run.method.setup, "tasks", tasks)
    run.stream.tasks, run.stream._train = tasks, _members(run.stream.train_labels, tasks)
    run.stream._test = _members(run.stream.test_labels, tasks)
    if METHODS[method].merged:
        run.stream._train = [torch.arange(len(DATA.train_labels))]
    train([run])
    assert run.complete
    assert run.failure is None


# -- the registries ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_method_cannot_take_the_name_of_another(name):
    taken = METHODS[name]
    with pytest.raises(ValueError, match=f"two methods are named '{name}'"):
        register(type("Other", (Finetune,), {"name": name}))
    assert METHODS[name] is taken


@pytest.mark.parametrize("name", REGULARIZER_NAMES)
def test_a_regulariser_cannot_take_the_name_of_another(name):
    before = dict(REGULARIZERS)
    with pytest.raises(ValueError, match=f"two regularizers are named '{name}'"):
        regularizers.register(Entry(name, name, "", build=Follower, weight=1.0, check=lambda height, width: None))
    assert before == REGULARIZERS


def test_regularisers_are_found_by_name():
    assert REGULARIZERS.find("jigsaw") is REGULARIZERS["jigsaw"]
    with pytest.raises(UsageError, match=r"unknown regularizer 'jigsav'.*jigsaw"):
        REGULARIZERS.find("jigsav")


# -- evaluation --------------------------------------------------------------------------------------------------------


@every_pair
def test_evaluation_changes_nothing(method, regularizer):
    watched, unwatched = (in_later_task(make_run(method, regularizer)) for _ in range(2))
    before = snapshot(watched)
    tasks = range(watched.stream.tasks.number)
    first = evaluate(watched.method, watched.stream, watched.views, tasks)
    assert not differences(before, snapshot(watched))
    assert watched.method.network.training
    assert first == evaluate(watched.method, watched.stream, watched.views, tasks)
    for run in (watched, unwatched):
        for _ in range(3):
            run.step()
    assert not differences(snapshot(watched), snapshot(unwatched))
    assert differences(before, snapshot(watched))


@every_pair
def test_logits_of_an_image_do_not_depend_on_the_others(method, regularizer):
    run = in_later_task(make_run(method, regularizer))
    run.method.network.eval()
    images = run.views.plain(DATA.test_images[::5])
    with torch.no_grad():
        together = run.method.logits(images)
        alone = torch.cat([run.method.logits(image) for image in images.split(1)])
    assert together.shape == (len(images), DATA.n_classes)
    assert float((together - alone).abs().max()) < 1e-5 * (1 + float(together.abs().max()))
