from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cler.errors import UsageError
from cler.streams.blurry import Blurry, BlurryOptions, Drawn, blurred
from conftest import Golden
from toys import noise

GOLDEN = Golden("streams")
CASES = sorted({name.split(".")[0] for name in GOLDEN} - {"published"})


class Stored:
    """Draws that are given, each of which has to be asked for as it was."""

    def __init__(self, case):
        cuts = ("disjoint_cuts", "blurry_cuts", "pool_cuts")
        self.coming = [
            (case[f"draw.{each}"], case[f"draw.{each}_upper_exclusive"]) for each in cuts if f"draw.{each}" in case
        ]
        orders = case["draw.task_orders"].split(case["task_sizes"].tolist())
        self.permutations = [case["draw.class_order"], case["draw.pool_order"], *orders]

    def permutation(self, count):
        drawn = self.permutations.pop(0)
        assert len(drawn) == count
        return drawn

    def cuts(self, below, count):
        drawn, upper = self.coming.pop(0)
        assert (below, count) == (int(upper), len(drawn))
        return drawn


@pytest.mark.parametrize("name", CASES)
def test_golden_stream(name):
    case = GOLDEN.under(f"{name}.")
    classes, tasks, disjoint, blur, _, random = case["settings"].tolist()
    draws = Stored(case)
    found = blurred(case["targets"], classes, tasks, disjoint=disjoint, blur=blur, random=bool(random), draws=draws)
    assert not draws.permutations
    assert not draws.coming
    assert torch.equal(found.home, case["class_home_task"])
    assert torch.equal(found.is_blurry.long().where(found.home >= 0, -1), case["class_kind"])
    assert [len(each) for each in found.tasks] == case["task_sizes"].tolist()
    assert torch.equal(torch.cat(found.tasks), case["stream"])
    came = torch.full_like(case["targets"], -1)
    for task, samples in enumerate(found.tasks):
        came[samples] = task
    assert torch.equal(came, case["sample_task"])


@pytest.mark.parametrize("name", sorted(name[:-7] for name in GOLDEN if name.endswith(".counts")))
def test_golden_shares_of_the_published_lists(name):
    """A drawn stream has the shares that the authors' lists have: of classes, of images, and of those at home."""
    counts = GOLDEN[f"{name}.counts"]
    disjoint, blur = (int(part[1:]) for part in name.split("_")[1:])
    classes, tasks = counts.shape
    each = int(counts.sum(1)[0])
    targets = torch.arange(classes).repeat(each)
    found = blurred(targets, classes, tasks, disjoint=disjoint, blur=blur, random=False, draws=Drawn(0))
    ours = torch.stack([targets[samples].bincount(minlength=classes) for samples in found.tasks], 1)
    assert torch.equal(ours.sum(0), counts.sum(0))
    assert torch.equal(ours.sum(1), counts.sum(1))
    single = [(table == each).any(1).sum() for table in (ours, counts)]
    assert single[0] == single[1]
    at_home = [table.max(1).values[~(table == each).any(1)].double().mean() / each for table in (ours, counts)]
    assert abs(at_home[0] - at_home[1]) < 0.01


@settings(max_examples=60)
@given(
    tasks=st.integers(1, 4),
    per_task=st.integers(1, 3),
    each=st.integers(3, 12),
    disjoint=st.integers(0, 100),
    blur=st.integers(0, 100),
    random=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_what_holds_for_every_blurry_stream(tasks, per_task, each, disjoint, blur, random, seed):
    classes = tasks * per_task
    targets = torch.arange(classes).repeat(each)
    how = {"disjoint": disjoint, "blur": blur, "random": random}
    found = blurred(targets, classes, tasks, **how, draws=Drawn(seed))
    again = blurred(targets, classes, tasks, **how, draws=Drawn(seed))
    assert all(map(torch.equal, found.tasks, again.tasks))
    came = torch.cat(found.tasks)
    assert len(came.unique()) == len(came)
    pool = sum(int(found.is_blurry[targets[samples]].sum()) for samples in found.tasks) * blur // 100
    dropped = len(targets) - len(came)
    assert dropped == 0 if random else dropped < tasks
    away = sum(int((found.home[targets[samples]] != task).sum()) for task, samples in enumerate(found.tasks))
    assert away <= pool + tasks
    for task, samples in enumerate(found.tasks):
        strangers = targets[samples][found.home[targets[samples]] != task]
        assert bool(found.is_blurry[strangers].all())
    if blur == 0 or not found.is_blurry.any():
        assert away == 0


def stream_of(seed, data=None, **options):
    return Blurry(data or noise(8, 30), 4, batch=7, class_order=seed, options=BlurryOptions(**options))


@pytest.mark.parametrize("homes", ["equal", "random"])
def test_all_seeds_have_the_same_schedule_and_groups_of_equal_size(homes):
    streams = [stream_of(seed, homes=homes) for seed in range(6)]
    assert len({stream.schedule for stream in streams}) == 1
    assert {stream.tasks.sizes for stream in streams} == {(2, 2, 2, 2)}
    orders = [torch.cat([stream.order(task, None) for task in range(4)]) for stream in streams]
    assert all(not torch.equal(orders[0], other) for other in orders[1:])
    assert torch.equal(orders[0], torch.cat([stream_of(0, homes=homes).order(task, None) for task in range(4)]))
    for stream, order in zip(streams, orders, strict=True):
        assert len(order.unique()) == order.numel() == sum(stream.schedule) * 7
        labels = stream.train_labels[order.flatten()]
        first = [int((labels == number).nonzero()[0]) for number in range(8)]
        assert first == sorted(first)  # numbered as they come


def test_groups_are_the_homes_of_an_i_blurry_stream():
    stream = stream_of(3, blur=0, disjoint=100)
    for task in range(4):
        labels = stream.train_labels[stream._train[task]]
        assert (stream.tasks.of_class[labels] == task).double().mean() > 0.9  # batches cross the boundaries


def test_what_is_tested_on_are_the_classes_of_all_batches_so_far():
    stream, came, seen = stream_of(1), set(), []
    for task, steps in enumerate(stream.schedule):
        for step, batch in enumerate(stream.order(task, None), start=1):
            came |= set(stream.train_labels[batch].tolist())
            assert set(stream.test_of_met(task, step).labels.tolist()) == came
            seen.append(len(came))
        assert step == steps
    assert seen[0] < seen[-1] == 8


def test_a_dataset_in_the_order_of_its_classes_is_shuffled_before():
    """Else whole classes would go into the pool, and the others would have none in it."""
    data = noise(8, 30)
    data = replace(data, train_labels=data.train_labels.sort().values)
    stream = stream_of(0, data, blur=50, disjoint=0)
    assert all(stream.train_labels[part].unique().numel() == 8 for part in stream._train)


def test_what_a_blurry_stream_refuses():
    with pytest.raises(UsageError, match="must be a number in a blurry stream"):
        Blurry(noise(8, 30), "4+4", batch=7)
    with pytest.raises(UsageError, match="divides the 8 classes"):
        Blurry(noise(8, 30), 3, batch=7)
    with pytest.raises(UsageError, match="must be 1 in a stream without tasks"):
        Blurry(noise(8, 30), 4, batch=7, epochs=2)
    with pytest.raises(UsageError, match="at most 60"):
        Blurry(noise(8, 30), 4, batch=61)
