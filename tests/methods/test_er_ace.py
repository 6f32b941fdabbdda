import pytest
import torch
from torch import nn

from cler import ResNet18
from cler.data.views import Views
from cler.methods import Setup
from cler.methods.er_ace import ErAce, allowed_classes, masked_cross_entropy
from cler.methods.loss import total
from cler.streams import Batch, Tasks
from golden_step import er_ace_before, marked
from toys import CIFAR, given_crops, ours, tensors

CASES = ["first", "first_unordered", "middle_early", "middle", "last_early", "last"]


class GivenLogits(nn.Module):
    """A network whose outputs are parameters: row i for image i, whatever the image."""

    def __init__(self, *blocks):
        super().__init__()
        self.table = nn.Parameter(torch.cat(blocks))

    def forward(self, images, parts=None):
        return self.table[: len(images)]


@pytest.mark.parametrize("case", CASES)
def test_golden_losses(golden, assert_close, case):
    fixture = golden("er_ace").under(f"{case}.")
    labels, logits = fixture["labels"], fixture["logits"]
    n_classes = logits.shape[1]
    replay_labels = fixture.get("replay_labels", labels[:0])
    replay_logits = fixture.get("replay_logits", logits[:0])
    network = GivenLogits(logits, replay_logits)
    setup = Setup(
        network=network,
        views=Views(*CIFAR, dtype=torch.float64),
        tasks=Tasks.of_sizes([1] * n_classes),
        image_shape=(3, 4, 4),
        buffer=max(1, len(replay_labels)),
        replay_batch=len(replay_labels),
    )
    method = ErAce(setup)
    method.seen.copy_(marked(fixture["seen_before"], n_classes))
    pixels = torch.zeros(len(labels), 3, 4, 4, dtype=torch.uint8)
    if len(replay_labels):
        method.buffer.add(torch.zeros(len(replay_labels), 3, 4, 4, dtype=torch.uint8), replay_labels)
        method.buffer.draw_slots = torch.arange
    method.begin_task(int(fixture["task"]))
    before = network.table.detach().clone()
    loss = total(method.observe(Batch(pixels, pixels.double(), labels)))

    assert_close(loss, fixture["loss_total"])
    assert_close(network.table.grad[: len(labels)], fixture["grad_logits"])
    assert torch.equal(method.seen, marked(fixture["seen_after"], n_classes))
    assert ("loss_replay" in fixture) == (int(fixture["task"]) > 0)
    if "loss_replay" in fixture:
        expected = torch.softmax(replay_logits, 1) - nn.functional.one_hot(replay_labels, n_classes)
        assert_close(network.table.grad[len(labels) :], expected / len(replay_labels))
    assert not torch.equal(network.table, before)


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("first")])
def test_golden_mask(golden, assert_close, case):
    fixture = golden("er_ace").under(f"{case}.")
    labels, logits, n_classes = fixture["labels"], fixture["logits"], fixture["logits"].shape[1]
    allowed = allowed_classes(labels, marked(fixture["seen_after"], n_classes))
    assert torch.equal(allowed.expand_as(logits), fixture["allowed"])
    assert_close(masked_cross_entropy(logits, labels, allowed), fixture["loss_stream"])


@pytest.mark.parametrize(
    ("labels", "seen", "allowed"),
    [
        ([2, 3], [0, 1, 2, 3], [2, 3, 4, 5]),  # the largest label seen is in the batch
        ([2, 2], [0, 1, 2, 3], [2, 3, 4, 5]),  # it is not: it stays all the same, and so do future classes
        ([0, 2], [0, 1, 2], [0, 2, 3, 4, 5]),
        ([0], [0, 4], [0, 4, 5]),
        ([4, 4], [0, 1, 2, 3, 4, 5], [4]),  # the last class was met: only what is in the batch
        ([4, 5], [0, 5, 4], [4, 5]),
    ],
)
def test_the_mask_on_toy_labels(labels, seen, allowed):
    mask = allowed_classes(torch.tensor(labels), marked(torch.tensor(seen), 6))
    assert mask.nonzero().squeeze(1).tolist() == allowed


def test_masked_classes_take_no_part():
    logits = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    labels, allowed = torch.tensor([2, 4, 2]), marked(torch.tensor([2, 4, 5]), 6)
    loss = masked_cross_entropy(logits, labels, allowed)
    loss.backward()
    kept = nn.functional.cross_entropy(logits[:, allowed], torch.tensor([0, 1, 0]))
    assert float(loss.detach()) == pytest.approx(float(kept.detach()), rel=1e-12)
    assert not logits.grad[:, ~allowed].any()
    assert logits.grad[:, allowed].all()


@pytest.mark.parametrize("task", [0, 1])
def test_mask_and_replay_begin_with_the_second_task(task):
    logits = torch.randn(6, 4)
    network = GivenLogits(logits)
    setup = Setup(
        network=network,
        views=Views(*CIFAR),
        tasks=Tasks.of_sizes([2, 2]),
        image_shape=(3, 4, 4),
        buffer=8,
        replay_batch=2,
    )
    method = ErAce(setup)
    pixels = torch.zeros(4, 3, 4, 4, dtype=torch.uint8)
    method.buffer.add(pixels, torch.tensor([0, 1, 0, 1]))
    method.seen[:2] = True
    method.begin_task(task)
    method.observe(Batch(pixels, pixels.float(), torch.tensor([2, 2, 2, 2])))
    moved = network.table.grad != 0
    assert moved[:4, 2:].all()
    assert moved[:4, :2].all() == (task == 0)  # old classes are masked for the stream
    assert moved[4:].all() == (task > 0)  # and are learned from replay
    assert int(method.buffer.offered) == 8


def test_a_replay_draw_is_never_larger_than_what_is_stored():
    """If fewer are stored than a replay batch, all of them are replayed, and no empty slot."""
    setup = Setup(
        network=ResNet18(4, width=2),
        views=Views(*CIFAR),
        tasks=Tasks.of_sizes([2, 2]),
        image_shape=(3, 8, 8),
        buffer=20,
        replay_batch=8,
    )
    method = ErAce(setup)
    pixels = torch.randint(256, (3, 3, 8, 8)).to(torch.uint8)
    method.begin_task(0)
    method.observe(Batch(pixels, method.views.augmented(pixels), torch.tensor([0, 1, 1])))
    drawn = []
    sample = method.buffer.sample
    method.buffer.sample = lambda count: drawn.append(sample(count)) or drawn[-1]
    method.begin_task(1)
    method.observe(Batch(pixels, method.views.augmented(pixels), torch.tensor([2, 3, 3])))
    assert [sorted(replay.slots.tolist()) for replay in drawn] == [[0, 1, 2]]


# -- one whole step ----------------------------------------------------------------------------------------------------


def step_method(golden, load_golden, golden_cler, fixture, case):
    """ER-ACE as it stands before the golden step, every draw replaced by the stored one."""
    weights = golden("net_nf4")
    network = ResNet18(len(weights["classifier.bias"]), width=len(weights["stem.conv"])).double()
    load_golden(network, weights)
    regularizers = []
    if case != "plain":
        regularizer = golden_cler(network, case.removeprefix("cler_"), fixture, float(fixture[f"{case}.lambda_r"]))
        regularizer.draw_labels = lambda count, device: fixture[f"{case}.pretext_labels"]
        regularizers = [regularizer]
    views = Views(*CIFAR, dtype=torch.float64)
    views.view = given_crops(fixture["stream_crops"], fixture["replay_crops"])
    return er_ace_before(fixture, network, views, regularizers)


@pytest.mark.parametrize("case", ["plain", "cler_rotation", "cler_jigsaw"])
def test_golden_step(golden, load_golden, golden_cler, assert_close, case):
    fixture = golden("er_ace_step")
    method = step_method(golden, load_golden, golden_cler, fixture, case)
    method.network.train()
    outputs, pretext = [], []
    method.network.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    for regularizer in method.regularizers:
        original = regularizer.classify
        regularizer.classify = lambda *inputs, original=original: pretext.append(original(*inputs)) or pretext[-1]
    before = tensors(method)

    pixels, labels = fixture["stream_images"], fixture["stream_labels"]
    images = method.views.augmented(pixels)
    first = fixture["stream_augmented_first2"]
    assert_close(images[: len(first)], first)
    terms = method.observe(Batch(pixels, images, labels))

    assert_close(total(terms), fixture[f"{case}.loss_total"])
    replay_logits = fixture[f"{case}.replay_logits"]
    assert_close(outputs[0][-len(replay_logits) :], replay_logits)
    assert_close(terms["stream"], fixture[f"{case}.loss_stream"])
    assert_close(terms["replay"], fixture[f"{case}.loss_replay"])
    if case != "plain":
        assert_close(pretext[0], fixture[f"{case}.pretext_logits"])
        penalty = fixture[f"{case}.lambda_r"] * fixture[f"{case}.loss_pretext_unweighted"]
        assert_close(terms["regularizer"], penalty)

    after = tensors(method)
    stored = fixture.under(f"{case}.after.")
    assert any(name.endswith(".mean") for name in stored)
    for name, value in stored.items():
        assert_close(after[ours(name)], value, name)
    norms = dict(zip(map(ours, fixture[f"{case}.step_norm_names"]), fixture[f"{case}.step_norms"], strict=True))
    trainable = {name for name in after if not name.rpartition(".")[2].startswith("running_")}
    assert norms.keys() == trainable
    for name, norm in norms.items():
        moved = (after[name] - before[name]).norm()
        assert_close(moved, norm, name)
        assert (float(moved) == 0) == (float(norm) == 0), name

    capacity = len(fixture["buffer_labels"])
    assert torch.equal(method.buffer.labels[:capacity], fixture["buffer_labels_after"])
    everything = torch.cat([fixture["buffer_images"], pixels])
    assert torch.equal(method.buffer.pixels[:capacity], everything[fixture["buffer_images_after_index"]])
    assert int(method.buffer.offered) == int(fixture["offered_before"]) + len(labels)
    present = marked(fixture["seen_before"], method.n_classes) | marked(labels, method.n_classes)
    assert torch.equal(method.seen, present)
