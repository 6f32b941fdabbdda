"""`cler.check` says in words which promise is broken, with the line of the user's code."""

import copy
import inspect
import json
import random
from dataclasses import dataclass, make_dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import cler
import own_parts
from cler.cli import app
from cler.config.registry import DATASETS, METHODS, NETWORKS, OPTIMIZERS, REGULARIZERS, TEACHERS, VIEWS
from cler.errors import UsageError
from cler.methods.finetune import Finetune
from cler.methods.loss import total
from cler.nets.norm import frozen_statistics
from cler.promises import BrokenPromise, check
from cler.promises.learners import serves_a_learner
from cler.promises.networks import parts_equal_passes, pretext_images_are_silent
from cler.promises.steps import keeps_the_rule, takes_its_smallest_batch, trains_what_its_loss_reaches
from cler.promises.toy import colors, small_network
from cler.promises.training import (
    answers_with_statistics_that_move,
    evaluation_changes_nothing,
    leaves_images_and_labels_alone,
    moves_statistics,
    resumes,
    weighs_its_loss,
)
from cler.regularizers.base import Entry, Regularizer
from cler.teachers.ema import Ema

pytestmark = pytest.mark.usefixtures("shallow")


def failures(thing):
    return {each.promise: each.failure for each in check(thing).failures}


def test_a_method_without_a_name_is_told_so():
    class Nameless(cler.Method):
        """Forgot it."""

    for take in (check, cler.register, cler.train):
        with pytest.raises(UsageError, match=r"^the method .*Nameless has no name: write one in the class"):
            take(Nameless)


class Plain:
    alpha: float = 0.3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Plain, r"the Options of own must be a frozen dataclass: write @dataclass\(frozen=True\) above the class"),
        (dataclass(type("Thawed", (Plain,), {})), "the Options of own must be a frozen dataclass"),
        (make_dataclass("Bare", ["alpha"], frozen=True), "the Options of own must have defaults: alpha has none"),
    ],
)
def test_settings_of_its_own_that_cannot_be_are_refused(options, says):
    with pytest.raises(UsageError, match=f"^{says}"):
        cler.train(type("Own", (Finetune,), {"name": "own", "Options": options}))
    with pytest.raises(UsageError, match="unknown setting 'bufer'"):  # and nothing of the other one
        cler.train("er-ace", bufer=3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "observe must return the terms of its loss by name, as {'replay': loss}, not a NoneType"),
        (torch.zeros(()), "observe must return the terms of its loss by name, as {'replay': loss}, not a Tensor"),
        ({"loss": 0.5}, "observe must return each term of its loss as a tensor of one number: loss is not"),
        ({"loss": torch.zeros(3)}, "observe must return each term of its loss as a tensor of one number: loss is not"),
    ],
)
def test_what_observe_returns_is_looked_at(given, says):
    method = type("Returning", (Finetune,), {"name": "returning", "observe": lambda self, batch: given})
    assert [*failures(method).values()] == [says]


class Looking(Finetune):
    """Looks at its loss."""

    name = "looking"

    def observe(self, batch):
        (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
        terms = {"loss": F.cross_entropy(logits, batch.labels), **penalties}
        if terms["loss"].item() > 0:  # here
            self.descend(terms)
        return terms


class Printing(Finetune):
    """Prints its loss."""

    name = "printing"

    def observe(self, batch):
        terms = super().observe(batch)
        print(terms["cross-entropy"])  # here
        return terms


def test_a_print_of_a_tensor_is_a_look_at_it():
    METHODS.add(Printing)
    with pytest.raises(BrokenPromise, match=f"line {line_of(Printing, '# here')}: a tensor's value reaches the host"):
        keeps_the_rule("printing", network=small_network)


def test_a_term_that_is_no_tensor_is_told_by_name():
    with pytest.raises(UsageError, match=r"^the terms of a loss are tensors: replay is a int$"):
        total({"stream": torch.zeros(()), "replay": 0})


def line_of(thing, mark):
    source, first = inspect.getsourcelines(thing)
    return first + next(number for number, line in enumerate(source) if mark in line)


def test_a_look_at_a_tensor_is_told_with_its_line():
    broken = failures(Looking)
    (promise,) = [each for each in broken if each.startswith("the one rule: no look")]
    assert f"{__file__}, line {line_of(Looking, '# here')}: a tensor's value reaches the host" in broken[promise]
    assert not [each for each in broken if "same seed" in each]


def test_a_report_prints_as_a_table(monkeypatch):
    monkeypatch.setattr("cler.promises.checking.TRAINING", {"evaluation changes nothing": lambda *_: None})
    report = check("finetune")
    assert report.passed
    assert str(report).splitlines() == [
        "✓ can be built, takes its first steps, and answers",
        "✓ evaluation changes nothing",
        "the method finetune keeps all of its 2 promises",
    ]


class Forgetful(Finetune):
    """Keeps what no checkpoint carries, and draws from Python."""

    name = "forgetful"

    def observe(self, batch):
        self.chance = str(random.random())  # here
        self.order = getattr(self, "order", "") + "x"
        return super().observe(batch)


def test_a_draw_from_the_host_is_told_with_its_line():
    broken = " ".join(failures(Forgetful).values())
    assert f"{__file__}, line {line_of(Forgetful, '# here')}: a global random state has moved" in broken


class Logging(Finetune):
    """Looks at its loss now and then."""

    name = "logging"

    def __init__(self, setup):
        super().__init__(setup)
        self.steps, self.last = 0, 0.0

    def observe(self, batch):
        terms = super().observe(batch)
        self.steps += 1
        if self.steps % 60 == 0:
            self.last = terms["cross-entropy"].item()  # here
        return terms


class Turning(Finetune):
    """Writes to one tensor after the other."""

    name = "turning"

    def __init__(self, setup):
        super().__init__(setup)
        self.turn, self.ring = 0, [torch.zeros(setup.tasks.n_classes, device=setup.device) for _ in range(3)]

    def observe(self, batch):
        terms = super().observe(batch)
        self.ring[self.turn].copy_(self.network.classifier.bias.detach())  # here
        self.turn = (self.turn + 1) % 3
        return terms


class Warming(Finetune):
    """Counts on the host, and has settled when it no longer decides by that."""

    name = "warming"
    settled = property(lambda self: self.steps >= 3)

    def __init__(self, setup):
        super().__init__(setup)
        self.steps, self.in_task = 0, [0, 0]

    def observe(self, batch):
        self.steps, self.in_task[self.task] = self.steps + 1, self.in_task[self.task] + 1
        return super().observe(batch._replace(images=0.5 * batch.images) if self.steps < 3 else batch)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (Logging, r"a tensor's value reaches the host \(item\), once steps is \d+: a recorded step does not count on"),
        (Turning, r"two steps differ: aten.copy_.default has the tensor ring\.\d, then the tensor ring\.\d: keep what"),
    ],
)
def test_what_is_decided_by_a_count_is_told_with_its_line(method, says, monkeypatch):
    monkeypatch.setitem(METHODS._entries, method.name, method)
    with pytest.raises(BrokenPromise, match=f"^{__file__}, line {line_of(method, '# here')}: {says}"):
        keeps_the_rule(method.name, network=small_network)


def test_a_count_that_decides_until_it_has_settled_keeps_the_rule(monkeypatch):
    monkeypatch.setitem(METHODS._entries, "warming", Warming)
    keeps_the_rule("warming", "jigsaw", network=small_network)


class Keeping(METHODS["derpp"]):
    """Stores logits with their graph."""

    name = "keeping"

    def observe(self, batch):
        (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
        terms = {"stream": F.cross_entropy(logits, batch.labels), **penalties}
        if self.buffer.filled:
            replay = self.buffer.sample(self.setup.replay_batch)
            terms["distance"] = (self.network(self.views.plain(replay.pixels)) - replay.extra["logits"]).square().mean()
        self.descend(terms)
        self.buffer.add(batch.pixels, batch.labels, logits=logits)
        return terms


def test_a_graph_that_is_kept_is_told_with_what_to_write():
    (outcome,) = check(Keeping).outcomes
    assert "what is kept from a step, as in a buffer, keeps its graph: keep x.detach()" in outcome.failure


class Evaluating(Finetune):
    """Sets the mode of its old network where a resumed run does not come by."""

    name = "evaluating"

    def __init__(self, setup):
        super().__init__(setup)
        self.old = copy.deepcopy(self.network).requires_grad_(False)

    def begin_task(self, task):
        super().begin_task(task)
        self.old.load_state_dict(self.network.state_dict())
        self.old.eval()


def test_a_mode_that_a_resumed_run_does_not_have_is_told(monkeypatch):
    monkeypatch.setitem(METHODS._entries, "evaluating", Evaluating)
    with pytest.raises(BrokenPromise, match=r"^resumed, old is in another mode: set it, by train\(\) or eval\(\)"):
        resumes("evaluating", stops=[(1, 1)])


class Alone(Finetune):
    """Needs two images, and does not say so."""

    name = "alone"

    def observe(self, batch):
        (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
        variance = (logits - logits.mean(0)).square().sum() / (len(logits) - 1)
        terms = {"cross-entropy": F.cross_entropy(logits, batch.labels), "variance": variance, **penalties}
        self.descend(terms)
        return terms


def test_a_batch_that_is_too_small_has_to_be_said(monkeypatch):
    monkeypatch.setitem(METHODS._entries, "alone", Alone)
    with pytest.raises(
        BrokenPromise, match=r"^with a batch of 1 the loss is not a finite number, .* smallest_batch = 2"
    ):
        takes_its_smallest_batch("alone")
    monkeypatch.setattr(Alone, "smallest_batch", 2)
    takes_its_smallest_batch("alone")


@pytest.mark.parametrize("regularizer", ["none", *REGULARIZERS])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_its_smallest_batch(method, regularizer):
    takes_its_smallest_batch(method, regularizer)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.task_free])
def test_every_method_without_tasks_serves_a_learner(method):
    serves_a_learner(method, "jigsaw", teacher="ema")


class Flat(METHODS["er"]):
    """Keeps a table with a row for each class in one dimension, where the rows of more classes have other places."""

    name = "flat"

    def __init__(self, setup):
        super().__init__(setup)
        self.table = torch.zeros(2 * setup.tasks.n_classes, device=setup.device)

    def observe(self, batch):
        terms = super().observe(batch)
        self.table.view(2, -1)[1].index_copy_(0, batch.labels, batch.labels.float())
        return terms

    def logits(self, images):
        return super().logits(images) + self.table.view(2, -1)[1]


def test_what_moves_when_there_are_more_classes_is_told(monkeypatch):
    monkeypatch.setitem(METHODS._entries, "flat", Flat)
    with pytest.raises(BrokenPromise, match=r"^with room for more than 16 classes a learner answers otherwise, by "):
        serves_a_learner("flat")


class Stuck(cler.Method):
    """Computes a loss and does nothing with it."""

    name = "stuck"
    about = Finetune.about

    def observe(self, batch):
        (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
        return {"loss": F.cross_entropy(logits, batch.labels), **penalties}


def test_a_method_that_takes_no_step_is_told_so():
    assert failures(Stuck) == {
        "all that the loss reaches is trained": "stuck+jigsaw: the loss of jigsaw has no part in the step: give "
        "self.descend the losses that self.outputs returns",
        "learns a toy stream better than chance": "stuck: no step changes the network's weights: observe has to call "
        "self.descend(terms)",
    }


class Bypassing(cler.Method):
    """Takes its steps itself."""

    name = "bypassing"

    def observe(self, batch):
        (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
        terms = {"loss": F.cross_entropy(logits, batch.labels), **penalties}
        self.optimizer.zero_grad()
        sum(terms.values()).backward()
        self.optimizer.step()
        return terms


def test_a_method_that_steps_beside_its_teacher_is_told_so():
    broken = failures(Bypassing)["teachers and regularizers follow every step"]
    assert broken.startswith("bypassing: observe changes weights without self.descend(terms)")


class Projecting(cler.Method):
    """Has a layer of its own, and changes its gradients."""

    name = "projecting"

    def __init__(self, setup):
        own = torch.nn.Linear(self.n_outputs(setup.tasks.n_classes), 1)
        super().__init__(setup, also_trained=[own])
        self.own = own

    def observe(self, batch):
        (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
        terms = {"loss": F.cross_entropy(logits, batch.labels), "own": 0.1 * self.own(logits).square().mean()}
        one = self.gradients({"own": terms["own"]}, retain_graph=True)
        gradients = self.gradients({**terms, **penalties})
        self.apply_gradients({each: gradient + 0 * one.get(each, gradient) for each, gradient in gradients.items()})
        return {**terms, **penalties}


def test_a_method_with_gradients_and_layers_of_its_own_keeps_every_promise():
    assert failures(Projecting) == {}


class Dropping(Finetune):
    """Tells the loss of the regularizer, but takes its step without it."""

    name = "dropping"

    def observe(self, batch):
        (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
        terms = {"loss": F.cross_entropy(logits, batch.labels)}
        self.descend(terms)
        return {**terms, **penalties}


class Untrained(Finetune):
    """Has a layer that no optimizer knows."""

    name = "untrained"

    def __init__(self, setup):
        super().__init__(setup)
        self.own = torch.nn.Linear(self.n_classes, self.n_classes)

    def observe(self, batch):
        (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
        terms = {"loss": F.cross_entropy(self.own(logits), batch.labels), **penalties}
        self.descend(terms)
        return terms


@pytest.mark.parametrize(
    ("method", "regularizer", "says"),
    [
        (Dropping, "jigsaw", "^the loss of jigsaw has no part in the step: give self.descend the losses"),
        (Untrained, "none", r"^its loss has a gradient of own\.weight, own\.bias, .* also_trained=\[\.\.\.\]"),
    ],
)
def test_what_a_step_leaves_out_is_told(method, regularizer, says):
    METHODS.add(method)
    with pytest.raises(BrokenPromise, match=says):
        trains_what_its_loss_reaches(method.name, regularizer, network=small_network)


def method_of(**members):
    return type("Own", (Finetune,), {"name": "own", **members})


def with_a_loss(loss):
    def observe(self, batch):
        (logits,), penalties = self.outputs(batch.images, pixels=batch.pixels, labels=batch.labels)
        terms = {"loss": loss(self, batch, logits), **penalties}
        self.descend(terms)
        return terms

    return observe


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (method_of(begin_task=lambda self, task: None), "begin_task of own has to call super().begin_task(task)"),
        (method_of(__init__=lambda self, setup: None), "__init__ of Own has to call super().__init__(setup)"),
        (
            method_of(observe=lambda self, batch: self.with_replay(batch)),
            "own has no buffer: write replays = True in the class",
        ),
        (
            method_of(observe=with_a_loss(lambda self, batch, logits: logits.square().mean(1))),
            "the terms of a loss are scalars: loss has shape (8,); take its mean",
        ),
        (
            method_of(observe=lambda self, batch: self.outputs(batch.pixels, pixels=batch.pixels, labels=batch.labels)),
            "the network is given pixels as they are stored: give it batch.images, or self.views.augmented(pixels)",
        ),
        (
            method_of(logits=lambda self, images: self.network(images).argmax(1)),
            "logits of own has to give a tensor (N, classes), (20, 4), not (20,)",
        ),
    ],
)
def test_a_mistake_is_told_once_with_what_to_write(method, says):
    (outcome,) = check(method).outcomes
    assert outcome.failure == says


def test_an_error_that_tells_all_numbers_of_a_tensor_is_cut():
    class Missing(Finetune):
        name = "missing"

        def observe(self, batch):
            return {}[next(self.network.parameters())]

    (outcome,) = check(Missing).outcomes
    assert "missing: " in outcome.failure
    assert "KeyError: Parameter containing" in outcome.failure
    assert len(outcome.failure) < 1000


class Still(cler.Teacher):
    """Averages weights, and forgets the running statistics."""

    name = "still"

    def __init__(self, network, options):
        super().__init__(network, options)
        self.average = copy.deepcopy(network)

    @torch.no_grad()
    def after_step(self, network, task):
        torch._foreach_lerp_(list(self.average.parameters()), list(network.parameters()), 0.5)

    def answering(self, network):
        return self.average


def test_a_teacher_that_forgets_the_running_statistics_is_told_so():
    TEACHERS.add(Still)
    with pytest.raises(BrokenPromise, match=r"never change: .*running_mean.* in zip\(average\.buffers\(\)"):
        answers_with_statistics_that_move("finetune", "none", teacher="still", network=small_network)
    answers_with_statistics_that_move("finetune", "none", teacher="ema", network=small_network)


class Headless(Regularizer):
    """Begins nothing."""

    def __init__(self, network, **_):
        self.weight = 1.0


def test_a_regularizer_that_does_not_begin_is_told_so():
    (outcome,) = check(Headless).outcomes
    assert outcome.failure == "__init__ of Headless has to call super().__init__()"


class Crashing(Finetune):
    """Cannot take a step."""

    name = "crashing"

    def observe(self, batch):
        return {"loss": batch.no_such_thing}  # here


def test_an_error_is_told_with_its_line_and_ends_the_check():
    report = check(Crashing)
    assert len(report.outcomes) == 1
    assert f"{__file__}, line {line_of(Crashing, '# here')}: AttributeError" in report.outcomes[0].failure


class SecondPass(Regularizer):
    """Passes the images through the network once more, and draws in a module of its own."""

    def __init__(self, network, *, weight, views, generator):
        super().__init__()
        self.weight, self.noise = weight, nn.Dropout(0.5)

    def loss(self, network, raw, augmented, labels, parts=None):
        return self.weight * self.noise(network.features(augmented)).square().mean()


def test_a_regularizer_is_told_what_moves_statistics_and_which_module_draws():
    broken = " ".join(failures(SecondPass).values())
    assert "wrap it in frozen_statistics(network)" in broken
    assert "sub-module 'regularizer secondpass.noise' draws a random number that is not from the run's" in broken


class Penalty(Regularizer):
    """Features are to be small; subclasses make mistakes."""

    def __init__(self, network, *, weight, **_):
        super().__init__()
        self.weight = weight

    def loss(self, network, raw, augmented, labels, parts=None):
        with frozen_statistics(network):
            return self.weight * network.features(augmented).square().mean()


class Weightless(Penalty):
    def loss(self, *arguments):
        return super().loss(*arguments) / self.weight


class Relabeling(Penalty):
    def loss(self, network, raw, augmented, labels, parts=None):
        labels.zero_()
        return super().loss(network, raw, augmented, labels, parts)


class Blackening(Penalty):
    def loss(self, network, raw, augmented, labels, parts=None):
        with torch.no_grad():
            augmented.zero_()
        return super().loss(network, raw, augmented, labels, parts)


class Freezing(Penalty):
    def loss(self, network, *arguments):
        network.eval()
        return super().loss(network, *arguments)


class Saturated(Penalty):
    """Zero as long as features are small."""

    def loss(self, *arguments):
        return F.relu(super().loss(*arguments) - 1000.0)


@pytest.mark.parametrize(
    ("mistake", "promise", "says"),
    [
        (Weightless, weighs_its_loss, "its loss is the same with twice the weight: multiply it by weight"),
        (Relabeling, leaves_images_and_labels_alone, "it changes the labels that it is given: change a copy"),
        (Blackening, leaves_images_and_labels_alone, "it changes the images that it is given: change a copy"),
        (Freezing, evaluation_changes_nothing, "a step leaves the network in evaluation mode: put it back"),
    ],
)
def test_mistakes_of_a_regularizer_are_told(mistake, promise, says, monkeypatch):
    monkeypatch.setitem(REGULARIZERS._entries, "mistaken", Entry("mistaken", "", "", build=mistake, weight=0.5))
    labels = colors().train_labels.clone()
    moves_statistics("finetune", "mistaken", network=small_network)
    assert torch.equal(colors().train_labels, labels)  # which all checks of a process share
    with pytest.raises(BrokenPromise, match=says):
        promise("finetune", "mistaken", network=small_network)


@pytest.mark.parametrize("right", [Penalty, Saturated])
def test_what_a_regularizer_may_do(right, monkeypatch):
    monkeypatch.setitem(REGULARIZERS._entries, "right", Entry("right", "", "", build=right, weight=0.5))
    for promise in (weighs_its_loss, leaves_images_and_labels_alone, evaluation_changes_nothing):
        promise("finetune", "right", network=small_network)


class Noise(nn.Module):
    """Draws from the global generator."""

    def forward(self, images):
        return images + torch.randn_like(images)


def noisy(n_outputs):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), Noise(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    module.append(nn.Linear(4, n_outputs))
    return cler.backbone(module, tap="0", head="2", classifier="5")


class Attending(nn.Module):
    """Looks at each row of a map beside the others, and drops nothing out."""

    def forward(self, x):
        rows = x.mean(1, keepdim=True)
        return x + F.scaled_dot_product_attention(rows, rows, rows)


def test_attention_that_drops_nothing_out_keeps_the_rule():
    def attending(n_outputs, *, channels=3):
        late = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), Attending())
        ends = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, n_outputs))
        module = nn.Sequential(nn.Conv2d(channels, 8, 3, stride=2, padding=1), late, ends)
        return cler.backbone(module, tap="0", head="1", classifier="2.2")

    keeps_the_rule("finetune", "jigsaw", network=attending)


class Tallying(nn.Module):
    """Counts its passes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, maps):
        if self.training:
            self.passes.add_(1)
        return maps


class Centering(nn.Module):
    """Subtracts a running mean, and moves it in every pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, maps):
        if self.training:
            self.mean.copy_(0.9 * self.mean + 0.1 * maps.detach().mean((0, 2, 3)))
        return maps - self.mean.view(-1, 1, 1)


def network_with(layer):
    def make(n_outputs, *, channels=3):
        convolutions = [nn.utils.parametrizations.spectral_norm(nn.Conv2d(n, 8, 3, 2, 1)) for n in (channels, 8)]
        ends = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, n_outputs))
        module = nn.Sequential(nn.Sequential(convolutions[0], layer(), nn.ReLU()), convolutions[1], ends)
        return cler.backbone(module, tap="0", head="1", classifier="2.2")

    return make


def test_a_silent_part_may_move_counts_and_spectral_norm_but_no_statistics():
    parts_equal_passes(network_with(Tallying))
    pretext_images_are_silent(network_with(Tallying))
    with pytest.raises(BrokenPromise, match=r"^a silent part moves running statistics: module\.0\.1\.mean$"):
        parts_equal_passes(network_with(Centering))
    with pytest.raises(BrokenPromise, match=r"^pretext images move running statistics: module\.0\.1\.mean$"):
        pretext_images_are_silent(network_with(Centering))


def test_a_network_is_told_which_sub_module_draws():
    (failure,) = failures(noisy).values()
    assert "sub-module 'module.1' draws from PyTorch's global generator" in failure


class Mixing(cler.Backbone):
    """Ignores parts and pretext images, and forgets to be as wide as it says."""

    tap, head = "early", "late"

    def __init__(self, n_outputs):
        super().__init__()
        self.early, self.late = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), nn.Conv2d(4, 4, 3)
        self.feature_size, self.classifier = 4, nn.Linear(4, n_outputs)

    def features(self, images, parts=None, pretext=()):
        return self.late(self.early(images)).mean((2, 3))


def test_a_backbone_that_ignores_parts_and_pretext_images_is_told_so():
    broken = " ".join(failures(Mixing).values())
    assert "outputs of a batch of two parts are not those of a pass for each" in broken
    assert "pretext images are given no maps" in broken


def test_what_is_not_there_is_a_mistake(tmp_path):
    with pytest.raises(
        UsageError,
        match=r"unknown method, regularizer, teacher or .* 'er-acee'.*did you mean 'er-ace'\?; if .* with --import",
    ):
        check("er-acee")
    with pytest.raises(UsageError, match="digits is a dataset: `cler data check digits` checks whether it can be used"):
        check("digits")
    with pytest.raises(UsageError, match="takes a name, or a method"):
        check(3)
    for stream, named in (("blurry", "blurry"), (own_parts.Backward, "Backward")):
        with pytest.raises(UsageError, match=rf"^{named} is a stream: check tests methods, regularizers, teachers and"):
            check(stream)


def test_the_exit_code_is_one_where_a_promise_is_broken(tmp_path):
    (tmp_path / "crashes.py").write_text(
        "from cler.methods.base import register\nfrom cler.methods.finetune import Finetune\n"
        "@register\nclass Crashes(Finetune):\n    name = 'crashes'\n"
        "    def observe(self, batch):\n        return 1 / 0\n"
    )
    answer = CliRunner().invoke(app, ["check", "crashes", "--import", str(tmp_path / "crashes.py"), "--json"])
    assert answer.exit_code == 1
    assert "crashes.py, line 7: ZeroDivisionError" in json.loads(answer.stdout)["promises"][0]["failure"]
    missing = CliRunner().invoke(app, ["check", "er", "--import", "nowhere.py"])
    assert isinstance(missing.exception, UsageError)


def test_a_file_without_a_registered_part_and_a_file_instead_of_a_name(tmp_path, cler_here):
    (tmp_path / "unregistered.py").write_text("import cler\nclass Mine(cler.Method):\n    name = 'my-own'\n")
    unregistered = cler_here("check", "my-own", "--import", tmp_path / "unregistered.py")
    assert unregistered.err.endswith("'my-own': unregistered.Mine is not registered; put @cler.register above it\n")
    code = "import cler\n@cler.register\nclass Mine(cler.Method):\n    name = 'its-own'\n"
    (tmp_path / "registered.py").write_text(code)
    of_another_kind = cler_here("run", "er-ace", "--stream", "its-own", "--import", tmp_path / "registered.py")
    assert of_another_kind.err.startswith("cler: unknown stream 'its-own' (known: ")
    for command in ("run", "check"):
        swapped = cler_here(command, "mine.py")
        assert swapped.err == "cler: mine.py is a file: write --import mine.py, and the name of what it registers\n"


CELL = """
from cler.methods.base import About, register
from cler.nets.build import Network, register as register_network
from cler.regularizers.base import Entry, register as register_regularizer
from cler.config.registry import OPTIMIZERS, VIEWS
from cler.data.images import InMemory, register as register_dataset
from dataclasses import replace
from cler.promises.toy import colors

@register
class Mine(Finetune):
    name = "mine"
    about = About(title="Mine", summary="")

class Penalty(Regularizer):
    pass

def build(n_outputs, *, channels):
    pass

def view(images, generator):
    return images

register_regularizer(Entry("penalty", "penalty", "", build=Penalty, weight=1.0))
register_network(Network("built", "", build))
register_dataset(InMemory(replace(colors(), name="cell")))
VIEWS.register("view", view)
OPTIMIZERS.register("again", OPTIMIZERS["adam"])
"""


def test_a_cell_of_a_notebook_may_run_twice():
    names = {**globals(), "__name__": "__main__"}
    exec(CELL, names)
    first = METHODS["mine"], REGULARIZERS["penalty"].build, NETWORKS["built"].build, VIEWS["view"]
    exec(CELL, names)
    second = METHODS["mine"], REGULARIZERS["penalty"].build, NETWORKS["built"].build, VIEWS["view"]
    assert all(one is not other for one, other in zip(first, second, strict=True))


def test_another_class_may_not_take_a_name():
    for table in (METHODS, REGULARIZERS, NETWORKS, DATASETS, VIEWS, OPTIMIZERS):
        with pytest.raises(ValueError, match=f"two {table.kind}s are named"):
            table.register(next(iter(table)), Noise)


class Meddling(Ema):
    """Moves the network too, and does not say that it teaches."""

    name = "meddling"

    @torch.no_grad()
    def after_step(self, network, task):
        super().after_step(network, task)
        for parameter in network.parameters():
            parameter.mul_(0.999)


def test_a_teacher_that_changes_what_is_learned_has_to_say_that_it_teaches(monkeypatch):
    monkeypatch.setattr("cler.promises.checking.TRAINING", {})  # which takes long, and is asked of every thing
    ((promise, failure),) = failures(Meddling).items()
    assert promise == "what is learned is the same without it"
    assert "it says teaches = False, but the network learns something else with it: " in failure
