import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cler.config.making import make_settings
from cler.data.views import Views
from cler.errors import UsageError
from cler.memory.quota import same_before
from cler.methods import Setup
from cler.methods.loss import total
from cler.methods.xder import (
    XDer,
    XDerOptions,
    future_violations,
    mean_of_positive,
    overwrite_head,
    past_violations,
)
from cler.nets import ResNet18
from cler.nets.backbone import Parts
from cler.nets.simplex import SimplexClassifier, simplex
from cler.promises import steps, toy, training
from cler.regularizers import Regularizer
from cler.runs.build import make_network
from cler.streams import Batch, Tasks
from toys import CIFAR, given_crops, ours


class LinearStandIn(nn.Module):
    """A linear map of vectors, and the simplex."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        self.corners = simplex(len(bias))

    def forward(self, images, parts=None):
        return F.linear(images, self.weight, self.bias)[:, :-1] @ self.corners


class AsTheyAre:
    """Stands in for views where images are vectors."""

    @staticmethod
    def plain(pixels):
        return pixels

    augmented = plain


def options_of(fixture, **changes):
    names = {"alpha": "alpha", "beta": "beta", "gamma": "gamma", "eta": "eta", "margin": "m"}
    return XDerOptions(**{name: float(fixture[key]) for name, key in names.items()} | changes)


def stand_in_method(case, constants, *, tasks, capacity, **options):
    """X-DER on the linear network, with an empty memory for vectors."""
    n_classes, size = case["W"].shape
    setup = Setup(
        network=LinearStandIn(case["W"], case["b"]),
        views=AsTheyAre(),
        tasks=Tasks.of_sizes([n_classes // tasks] * tasks),
        image_shape=(size,),
        lr=float(constants["lr"]),
        buffer=capacity,
        replay_batch=len(constants["middle.draw1"]),
        options=options_of(constants, **options),
    )
    method = XDer(setup)
    method.buffer.pixels = torch.zeros(capacity + 1, size, dtype=torch.float64)
    return method


def fill(memory, pixels, labels, logits, counters=0):
    memory.filled = len(labels)
    memory.pixels[: memory.filled] = pixels
    memory.labels[: memory.filled] = labels
    memory.logits[: memory.filled] = logits
    memory.counters[: memory.filled] = counters


def give_draws(method, fixture):
    """Replace what decides replay and new logits; a repeated slot has no number of its own in the fixture."""
    draws = iter([fixture["draw1"], fixture["draw2"]])
    method.buffer.draw_slots = lambda count: next(draws)
    slots = torch.cat([fixture["draw1"], fixture["draw2"]])
    first = same_before(slots) == 0
    assert torch.equal(slots[first], fixture["merged_indices"])
    uniforms = torch.zeros(len(slots), dtype=torch.float64)
    uniforms[first] = fixture["uniforms"]
    method.draw_uniforms = lambda count: uniforms


def stand_in_at(fixture, case, **options):
    """X-DER on the linear network as it stands before a golden step."""
    capacity = len(case.get("buffer_labels", case["labels"]))
    method = stand_in_method(case, fixture, tasks=len(fixture["composition500"]), capacity=capacity, **options)
    method.begin_task(int(case["task"]))
    if "draw1" in case:
        fill(method.buffer, case["buffer_x"], case["buffer_labels"], case["buffer_logits"], case["counters_before"])
        give_draws(method, case)
    return method


# -- the mathematics ---------------------------------------------------------------------------------------------------


def test_golden_overwritten_head(golden, assert_close):
    fixture = golden("xder").under("rescale.")
    head = torch.arange(*fixture["head_range"].tolist())
    labels, gamma = fixture["labels"], float(fixture["gamma"])
    assert_close(overwrite_head(fixture["old"], fixture["new"], labels, head, gamma), fixture["result"])
    truth, largest = fixture["old"].gather(1, labels.unsqueeze(1))[:, 0], fixture["new"][:, head].max(1).values
    assert ((truth < 0) & (largest > 0)).any()  # there is no guard for signs, and the file shows it
    assert (largest < truth).any()


def test_an_overwritten_head_stays_below_the_true_class():
    stored = torch.tensor([[2.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0]])
    outputs = torch.tensor([[9.0, 9.0, 4.0, -1.0], [9.0, 9.0, 1.5, -1.0], [9.0, 9.0, 2.0, 1.0]])
    result = overwrite_head(stored, outputs, torch.tensor([0, 0, 0]), torch.tensor([2, 3]), 0.5)
    assert result.tolist() == [[2.0, 0.0, 1.0, -0.25], [2.0, 0.0, 1.5, -1.0], [-1.0, 0.0, -0.5, -0.25]]


def test_past_violations_by_hand():
    probabilities = torch.tensor([[0.5, 0.1, 0.3, 0.1], [0.1, 0.1, 0.2, 0.6]])
    logits = torch.cat([probabilities.log(), torch.full((2, 2), 9.0)], dim=1).requires_grad_()  # the future is left out
    violations = past_violations(logits, Tasks.of_sizes([2, 2, 2]), 1, 0.3)
    assert violations.tolist() == pytest.approx([0.5, -0.2], abs=1e-6)
    (gradient,) = torch.autograd.grad(violations[0], logits)
    only_present = -0.3 * (torch.tensor([0.0, 0.0, 1.0, 0.0]) - probabilities[0])
    assert torch.allclose(gradient[0, :4], only_present, atol=1e-6)
    assert not gradient[0, 4:].any()


def test_future_violations_by_hand():
    logits = torch.tensor([[5.0, 1.0, 0.0, 2.0, 1.0, 1.5]] * 2, requires_grad=True)
    tasks = Tasks.of_sizes([2, 2, 2])
    violations = future_violations(logits, torch.tensor([1, 2]), tasks, 1, 0.3)  # own head: the past one, the present
    assert violations.tolist() == pytest.approx([1.5 + 0.3 - 5.0, 1.5 + 0.3 - 2.0])
    violations.sum().backward()
    assert logits.grad.tolist() == [[-1, 0, 0, 0, 0, 1], [0, 0, 0, -1, 0, 1]]
    assert future_violations(logits, torch.tensor([4, 5]), tasks, 2, 0.3).tolist() == [0, 0]  # no future any more


@pytest.mark.parametrize(("violations", "mean"), [([1.0, -5.0, 3.0, 0.0], 2.0), ([-1.0, 0.0], 0.0), ([4.0], 4.0)])
def test_mean_of_positive(violations, mean):
    violations = torch.tensor(violations, requires_grad=True)
    result = mean_of_positive(violations)
    assert float(result.detach()) == mean
    result.backward()
    assert torch.equal(violations.grad != 0, violations > 0)


# -- one step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["first", "middle", "last"])
def test_golden_step_of_a_linear_network(golden, assert_close, name):
    fixture = golden("xder")
    case = fixture.under(f"{name}.")
    method = stand_in_at(fixture, case)
    replays, capacity = "draw1" in case, method.buffer.capacity
    assert replays == (int(case["task"]) > 0)
    outputs = []
    method.network.register_forward_hook(lambda module, inputs, output: output.retain_grad() or outputs.append(output))

    loss = total(method.observe(Batch(case["x"], case["x"], case["labels"])))

    assert_close(loss, case["loss_total"])
    (output,) = outputs
    blocks = ["stream", "draw1", "draw2"] if replays else ["stream"]
    assert_close(output, torch.cat([case[f"logits_{block}"] for block in blocks]))
    assert_close(output.grad, torch.cat([case[f"grad_{block}"] for block in blocks]))
    assert_close(method.network.weight[:, : case["W_after"].shape[1]], case["W_after"])
    assert_close(method.network.bias, case["b_after"])
    if replays:
        assert torch.equal(method.buffer.counters[:capacity], case["counters_after"].long())
        expected = case["buffer_logits"].clone()
        expected[case["changed_rows"]] = case["buffer_logits_after_changed_rows"]
        assert_close(method.buffer.logits[:capacity], expected)
        changed = (method.buffer.logits[:capacity] != case["buffer_logits"]).any(1).nonzero().squeeze(1)
        assert torch.equal(changed, case["changed_rows"])
        assert torch.equal(case["merged_indices"][case["refreshed"]].sort().values, case["changed_rows"])


TERMS = {"stream": "stream", "mse": "distillation", "ce": "replay", "past": "past margin", "future": "future margin"}
"""Our names of the loss's terms, by the golden files'."""


@pytest.mark.parametrize("name", ["first", "middle", "last"])
def test_golden_terms(golden, assert_close, name):
    fixture = golden("xder")
    case = fixture.under(f"{name}.")
    terms = stand_in_at(fixture, case).observe(Batch(case["x"], case["x"], case["labels"]))
    for theirs, name in TERMS.items():
        assert_close(terms.get(name, torch.tensor(0.0)), case[f"loss_{theirs}"], name)
    assert terms.keys() == (set(TERMS.values()) if "draw1" in case else {"stream", "future margin"})


def tensors(method):
    (regularizer,) = method.regularizers
    pretext = {f"pretext.{name}": value for name, value in regularizer.state_dict().items()}
    return copy.deepcopy(method.network.state_dict() | pretext)


def network_step_method(golden, load_golden, golden_cler, fixture, variant):
    """X-DER with CLER as it stands before the golden step, every draw replaced by the stored one."""
    shared, weights = golden("er_ace_step"), golden("net_nf4")
    n_classes = len(weights["classifier.bias"])
    network = ResNet18(n_classes, width=len(weights["stem.conv"])).double()
    network.replace_classifier(SimplexClassifier(network.classifier))
    load_golden(network, weights)
    regularizer = golden_cler(network, "jigsaw", fixture, float(fixture["lambda_r"]))
    pretext_labels = torch.cat([fixture["pretext_labels_stream"], fixture["pretext_labels_replay"]])
    regularizer.draw_labels = lambda count, device: pretext_labels
    views = Views(*CIFAR, dtype=torch.float64)
    crops = [shared["stream_crops"], torch.cat([fixture["crops1"], fixture["crops2"]])]
    views.view = given_crops(*crops)
    tasks = len(golden("xder")["composition500"])
    setup = Setup(
        network=network,
        views=views,
        tasks=Tasks.of_sizes([n_classes // tasks] * tasks),
        image_shape=tuple(shared["buffer_images"].shape[1:]),
        regularizers=[regularizer],
        lr=float(fixture["lr"]),
        buffer=len(fixture["buffer_labels"]),
        replay_batch=len(fixture["draw1"]),
        options=options_of(fixture, variant=variant),
    )
    method = XDer(setup)
    before = fixture["buffer_labels"], fixture["buffer_logits"], fixture["counters_before"]
    fill(method.buffer, shared["buffer_images"], *before)
    give_draws(method, fixture)
    return method, shared["stream_images"]


@pytest.mark.parametrize(("case", "variant"), [("parity", "released"), ("clean", "text")])
def test_golden_step(golden, load_golden, golden_cler, assert_close, case, variant):
    fixture = golden("xder_cler_step")
    method, pixels = network_step_method(golden, load_golden, golden_cler, fixture, variant)
    expected = fixture.under(f"{case}.")
    method.begin_task(int(fixture["task"]))
    outputs, pretext = [], []
    method.network.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    (regularizer,) = method.regularizers
    original = regularizer.classify
    regularizer.classify = lambda *inputs: pretext.append(original(*inputs)) or pretext[-1]
    before, labels = tensors(method), fixture["stream_labels"]

    terms = method.observe(Batch(pixels, method.views.augmented(pixels), labels))

    assert_close(total(terms), expected["loss_total"])
    for theirs, name in TERMS.items():
        assert_close(terms[name], expected[f"loss_{theirs}"], name)
    assert_close(terms[regularizer.name], regularizer.weight * expected["loss_pretext_unweighted"])
    assert_close(pretext[0], expected["pretext_logits"])
    assert_close(outputs[0][: len(labels)], fixture["stream_logits"])

    after = tensors(method)
    stored_after = fixture.under(f"{case}.after.")
    assert any(name.endswith(".mean") for name in stored_after)
    for name, value in stored_after.items():
        assert_close(after[ours(name)], value, name)
    norms = dict(zip(map(ours, expected["step_norm_names"]), expected["step_norms"], strict=True))
    assert norms.keys() == {name for name in after if "running_" not in name}
    for name, norm in norms.items():
        moved = (after[name] - before[name]).norm()
        assert_close(moved, norm, name)
        assert (float(moved) == 0) == (float(norm) == 0), name

    refreshed = fixture["merged_indices"][expected["refreshed"]]
    logits = fixture["buffer_logits"].clone()
    logits[refreshed] = fixture["buffer_logits_after"]
    assert_close(method.buffer.logits[: len(logits)], logits)
    counters = (
        fixture["counters_before"]
        .long()
        .index_add(0, fixture["merged_indices"], torch.ones_like(fixture["merged_indices"]))
    )
    assert torch.equal(method.buffer.counters[: len(logits)], counters)


def toy_method(tasks=3, **changes):
    torch.manual_seed(0)
    settings = {
        "network": make_network(XDer, 2 * tasks, width=2, image_shape=(3, 8, 8)),
        "views": Views(*CIFAR, generator=torch.Generator().manual_seed(0)),
        "tasks": Tasks.of_sizes([2] * tasks),
        "image_shape": (3, 8, 8),
        "generator": torch.Generator().manual_seed(1),
        "buffer": 9,
        "replay_batch": 4,
        "options": XDerOptions(),
    }
    return XDer(Setup(**settings | changes))


def toy_batches(method, task, count=3, size=6):
    batches = []
    for _ in range(count):
        pixels = torch.randint(256, (size, 3, 8, 8)).to(torch.uint8)
        labels = 2 * task + torch.arange(size) % 2
        batches.append(Batch(pixels, method.views.augmented(pixels), labels))
    return batches


def test_a_sample_gets_new_logits_the_less_often_the_more_often_it_was_replayed():
    """At the n-th time with a chance of 1/n: always at the first, and 1 + 1/2 + … times in all."""
    method = toy_method(buffer=400, replay_batch=400)
    method.begin_task(1)
    everyone = torch.zeros(400, 3, 8, 8), torch.zeros(400, dtype=torch.int64), torch.zeros(400, 6)
    fill(method.buffer, *everyone)
    writes = torch.zeros(400)
    for turn in range(5):
        replay = method.buffer.recall(torch.arange(400))
        method.buffer.logits.zero_()
        method.update_logits(replay, torch.full((400, 6), -1.0), torch.zeros(400, dtype=torch.bool))
        changed = method.buffer.logits[:400]
        assert not changed[:, :2].any()  # the past stays
        assert torch.equal(changed[:, 2:].any(1), changed[:, 2:].all(1))
        assert changed[:, 2:].all() or turn > 0
        writes += changed[:, 2:].any(1)
    assert float(writes.mean()) == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5, abs=0.15)


# -- the end of a task -------------------------------------------------------------------------------------------------


def test_golden_end_of_task(golden, assert_close):
    fixture = golden("xder")
    case, tasks = fixture.under("end."), len(fixture["composition500"])
    capacity, size = len(case["buffer_labels"]), len(fixture["first.labels"])
    method = stand_in_method(case, fixture, tasks=tasks, capacity=capacity)
    fill(method.buffer, case["buffer_x"], case["buffer_labels"], case["buffer_logits"], counters=3)
    task = int(case["task"])
    method.begin_task(task)
    parts = zip(case["stream_x"].split(size), case["stream_labels"].split(size), strict=True)
    method.end_task(task, (Batch(images, images, labels) for images, labels in parts))

    assert method.buffer.filled == len(case["labels_after"])
    assert torch.equal(method.buffer.labels[:capacity], case["labels_after"])
    assert_close(method.buffer.pixels[:capacity, 0], case["x_after_first_coordinate"])
    assert_close(method.buffer.logits[:capacity], case["logits_after"])
    assert not method.buffer.counters.any()


def compositions(capacity, tasks, n_classes, per_class):
    """Samples of each class in the memory after each task."""
    size = n_classes // tasks
    generator = torch.Generator().manual_seed(0)
    setup = Setup(
        network=LinearStandIn(torch.zeros(n_classes, 1), torch.zeros(n_classes, dtype=torch.float64)),
        views=AsTheyAre(),
        tasks=Tasks.of_sizes([size] * tasks),
        image_shape=(1,),
        generator=generator,
        buffer=capacity,
        replay_batch=100,
        options=XDerOptions(),
    )
    setup.network.double()
    method = XDer(setup)
    method.buffer.pixels = method.buffer.pixels.double()
    rows = []
    for task in range(tasks):
        method.begin_task(task)
        labels = torch.arange(task * size, (task + 1) * size).repeat(per_class)
        labels = labels[torch.randperm(len(labels), generator=generator)]
        pixels = torch.zeros(10, 1, dtype=torch.float64)
        method.end_task(task, (Batch(pixels, pixels, part) for part in labels.split(10)))
        rows.append(method.buffer.labels[: method.buffer.filled].bincount(minlength=n_classes))
    return torch.stack(rows)


@pytest.mark.parametrize("name", ["composition500", "composition2000"])
def test_golden_composition(golden, name):
    expected = golden("xder")[name]
    capacity, per_class = int(expected[0].sum()), int(expected.max())
    assert torch.equal(compositions(capacity, *expected.shape, per_class=per_class), expected)


def test_the_shares_of_old_and_new_classes():
    rows = compositions(500, 10, 100, per_class=100).view(10, 10, 10)
    assert all(len(set(row[task].tolist())) == 1 for row in rows for task in range(10))
    shares = [sorted(set(row[: task + 1].flatten().tolist())) for task, row in enumerate(rows)]
    assert shares == [[50], [25], [16, 18], [12, 14], [10], [8, 10], [7, 8], [6, 8], [5, 10], [5]]
    assert all(int(row[task, 0]) == max(share) for task, (row, share) in enumerate(zip(rows, shares, strict=True)))


def test_a_memory_larger_than_the_tasks_fills_up_later():
    """A fifth of mini-ImageNet: 20 tasks of one class with 500 images, and a memory of 1600."""
    rows = compositions(1600, 20, 20, per_class=500)
    assert rows.sum(1).tolist() == [500, 1000, 1500] + [1600] * 17
    assert rows[3].tolist()[:4] == [400, 400, 400, 400]


def test_the_end_of_a_task_changes_nothing_but_the_memory():
    method = toy_method()
    for task in range(2):
        method.begin_task(task)
        before = copy.deepcopy(method.network.state_dict())
        method.end_task(task, toy_batches(method, task))
        assert all(torch.equal(value, before[name]) for name, value in method.network.state_dict().items())
        assert all(parameter.grad is None for parameter in method.network.parameters())
        assert method.network.training
        assert not method.buffer.logits.requires_grad


def test_logits_are_those_of_train_mode_in_batches():
    """Samples are stored with the outputs of their batch, normalized by its statistics."""
    method = toy_method(buffer=6)
    batches = toy_batches(method, 0, count=1)
    expected = method.network(batches[0].images)
    for layer in method.network.modules():
        if hasattr(layer, "running_mean"):
            layer.running_mean.fill_(7.0)
    method.end_task(0, batches)
    assert torch.allclose(method.buffer.logits[:6], expected)
    assert torch.equal(method.buffer.pixels[:6], batches[0].pixels)


def test_batches_are_looked_at_only_until_the_memory_is_full():
    method = toy_method(buffer=7)
    looked_at = []
    batches = toy_batches(method, 0, count=80)
    method.end_task(0, (looked_at.append(batch) or batch for batch in batches))
    assert method.buffer.filled == 7
    assert len(looked_at) == 25  # as many as go through the network at once


def test_without_a_second_look_the_buffer_is_filled_from_what_passed():
    run = toy.make_run("xder", second_look=False, batch=6, buffer=12, replay_batch=4)
    method, seen = run.method, []
    observe = method.observe
    method.observe = lambda batch: seen.append(batch) or observe(batch)
    for task in range(2):
        run.begin_task(task)
        drawn = set()
        for _ in range(3):
            run.step()
            drawn |= set(method.buffer.sample(12).labels.tolist())
        assert drawn == set(method.past_classes.tolist())
        method.end_task(task, iter(lambda: pytest.fail("a second look"), None))
        passed = torch.cat([batch.pixels for batch in seen]).flatten(1)
        stored, labels = method.buffer.stored()
        assert (stored.flatten(1).unsqueeze(1) == passed).all(2).any(1).all()
        counts, room = labels.bincount(minlength=4), 12 // len(method.seen_classes)
        passed_labels = torch.cat([batch.labels for batch in seen]).bincount(minlength=4)
        assert torch.equal(counts, passed_labels.clamp(max=room))
        assert method.buffer.logits[: len(labels)].any(1).all()


def test_what_was_kept_is_looked_at_as_the_stream_would_be():
    """Augmented, and in a random order: `shrink` keeps the first of a class, and its first slots are no fair sample."""
    run = toy.make_run("xder", second_look=False, batch=6, buffer=12, replay_batch=4)
    run.begin_task(0)
    run.step()
    run.step()
    method = run.method
    pixels, labels = method.buffer.kept()
    order = torch.arange(len(labels)).flip(0)
    method.draw_order = lambda count: order[:count]
    method.views.augmented = lambda pixels: pixels.float() + 1000
    looked_at, images, classes = (torch.cat(each) for each in zip(*method.kept_batches(), strict=True))
    assert torch.equal(looked_at, pixels.flip(0))
    assert torch.equal(images, looked_at.float() + 1000)
    assert torch.equal(classes, labels.flip(0))


@pytest.mark.parametrize("regularizer", ["none", "rotation"])
def test_without_a_second_look_it_keeps_its_promises(regularizer, tmp_path):
    steps.keeps_the_rule("xder", regularizer, second_look=False)
    steps.recorded_step_serves("xder", regularizer, second_look=False)
    training.resumes("xder", regularizer, second_look=False, folder=tmp_path, stops=[(0, 1), (1, 1)])


def test_with_repeated_steps_each_image_is_offered_once():
    run = toy.make_run("xder", second_look=False, batch=4, repeats=3)
    run.begin_task(0)
    run.step()
    assert int(run.method.buffer.passed.sum()) == 4


@pytest.mark.parametrize(("buffer", "sizes"), [(8, [4, 4]), (9, [3, 3, 3]), (10, [4, 3, 3])])
def test_no_sample_is_left_over_to_be_normalised_alone(buffer, sizes):
    method = toy_method(buffer=buffer)
    method.end_task(0, toy_batches(method, 0))
    method.begin_task(1)
    seen = []
    method.network.register_forward_hook(lambda module, inputs, output: seen.append(inputs[1]))
    method.end_task(1, toy_batches(method, 1))
    assert seen[-1].sizes == tuple(sizes)


def test_old_samples_keep_their_past_logits_at_the_end_of_a_task():
    method = toy_method(buffer=12)
    method.end_task(0, toy_batches(method, 0))
    method.begin_task(1)
    old = method.buffer.logits.clone()
    kept = [int(slot) for label in (0, 1) for slot in (method.buffer.labels[:12] == label).nonzero()[:3]]
    with torch.no_grad():
        method.network.classifier.weight.mul_(2)
    method.end_task(1, toy_batches(method, 1))
    assert method.buffer.labels[:6].tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(method.buffer.logits[:6, :2], old[kept, :2])
    assert (method.buffer.logits[:6, 2:] != old[kept, 2:]).all()
    truth = method.buffer.logits[:12].gather(1, method.buffer.labels[:12, None])
    past = method.buffer.logits[6:12, :2]
    assert ((past.max(1, keepdim=True).values <= truth[6:]) | (truth[6:] < 0)).all()


# -- life and settings -------------------------------------------------------------------------------------------------


def test_replay_begins_with_the_second_task():
    method = toy_method()
    sizes = []
    method.network.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    for task in range(3):
        method.begin_task(task)
        assert method.settled
        sizes.clear()
        for batch in toy_batches(method, task):
            method.observe(batch)
        assert sizes == [6 if task == 0 else 6 + 2 * 4] * 3
        method.end_task(task, toy_batches(method, task))
        assert method.buffer.filled == 9


def test_classification_passes_all_count_in_the_running_statistics():
    """Stream, draw 1 and draw 2, as three passes would."""
    method = toy_method(lr=1e-9)
    method.end_task(0, toy_batches(method, 0))
    method.begin_task(1)
    (batch,) = toy_batches(method, 1, count=1)
    alone = copy.deepcopy(method.network)
    images = []
    method.network.register_forward_pre_hook(lambda module, inputs: images.append(inputs[0].detach()))
    method.observe(batch)
    for part in images[0].split([6, 4, 4]):
        alone(part)
    for mine, theirs in zip(method.network.buffers(), alone.buffers(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


class Listening(Regularizer):
    """Keeps what it is given."""

    def loss(self, network, raw, augmented, labels, parts=None):
        self.given = raw, augmented, labels, parts
        return torch.zeros(())


def test_the_released_variant_is_about_cler():
    with pytest.raises(UsageError, match="with rotation or jigsaw only"):
        toy_method(options=XDerOptions(variant="released"), regularizers=[Listening()])


@pytest.mark.parametrize("variant", ["text", "released"])
def test_what_a_regularizer_is_given(variant, monkeypatch):
    monkeypatch.setattr(Listening, "raw_only", True)
    method = toy_method(options=XDerOptions(variant=variant), regularizers=[Listening()])
    for task in range(2):
        method.begin_task(task)
        (batch,) = toy_batches(method, task, count=1)
        method.observe(batch)
        raw, augmented, labels, parts = method.regularizers[0].given
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in CIFAR)
        once = batch.pixels / 255 if variant == "text" else batch.images
        assert torch.allclose(raw[:6], (once - mean) / std, atol=1e-5)
        assert torch.equal(augmented[:6], batch.images)
        assert parts == (None if task == 0 else Parts((6, 8)))
        assert len(raw) == len(augmented) == (6 if task == 0 else 14)
        if task > 0:
            stored = method.views.plain(method.buffer.pixels[: method.buffer.filled])
            slots = [int((image == stored).flatten(1).all(1).nonzero()[0]) for image in raw[6:]]
            assert torch.equal(labels[6:], method.buffer.labels[slots])
        assert torch.equal(labels[:6], batch.labels)
        method.end_task(task, toy_batches(method, task))


@pytest.mark.parametrize("name", ["alpha", "beta", "gamma", "eta", "margin"])
def test_options_that_make_no_sense(name):
    with pytest.raises(UsageError, match=f"^{name} must be .*, not -0.1"):
        make_settings(method="xder", **{name: -0.1})


def test_an_unknown_variant():
    with pytest.raises(UsageError, match=r"unknown variant 'realeased'.*did you mean 'released'"):
        make_settings(method="xder", variant="realeased")


@pytest.mark.parametrize(
    ("regularizer", "expected"),
    [
        ("none", {"lr": 0.01, "alpha": 0.8, "beta": 0.8, "weight": 0.0}),
        ("jigsaw", {"lr": 0.01, "alpha": 0.8, "beta": 0.8, "weight": 0.8}),
        ("rotation", {"lr": 0.01, "alpha": 0.8, "beta": 0.8, "weight": 0.8}),
    ],
)
def test_settings_of_the_paper(regularizer, expected):
    settings = make_settings(method="xder", regularizer=regularizer, dataset="cifar100").to_dict()
    expected |= {"gamma": 0.85, "eta": 0.1, "margin": 0.3, "variant": "text"}
    assert {name: settings[name] for name in expected} == expected
