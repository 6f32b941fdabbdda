"""What holds for every method with every regularizer: a new one is tested by being registered."""

import copy
import inspect
import itertools
import random
import re
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from cler.config.compatibility import fits
from cler.config.settings import own_settings
from cler.engine import Control, train
from cler.engine.state import collect
from cler.methods import METHODS
from cler.methods.finetune import Finetune
from cler.promises import BrokenPromise, steps, training
from cler.promises.rule import BrokenRule, check_rule
from cler.promises.state import differences, tensors_of
from cler.promises.toy import LOOPS, colors, in_later_task, make_run, make_short_run, small_network, trained
from cler.regularizers import REGULARIZERS, Regularizer
from cler.regularizers.base import Entry
from cler.streams import Tasks
from cler.streams.base import members_of
from cler.teachers import TEACHERS

pytestmark = pytest.mark.usefixtures("shallow")
REGULARIZER_NAMES = ["none", *REGULARIZERS]
ALIKE = ("rotation", "jigsaw")
"""One class, with another transform: each method is tried with one of them, in turn."""
PAIRS = [
    (method, regularizer)
    for number, method in enumerate(METHODS)
    for regularizer in REGULARIZER_NAMES
    if regularizer != ALIKE[number % 2]
]
OTHER_VARIANTS = [
    (name, variant)
    for name, method in METHODS.items()
    for variant in getattr(sys.modules[method.__module__], "VARIANTS", ())
    if variant != method.Options().variant
]
every_pair = pytest.mark.parametrize(("method", "regularizer"), PAIRS, ids=["+".join(pair) for pair in PAIRS])
SOME_PAIRS = list(zip(METHODS, itertools.cycle(reversed(REGULARIZER_NAMES)), strict=False))
"""Every method and every regularizer at least once, for what has nothing to do with both of them together."""
WITH_AND_WITHOUT = sorted({(method, name) for method, other in SOME_PAIRS for name in ("none", other)})
some_pairs = pytest.mark.parametrize(("method", "regularizer"), SOME_PAIRS, ids=["+".join(pair) for pair in SOME_PAIRS])


DATA = colors(size=8, train_images=16)
UNAUGMENTED = {"dualnet", "mose"}
"""Methods that train on images as they are."""
UNEQUAL = {"tasks": "1+2+1", "data": DATA}
"""Tasks of different sizes, of two steps each at most."""


def network_of(method, regularizer):
    """Our ResNet-18 with one of the regularizers, which is slower; ordinary layers with the others."""
    ours = METHODS[method].own_network is not None or (method, regularizer) in SOME_PAIRS
    return {} if ours else {"network": small_network}


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "regularizer"), WITH_AND_WITHOUT, ids=map("+".join, WITH_AND_WITHOUT))
def test_learns_a_toy_stream(method, regularizer):
    """A smoke test: its limits were set after seeing what the methods reach on this toy, with room to spare."""
    settings = {
        "gsa": {"lr": 0.05, "epochs": 2},  # its loss is three cross-entropies
        "ccl-dc": {"lr": 0.06, "epochs": 1},  # and its loss six of them
        "mose": {"lr": 0.1, "epochs": 1},
        "cope": {"lr": 0.03, "epochs": 1, "inner": 3},  # its gradients add up
        "dualnet": {"lr": 0.02, "epochs": 2, "slow_steps": 1, "fast_steps": 2, "distill": 2},  # a network of its own
    }.get(method, {"lr": 0.1, "epochs": 2})
    if regularizer != "none":
        settings["weight"] = REGULARIZERS[regularizer].weight
    if regularizer == "barlow-twins":
        settings["weight"] = 0.01  # a sum over dimensions, not a mean
    least = 60 if METHODS[method].merged else 40  # chance: 25; one whole task: 50
    training.learns(method, regularizer, tries=[settings], least=least, kept=60, seeds=(1,))


# -- randomness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_decides_everything(method):
    """With regularizers, it is part of `test_seeds_trained_together_equal_each_alone`."""
    training.repeats(method, "none")


@every_pair
def test_initial_weights_and_draws_come_from_the_seed(method, regularizer):
    training.begins_from_the_seed(method, regularizer)


# -- together equals alone ---------------------------------------------------------------------------------------------


@every_pair
def test_seeds_trained_together_equal_each_alone(method, regularizer):
    training.together_equals_alone(method, regularizer, **UNEQUAL)


@pytest.mark.parametrize("schedule", sorted({str(make_run(method, "none").phases) for method in METHODS}))
def test_different_methods_trained_together_equal_each_alone(schedule):
    """Every method that can be, with one regularizer or another."""
    alike = [method for method in METHODS if str(make_run(method, "none").phases) == schedule]
    pairs = zip(alike, itertools.cycle(REGULARIZER_NAMES), strict=False)
    training.equals_alone([(*pair, seed) for seed, pair in enumerate(pairs)])


# -- the rule of `observe` ---------------------------------------------------------------------------------------------


@every_pair
def test_every_phase_keeps_the_rule(method, regularizer):
    """In the precision of a GPU."""
    steps.keeps_the_rule(method, regularizer, precision="bf16", **network_of(method, regularizer))


@pytest.mark.parametrize("method", METHODS)
def test_every_phase_keeps_the_rule_in_single_precision_and_with_unequal_tasks(method):
    steps.keeps_the_rule(method, "jigsaw", tasks="1+3")


@pytest.mark.parametrize(("method", "variant"), OTHER_VARIANTS)
def test_every_variant_keeps_the_rule_and_a_recorded_step_serves_all_with_its_key(method, variant):
    steps.keeps_the_rule(method, "rotation", variant=variant)
    steps.recorded_step_serves(method, "rotation", variant=variant)


@every_pair
def test_observe_keeps_the_rule_in_the_first_task_and_a_recorded_step_serves_all_with_its_key(method, regularizer):
    steps.recorded_step_serves(method, regularizer, **network_of(method, regularizer))


@every_pair
def test_teachers_and_regularizers_follow_every_step(method, regularizer):
    steps.is_followed(method, regularizer, **network_of(method, regularizer))


@every_pair
def test_all_that_the_loss_reaches_is_trained(method, regularizer):
    steps.trains_what_its_loss_reaches(method, regularizer, **network_of(method, regularizer))


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
    batch.images[batch.labels > 2] = batch.images.new_zeros(1, 1, 1, 1)
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


def makes_a_tensor_on_no_device(method, batch, loss):
    return loss + 0.0 * torch.ones(2).sum()


def asks_autograd_for_slopes(method, batch, loss):
    slopes = torch.autograd.grad(loss, [method.network.classifier.weight], retain_graph=True)
    return loss + 0.0 * slopes[0].sum()


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
    makes_a_tensor_on_no_device: "torch.ones without device=self.setup.device",
    asks_autograd_for_slopes: r"call self\.gradients\(terms\)",
    counts_on_the_host: "two steps differ: .* has .*, then .*or have recording_key tell it",
    changes_its_mind: "two steps differ: .* Python may decide only by what recording_key tells",
    grows: "two steps differ",
}


ELSEWHERE = {counts_on_the_host, changes_its_mind}
"""Their next operator is the first that differs, in what calls them."""


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
    with pytest.raises(BrokenRule, match=MISTAKES[mistake]) as broken:
        check_rule(run)
    source, first = inspect.getsourcelines(mistake)
    file, line = re.match(r"(.*?), line (\d+)[: ]", str(broken.value)).groups()
    if mistake in ELSEWHERE:
        assert file == __file__
    else:
        assert (file, first <= int(line) < first + len(source)) == (__file__, True)


class Smoothing(Finetune):
    """What is allowed: one_hot with a number of classes looks at its labels on a CPU only."""

    name = "smoothing"

    def observe(self, batch):
        targets = 0.9 * F.one_hot(batch.labels, self.n_classes) + 0.1 / self.n_classes
        terms = {"loss": F.cross_entropy(self.network(batch.images), targets)}
        self.descend(terms)
        return terms


class Keeping(Finetune):
    """Keeps a mean of its outputs with the graph that they come from."""

    name = "keeping"

    def __init__(self, setup):
        super().__init__(setup)
        self.mean = torch.zeros(self.n_classes)

    def observe(self, batch):
        logits = self.network(batch.images)
        self.mean.copy_(logits.mean(0))
        terms = {"loss": F.cross_entropy(logits, batch.labels)}
        self.descend(terms)
        return terms


def test_one_hot_is_no_look(monkeypatch):
    monkeypatch.setitem(METHODS._entries, "smoothing", Smoothing)
    check_rule(in_later_task(make_run("smoothing", network=small_network)))


def test_state_that_keeps_a_graph_is_caught(monkeypatch):
    monkeypatch.setitem(METHODS._entries, "keeping", Keeping)
    with pytest.raises(BrokenRule, match=r"^mean keeps the graph .* torch\.no_grad\(\)"):
        check_rule(in_later_task(make_run("keeping", network=small_network)))


class Greedy(METHODS["er"]):
    """Draws more than a replay batch as soon as there are that many."""

    name = "greedy"
    recording_key = None

    def observe(self, batch):
        replay = self.buffer.sample(2 * self.setup.replay_batch)
        (logits,), penalties = self.outputs(
            torch.cat([batch.images, self.views.augmented(replay.pixels)]), pixels=batch.pixels, labels=batch.labels
        )
        terms = {"loss": F.cross_entropy(logits, torch.cat([batch.labels, replay.labels])), **penalties}
        self.descend(terms)
        self.buffer.add(batch.pixels, batch.labels)
        return terms


def test_a_step_that_is_recorded_before_the_buffer_holds_what_it_draws_is_caught(monkeypatch):
    monkeypatch.setitem(METHODS._entries, "greedy", Greedy)
    with pytest.raises(BrokenRule, match=r"has 24, then 32: .* or settled when it is over"):
        steps.recorded_step_serves("greedy", network=small_network)


def test_a_recording_key_that_serves_steps_of_other_kernels_is_caught(monkeypatch):
    """ER-ACE replays from the second task on, which is of the size of the first."""
    monkeypatch.setattr(METHODS["er-ace"], "recording_key", None)
    with pytest.raises(BrokenRule, match="two steps differ"):
        steps.recorded_step_serves("er-ace", network=small_network)


# -- state that lasts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.replays])
def test_the_buffer_is_part_of_what_is_looked_at(method):
    assert any(path.startswith("run.method.buffer") for path in tensors_of(make_run(method)))


def test_state_that_is_replaced_is_caught(monkeypatch):
    class Bad(Finetune):
        def begin_task(self, task):
            super().begin_task(task)
            self.total = torch.zeros(())

        def observe(self, batch):
            self.total = self.total + 1
            return super().observe(batch)

    monkeypatch.setitem(METHODS._entries, "finetune", Bad)
    with pytest.raises(BrokenRule, match=r"^total is another tensor"):
        check_rule(in_later_task(make_run("finetune", "none")))


# -- the terms of the loss ---------------------------------------------------------------------------------------------


@every_pair
def test_every_phase_names_its_terms_and_the_regularizer(method, regularizer):
    steps.names_its_losses(method, regularizer, **network_of(method, regularizer))


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
def test_a_regularizer_is_told_of_every_step_of_the_network(method, monkeypatch):
    entry = Entry("follower", "follower", "", build=Follower, weight=1.0)
    monkeypatch.setitem(REGULARIZERS._entries, "follower", entry)
    run = make_run(method, "follower")
    followed = [(network.classifier.weight, follower.average.clone()) for network, follower in run.method.regularized]
    assert len(followed) == len(run.method.network.members)
    steps = []

    own = set(run.method.network.parameters())

    def follow(optimizer, arguments, options):
        if own.intersection(optimizer.param_groups[0]["params"]):
            steps.append([expected.lerp_(weight.detach(), 0.5) for weight, expected in followed])

    hook = register_optimizer_step_post_hook(follow)
    train([run])
    hook.remove()
    assert len(steps) >= sum(run.phases[0].values())
    for follower, (_, expected) in zip(run.method.regularizers, followed, strict=True):
        assert torch.equal(follower.average, expected)
    assert "regularizers.0.average" in collect(run.method).tensors


# -- what regularizers are given ---------------------------------------------------------------------------------------


def shades(per_class=16):
    """Four classes, each image of one shade; no two are as near to each other as two steps."""
    labels = torch.arange(4).repeat_interleave(per_class)
    pixels = (40 + 3 * torch.arange(len(labels))).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 8, 8)
    return replace(DATA, train_images=pixels.contiguous(), train_labels=labels)


class Witness(Regularizer):
    """Writes down what it is given; its loss is a number of its own, so that every step lowers that by the rate."""

    def __init__(self, network, *, weight, views, generator):
        super().__init__()
        self.given, self.level = [], torch.nn.Parameter(torch.zeros(()))

    def loss(self, network, raw, augmented, labels, parts=None):
        self.given.append((raw, augmented, labels))
        return self.level


WITH_TEACHERS = [(method, "none") for method in METHODS] + [
    (method, name) for name, teacher in TEACHERS.items() for method in METHODS if teacher.teaches and fits(method, name)
]
"""Every method by itself, and with each teacher that adds images to its pass."""


@pytest.mark.parametrize(("method", "teacher"), WITH_TEACHERS, ids=map("+".join, WITH_TEACHERS))
def test_a_regularizer_is_given_images_with_their_views_and_labels_and_its_loss_is_learned(
    method, teacher, monkeypatch
):
    """Those of the stream come first, or last."""
    entry = Entry("witness", "witness", "", build=Witness, weight=1.0)
    monkeypatch.setitem(REGULARIZERS._entries, "witness", entry)
    data = shades()
    loops = LOOPS | {"inner": 1}  # the gradients of CoPE's steps add up
    run = make_run(method, "witness", data=data, lr=0.25, loops=loops, teacher=teacher)
    views = run.method.views
    monkeypatch.setattr(views, "view", lambda pixels, augment=None: pixels + 1)
    in_later_task(run)
    stream = torch.arange(32, 40)
    for witness in run.method.regularizers:
        witness.given.clear()
        witness.level.data.zero_()
    run.method.observe(run._batch(stream))
    for witness in run.method.regularizers:
        assert witness.given
        assert float(witness.level.detach()) == -0.25 * len(witness.given)
        for raw, augmented, labels in witness.given:
            numbers = (raw - views.plain(data.train_images)[:, None]).abs().sum((2, 3, 4)).argmin(0)
            plain = views.plain(data.train_images[numbers])
            assert torch.equal(raw, plain)
            assert torch.equal(
                augmented, plain if method in UNAUGMENTED else views.plain(data.train_images[numbers] + 1)
            )
            assert torch.equal(labels, data.train_labels[numbers])
            assert any(torch.equal(each, stream) for each in (numbers[: len(stream)], numbers[-len(stream) :]))
            assert (len(numbers) > len(stream)) == METHODS[method].replays


# -- regularizers and running statistics -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["er-ace", "finetune"])
@pytest.mark.parametrize("name", REGULARIZERS)
def test_a_regularizer_says_whether_it_moves_the_running_statistics(name, method):
    training.says_whether_it_moves_statistics(method, name)


class SecondPass(Regularizer):
    """Passes the images through the network once more, and forgets about batch norm."""

    def __init__(self, network, *, weight, views, generator):
        super().__init__()

    def loss(self, network, raw, augmented, labels, parts=None):
        return network.features(augmented).square().mean()


def test_a_regularizer_that_moves_the_running_statistics_without_saying_so_is_caught(monkeypatch):
    entry = Entry("second-pass", "second pass", "", build=SecondPass, weight=1.0)
    monkeypatch.setitem(REGULARIZERS._entries, "second-pass", entry)
    assert not SecondPass.moves_statistics
    with pytest.raises(BrokenPromise, match="frozen_statistics"):
        training.says_whether_it_moves_statistics("finetune", "second-pass")


# -- images and tasks of different sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_pass_over_a_task_is_observed(method):
    found = [METHODS[method].phases(METHODS[method].Options(), 1, epoch=6, epochs=epochs) for epochs in (1, 3)]
    assert [phases["observe"] for phases in found] == [6, 18]


@pytest.mark.parametrize("method", METHODS)
def test_images_need_not_be_square(method):
    square = colors(size=12, train_images=16)
    low = {name: getattr(square, name)[:, :, :8] for name in ("train_images", "test_images")}
    assert trained(method, "jigsaw", data=replace(square, **low)).complete


@pytest.mark.parametrize("method", METHODS)
def test_unequal_tasks_are_trained_and_evaluated(method):
    run = trained(method, **UNEQUAL)
    assert run.complete
    assert run.failure is None
    assert [len(row) for row in run.accuracy["task_il"]] == ([3] if METHODS[method].merged else [1, 2, 3])
    for row in run.accuracy["task_il"]:
        assert all(right == 100 for right, size in zip(row, (1, 2, 1), strict=False) if size == 1)


@pytest.mark.parametrize("method", METHODS)
def test_unequal_tasks_resume_as_if_nothing_had_happened(method):
    """In the larger second task, in the middle of its last phase."""
    unequal = UNEQUAL | {"tasks": "1+3"}
    whole = trained(method, "jigsaw", **unequal)
    first = make_short_run(method, "jigsaw", **unequal)
    stopper = StopBeforeTheEnd()
    with pytest.raises(KeyboardInterrupt):
        train([first], control=stopper)
    later = make_short_run(method, "jigsaw", seed=5, **unequal)
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
def test_only_the_order_of_tasks_matters_not_the_numbers_of_classes(method):
    """Classes of a task need not have successive numbers; ER-ACE alone goes by them."""
    run = make_short_run(method, data=DATA)
    tasks = Tasks(torch.tensor([0, 1, 0, 1]))
    object.__setattr__(run.method.setup, "tasks", tasks)
    run.stream.tasks, run.stream._train = tasks, members_of(run.stream.train_labels, tasks)
    run.stream._test = members_of(run.stream.test_labels, tasks)
    if METHODS[method].merged:
        run.stream._train = [torch.arange(len(DATA.train_labels))]
    train([run])
    assert run.complete
    assert run.failure is None


# -- settings ----------------------------------------------------------------------------------------------------------

NEEDED = {
    ("ccl-dc", "alpha"): {"base": "derpp"},
    ("ccl-dc", "beta"): {"base": "derpp"},
    ("lwf-mc", "alpha"): {"variant": "released"},
    ("xder", "variant"): {"regularizer": "rotation"},
}
"""Without which a setting has no effect, as it says; so too those of HPCR."""
OWN_SETTINGS = [(method, name) for method in METHODS for name in own_settings({"method": method})]


def another(setting):
    """A value that the setting does not have in short runs."""
    if setting.choices:
        return next(each for each in setting.choices if each != setting.default)
    if setting.kind is bool:
        return not setting.default
    if setting.kind is int:
        usual = LOOPS.get(setting.name, setting.default)
        return usual + 1 if setting.name in LOOPS else max(1, usual // 3)
    return setting.default / 2 if setting.default else 0.1


@cache
def outcome(method, changes):
    """What a short run comes to, and what it answers."""
    run = trained(method, **dict(changes))
    with torch.no_grad(), run.method.answering():
        answers = run.method.logits(run.method.views.plain(run.stream.data.test_images))
    return run.state().tensors | {"answers": answers}


@pytest.mark.parametrize(("method", "name"), OWN_SETTINGS, ids=map(".".join, OWN_SETTINGS))
def test_every_setting_of_a_method_has_an_effect(method, name):
    needed = NEEDED.get((method, name), {"variant": "hpcr"} if (method, name != "variant") == ("pcr", True) else {})
    changed = needed | {name: another(own_settings({"method": method})[name])}
    assert differences(*(outcome(method, tuple(changes.items())) for changes in (needed, changed)))


# -- evaluation --------------------------------------------------------------------------------------------------------


@some_pairs
def test_evaluation_changes_nothing(method, regularizer):
    training.evaluation_changes_nothing(method, regularizer)


@some_pairs
def test_logits_of_an_image_do_not_depend_on_the_others(method, regularizer):
    training.answers_by_the_image_alone(method, regularizer)
