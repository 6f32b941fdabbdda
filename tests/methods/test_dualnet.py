import copy
import math

import pytest
import torch
import torch.nn.functional as F

from cler import Equivariant
from cler.config.making import make_settings
from cler.data.views import Views
from cler.errors import UsageError
from cler.methods import Setup
from cler.methods.dualnet import DualNet, DualNetOptions, LookAhead, distillation
from cler.methods.loss import total
from cler.nets.dualnet import DualNetwork
from cler.nets.norm import BatchNorm
from cler.streams import Batch, Tasks
from toys import CIFAR, given_crops, tensors
from toys import ours as usual_name


def ours(name):
    """The name that our networks have for a tensor of the golden file, whose head has a unit for a stage."""
    return usual_name(name.replace("pretext.unit.", "pretext.stage."))


def in_order(*parts):
    """Stands for a draw: hands out one stored draw after the other."""
    coming = iter([draw for part in parts for draw in part])
    return lambda *ignored: next(coming)


def golden_method(golden, load_golden, task, regularizer=None):
    """DualNet with the golden weights and memory, in that task."""
    fixture, weights = golden("dualnet"), golden("dualnet_net_nf4")
    n_classes = len(weights["classifier.bias"])
    network = DualNetwork(n_classes, width=len(weights["slow.stem.conv"])).double()
    load_golden(network, weights)
    capacity = len(fixture["buffer_labels"])
    options = DualNetOptions(
        temperature=float(fixture["tau"]),
        distill=float(fixture["lambda_tr"]),
        look_ahead=float(fixture["beta"]),
        slow_lr=float(fixture["slow_lr"]),
        slow_steps=len(fixture["whole.slow_indices"]),
        fast_steps=len(fixture["whole.fast_losses"]),
    )
    setup = Setup(
        network=network,
        views=Views(*CIFAR, dtype=torch.float64),
        tasks=Tasks.of_sizes([1] * n_classes),
        image_shape=tuple(fixture["buffer_images"].shape[1:]),
        regularizers=[regularizer(network)] if regularizer else [],
        lr=float(fixture["lr"]),
        buffer=capacity,
        replay_batch=len(fixture["fast.plain.replay_indices"]),
        options=options,
    )
    method = DualNet(setup)
    method.begin_task(task)
    memory = method.buffer
    memory.extra["logits"] = memory.extra["logits"].double()
    memory.pixels[:capacity] = fixture["buffer_images"]
    memory.labels[:capacity] = fixture["buffer_labels"]
    memory.extra["logits"][:capacity] = fixture["buffer_logits"]
    memory.offered.fill_(capacity)
    memory.filled = capacity
    return method


def golden_head(golden):
    """The rotation head of the golden fast step."""
    fixture = golden("dualnet").under("fast.cler_rotation.")

    def build(network):
        regularizer = Equivariant(
            network, "rotation", tap=network.tap, head=network.head, weight=float(fixture["lambda_r"])
        ).double()
        before = golden("dualnet").under("fast.cler_rotation.before.")
        regularizer.load_state_dict({ours(name).removeprefix("pretext."): value for name, value in before.items()})
        return regularizer

    return build


def assert_state(assert_close, method, expected):
    assert expected
    state = tensors(method)
    for name, value in expected.items():
        assert_close(state[ours(name)], value, name)


def listen(method, name):
    """The list that what a method of `method` gives back is written to, call by call."""
    heard = []
    original = getattr(method, name)

    def listener(*inputs):
        heard.append(original(*inputs))
        return heard[-1]

    setattr(method, name, listener)
    return heard


# -- golden ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [0, 1])
def test_golden_slow_phase(golden, load_golden, assert_close, task):
    fixture = golden("dualnet")
    case = fixture.under(f"slow.task{task}.")
    method = golden_method(golden, load_golden, task)
    method.views.view = given_crops(*(each for step in case["crops"] for each in step))
    method.buffer.draw_slots = in_order(case.get("indices", ()))
    losses, before, go_back = listen(method, "slow_loss"), [], method.look_ahead.go_back

    def go_back_then():
        before.append(None)
        assert_state(assert_close, method, fixture.under(f"slow.task{task}.before_lookahead."))
        go_back()

    method.look_ahead.go_back = go_back_then
    untouched = {name: value for name, value in tensors(method).items() if name.startswith(("fast.", "classifier."))}
    method.slow_phase(fixture["stream_images"])
    assert len(before) == 1
    assert_close(torch.stack(losses), case["losses"])
    assert_state(assert_close, method, fixture.under(f"slow.task{task}.after."))
    after = tensors(method)
    assert untouched
    assert all(torch.equal(value, after[name]) for name, value in untouched.items())


@pytest.mark.parametrize("case", ["plain", "cler_rotation"])
def test_golden_fast_step(golden, load_golden, assert_close, case):
    fixture = golden("dualnet")
    terms = fixture.under(f"fast.{case}.")
    method = golden_method(golden, load_golden, 1, golden_head(golden) if case != "plain" else None)
    method.buffer.draw_slots = in_order([terms["replay_indices"]])
    outputs, pretext = [], []
    method.network.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    for regularizer in method.regularizers:
        regularizer.draw_labels = lambda count, device: terms["pretext_labels"]
        pretext = listen(regularizer, "classify")
    pixels, labels = fixture["stream_images"], fixture["stream_labels"]
    found, stream_logits = method.fast_step(Batch(pixels, method.views.plain(pixels), labels))

    replay_logits = outputs[0][len(labels) :]
    assert_close(stream_logits, terms["stream_logits"])
    assert_close(replay_logits, terms["replay_logits"])
    assert_close(found["stream"], terms["loss_stream"])
    chosen = terms["replay_indices"]
    assert_close(found["replay"], terms["loss_ce"])
    distilled = distillation(replay_logits, fixture["buffer_logits"][chosen], float(fixture["tau"]))
    assert_close(distilled, terms["loss_kl"])
    assert_close(total(found), terms["loss_total"])
    if case != "plain":
        assert_close(pretext[0], terms["pretext_logits"])
        assert_close(F.cross_entropy(pretext[0], terms["pretext_labels"]), terms["loss_pretext_unweighted"])
    assert_state(assert_close, method, fixture.under(f"fast.{case}.after."))


def test_golden_gradients_of_the_pretext_loss_alone(golden, load_golden, assert_close):
    fixture = golden("dualnet")
    case = fixture.under("fast.cler_rotation.")
    method = golden_method(golden, load_golden, 0, golden_head(golden))
    regularizer, network = method.regularizers[0], method.network
    regularizer.weight = 1.0
    regularizer.draw_labels = lambda count, device: case["pretext_labels"][:count]
    buffers = copy.deepcopy(dict(network.named_buffers()))
    pixels = fixture["stream_images"]
    raw = method.views.plain(pixels)
    regularizer.loss(network, raw, raw).backward()
    parameters = dict(network.named_parameters())
    parameters |= {f"pretext.{name}": value for name, value in regularizer.named_parameters()}
    sums = dict(zip(map(ours, case["pretext_only_gradsum_names"]), case["pretext_only_gradsum"], strict=True))
    assert sums.keys() == parameters.keys()
    for name, expected in sums.items():
        gradient = parameters[name].grad
        found = torch.zeros((), dtype=torch.float64) if gradient is None else gradient.abs().sum()
        assert_close(found, expected, name)
        assert (gradient is None) == (float(expected) == 0), name
    assert all(torch.equal(value, buffers[name]) for name, value in network.named_buffers())


def test_golden_whole_batch(golden, load_golden, assert_close):
    fixture = golden("dualnet")
    case = fixture.under("whole.")
    method = golden_method(golden, load_golden, 1)
    method.views.view = given_crops(*(each for step in case["slow_crops"] for each in step))
    method.buffer.draw_slots = in_order(case["slow_indices"], case["fast_replay_indices"])
    method.buffer.draw_positions = torch.arange  # every stream image goes into the memory
    steps = listen(method, "fast_step")
    pixels, labels = fixture["stream_images"], fixture["stream_labels"]
    loss = total(method.observe(Batch(pixels, torch.full_like(pixels, math.nan, dtype=torch.float64), labels)))
    assert_close(torch.stack([total(terms) for terms, _ in steps]), case["fast_losses"])
    assert torch.equal(loss, total(steps[-1][0]))
    assert_state(assert_close, method, fixture.under("whole.after."))
    assert_close(method.buffer.extra["logits"][: len(labels)], case["stored_logits"])
    assert torch.equal(method.buffer.pixels[: len(labels)], pixels)
    assert torch.equal(method.buffer.labels[: len(labels)], labels)


# -- its parts ---------------------------------------------------------------------------------------------------------


def test_distillation_by_hand():
    new, old = torch.randn(2, 3, 4, dtype=torch.float64)
    total = 0.0
    for b in range(3):
        p, q = ((row / 1.5).exp() / (row / 1.5).exp().sum() for row in (old[b], new[b]))
        total += float((p * (p / q).log()).sum())
    assert float(distillation(new, old, 1.5)) == pytest.approx(total / 4, rel=1e-12)
    assert float(distillation(old, old, 1.5)) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.7, 1.0])
def test_look_ahead_keeps_its_share_of_weights_and_statistics(share):
    module = BatchNorm(3)
    look_ahead = LookAhead(module, share)
    module(torch.randn(8, 3, 1, 1))  # before the way starts
    look_ahead.remember()
    start = copy.deepcopy(module.state_dict())
    module(torch.randn(8, 3, 1, 1) + 2)
    with torch.no_grad():
        module.weight.add_(1.0)
        module.bias.sub_(0.3)
    state = copy.deepcopy(module.state_dict())
    look_ahead.go_back()
    for name, found in module.state_dict().items():
        if share in (0, 1):
            assert torch.equal(found, (state if share else start)[name]), name
        else:
            assert torch.allclose(found, start[name] + share * (state[name] - start[name])), name


def small(bfloat16=False, buffer=20, replay_batch=4, slow_batch=6, **options):
    torch.manual_seed(0)
    network = DualNetwork(4, width=4)
    setup = Setup(
        network=network,
        views=Views(*CIFAR),
        tasks=Tasks.of_sizes([2, 2]),
        image_shape=(3, 16, 16),
        buffer=buffer,
        replay_batch=replay_batch,
        bfloat16=bfloat16,
        options=DualNetOptions(slow_batch=slow_batch, slow_steps=2, fast_steps=2, **options),
    )
    return DualNet(setup)


def small_batch(count=5):
    pixels = torch.randint(256, (count, 3, 16, 16), dtype=torch.uint8)
    return Batch(pixels, torch.full(pixels.shape, math.nan), torch.arange(count) % 4)  # augmented images play no part


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_slow_phase_keeps_all_or_nothing(share):
    method = small(look_ahead=share)
    before = tensors(method)
    method.slow_phase(small_batch().pixels)
    moved = {name for name, value in tensors(method).items() if not torch.equal(value, before[name])}
    assert moved == (set() if share == 0 else {name for name in before if name.startswith(("slow.", "projector."))})


def test_working_copies_follow_the_look_ahead():
    method = small(bfloat16=True, look_ahead=0.5, slow_lr=0.1)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        method.slow_phase(small_batch().pixels)
    for weight, working in zip(method.working_copies.weights, method.working_copies.copies, strict=True):
        assert torch.equal(weight.bfloat16(), working)


def test_the_memory_is_used_from_the_second_task_on():
    method = small()
    drawn = listen(method.buffer, "sample")
    method.begin_task(0)
    method.observe(small_batch(5))
    method.observe(small_batch(5))
    assert not drawn
    method.begin_task(1)
    method.observe(small_batch(5))
    assert [len(replay.labels) for replay in drawn] == [6, 6, 4, 4]


def test_the_slow_phase_takes_all_there_is_when_that_is_less():
    method = small(slow_batch=12)
    method.begin_task(0)
    method.observe(small_batch(5))
    drawn = listen(method.buffer, "sample")
    method.begin_task(1)
    assert not method.settled
    method.observe(small_batch(5))
    assert sorted(drawn[0].slots.tolist()) == [0, 1, 2, 3, 4]
    assert not method.settled
    method.observe(small_batch(5))
    assert method.settled


def test_a_full_memory_smaller_than_a_slow_batch_is_settled():
    method = small(buffer=7, slow_batch=12)
    method.begin_task(0)
    method.observe(small_batch(5))
    assert not method.settled
    method.observe(small_batch(5))
    assert method.settled


@pytest.mark.parametrize("bfloat16", [False, True])
def test_stored_logits_are_renewed_at_the_start_of_later_tasks_only(bfloat16):
    method = small(bfloat16)
    method.begin_task(0)
    batch = small_batch(6)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16, cache_enabled=False):
        method.observe(batch)
    stored = method.buffer.extra["logits"]
    as_inserted = stored.clone()
    assert as_inserted[:6].any()
    method.begin_task(0)
    assert torch.equal(stored, as_inserted)
    before = tensors(method)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16, cache_enabled=False):  # as the engine does
        method.begin_task(1)
    assert method.buffer.extra["logits"] is stored
    assert method.network.training
    assert all(torch.equal(value, before[name]) for name, value in tensors(method).items())
    method.network.eval()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16, cache_enabled=False):
        expected = method.network(method.views.plain(method.buffer.pixels[:6]))
    assert torch.allclose(stored[:6], expected, atol=0.02 if bfloat16 else 1e-6)
    assert not torch.allclose(stored[:6], as_inserted[:6], atol=0.02)


def test_memory_keeps_logits_with_their_images():
    method = small()
    pixels = torch.randint(256, (9, 3, 16, 16), dtype=torch.uint8)
    logits = torch.randn(9, 4)
    method.buffer.add(pixels, torch.arange(9), logits=logits)
    replay = method.buffer.sample(5)
    assert torch.equal(replay.extra["logits"], logits[replay.labels])
    assert torch.equal(replay.pixels, pixels[replay.labels])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0),
        ("distill", -1.0),
        ("look_ahead", -0.1),
        ("look_ahead", 1.1),
        ("slow_lr", 0.0),
        ("slow_steps", 0),
        ("fast_steps", -1),
        ("slow_batch", 1),
    ],
)
def test_wrong_options_are_explained(name, value):
    with pytest.raises(UsageError, match=rf"^{name} must .*, not {value}$"):
        make_settings(method="dualnet", **{name: value})
