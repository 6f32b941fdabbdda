import copy
import math

import pytest
import torch

from cler.methods.gsa import Gsa, Sizes, class_weights
from cler.methods.loss import total
from cler.promises import toy
from cler.streams import Batch
from cler.teachers.mkd import Mkd, MkdOptions


@pytest.mark.parametrize("case", ["plain", "mkd"])
def test_golden_steps(golden, load_golden, before_golden_steps, assert_after, assert_close, case):
    """Two steps, the last one of a task's first batches, whose weights are equal, and the next."""
    fixture = golden("frontier/gsa")
    new = int(fixture["new_in_balanced"])
    crops = zip(fixture["current_crops"], fixture["balanced_crops"], strict=True)
    size = len(fixture["stream_labels"][0])
    given = []
    for (current, balanced), strong in zip(crops, fixture["mkd_crops"], strict=True):
        given += [current[:size], current[size:], balanced, *([strong] if case == "mkd" else [])]
    task, n_classes = int(fixture["task"]), len(golden("frontier/net_nf4")["classifier.bias"])
    tasks = n_classes * task // len(fixture["counts_before"])  # those before have been counted
    replay_batch = len(fixture["balanced_crops"][0])
    method = before_golden_steps(Gsa, fixture, given, tasks=tasks, replay_batch=replay_batch)
    if case == "mkd":
        names = {"mkd_rate": "alpha", "mkd_weight": "kd_lambda", "mkd_temperature": "temperature"}
        options = MkdOptions(**{ours: float(fixture[theirs]) for ours, theirs in names.items()})
        method.teacher = Mkd(method.network, options)
        load_golden(method.teacher.network, golden("frontier/peer_nf4"))
        extra = iter(fixture["mkd_draw"])
        method.buffer.draw_slots = lambda count: next(extra)
    drawn = [slots for both in zip(fixture["task_draw"], fixture["past_draw"], strict=True) for slots in both]
    coming, sizes = iter(drawn), Sizes(len(drawn[0]), len(drawn[1]), new)
    method.buffer.draw_slots_of = lambda count, classes: (next(coming), torch.tensor(True))
    method.sizes = lambda stream: sizes

    method.begin_task(task)
    sums = {"counts": method.counts, "positive": method.positive, "negative": method.negative}
    for name, values in sums.items():
        values[: len(fixture[f"{name}_before"])] = fixture[f"{name}_before"]
    networks = {case: method.network} | ({"mkd.teacher": method.teacher.network} if method.teacher else {})
    before = {name: copy.deepcopy(each.state_dict()) for name, each in networks.items()}
    for step, (pixels, labels) in enumerate(zip(fixture["stream_images"], fixture["stream_labels"], strict=True)):
        method.batches.fill_(int(fixture["step_in_task"][step]))
        terms = method.observe(Batch(pixels, method.views.augmented(pixels), labels))
        assert_close(total(terms), fixture[f"{case}.loss_total"][step])
        assert_close(terms["current"], fixture[f"{case}.loss_current"][step])
        assert_close(terms["balanced"], 2 * fixture[f"{case}.loss_balanced_unweighted"][step])
        if method.teacher:
            weight = method.teacher.options.mkd_weight / 2
            assert_close(terms["strong cross-entropy"], fixture["mkd.loss_ce_mkd"][step])
            assert_close(terms["strong distillation"], weight * fixture["mkd.loss_kd_aug"][step])
            assert_close(terms["raw distillation"], weight * fixture["mkd.loss_kd_raw"][step])
        assert torch.equal(method.offered[step][0], pixels)
        assert int(method.batches) == int(fixture["step_in_task"][step]) + 1
    for name, values in sums.items():
        expected = fixture[f"{case}.{name}_after"]
        assert_close(values[: len(expected)], expected, name)
        assert not values[len(expected) :].any()
    for name, network in networks.items():
        assert_after(network, fixture, name, before[name])


@pytest.mark.parametrize(
    ("replay_batch", "classes", "seen", "sizes"),
    [
        (64, 10, 10, (22, 0, 32)),  # of the first task there is no more than the current batch
        (64, 10, 20, (22, 32, 32)),
        (64, 10, 30, (22, 42, 21)),
        (64, 10, 100, (22, 57, 6)),
        (10, 10, 100, (3, 9, 1)),
        (10, 1, 100, (3, 9, 1)),  # at least one is new
        (1, 10, 100, (0, 0, 1)),
    ],
)
def test_sizes(replay_batch, classes, seen, sizes):
    assert Sizes.of(replay_batch, 10, classes, seen) == sizes


def test_weights_grow_with_what_a_class_lacks():
    counts, positive, negative = torch.tensor([[10.0, 10, 10, 0], [5, 5, 2, 0], [5, 1, 8, 0]])
    weights = class_weights(counts, positive, negative, torch.tensor(False))
    assert weights.tolist() == pytest.approx([1, 2 / (1 + math.exp(-4)), 1, 1])
    assert class_weights(counts, positive, negative, torch.tensor(True)).tolist() == [1.0] * 4


def test_a_task_begins_with_the_stream_for_want_of_stored_images_and_draws_of_the_right_tasks_later():
    run = toy.make_run("gsa", replay_batch=12)
    method, drawn = run.method, []
    draw = method.replay_of
    method.replay_of = lambda count, classes, instead: drawn.append(draw(count, classes, instead)) or drawn[-1]
    run.begin_task(0)
    run.step()
    (pixels, _), (_, past) = drawn
    batch_pixels = method.buffer.pixels[:8]
    assert torch.equal(pixels, batch_pixels[:4])
    assert not len(past)
    run.step()
    run.end_task(0)
    run.begin_task(1)
    assert int(method.batches) == 0
    for step in range(3):
        drawn.clear()
        run.step()
        (_, present), (_, past) = drawn
        assert present.ge(2).all()
        assert past.lt(2).all()
        assert (len(present), len(past)) == (4, 6)
        assert int(method.batches) == step + 1
