import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cler.data.images import ImageData
from cler.errors import UsageError
from cler.streams.class_incremental import Stream


def numbered(labels, test_labels, n_classes):
    """Images that tell their own number: training image i is filled with i, test image i with 255 - i."""
    labels, test_labels = torch.as_tensor(labels), torch.as_tensor(test_labels)

    def filled(values):
        return values.to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 2, 2)

    return ImageData(
        name="numbered",
        train_images=filled(torch.arange(len(labels))),
        train_labels=labels.long(),
        test_images=filled(255 - torch.arange(len(test_labels))),
        test_labels=test_labels.long(),
        classes=tuple(f"class {k}" for k in range(n_classes)),
        mean=(0.5,),
        std=(0.5,),
    )


@st.composite
def situations(draw):
    """A data set with its classes in any order and number, and a way to make a stream of it."""
    tasks, per_task = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    n_classes = tasks * per_task
    batch = draw(st.integers(1, 4))
    counts = [draw(st.integers(batch, batch + 5)) for _ in range(n_classes)]
    labels = draw(st.permutations([k for k, count in enumerate(counts) for _ in range(count)]))
    test_labels = draw(st.permutations(list(range(n_classes)) * draw(st.integers(1, 3))))
    how = {
        "tasks": tasks,
        "batch": batch,
        "epochs": draw(st.integers(1, 3)),
        "class_order": draw(st.none() | st.integers(0, 1000)),
        "merged": draw(st.booleans()),
    }
    return numbered(labels, test_labels, n_classes), how


@settings(max_examples=80, deadline=None)
@given(situation=situations(), seed=st.integers(0, 1000))
def test_the_split(situation, seed):
    data, how = situation
    stream = Stream(data, **how)
    per_task, generator = data.n_classes // how["tasks"], torch.Generator().manual_seed(seed)
    assert (stream.classes_per_task, stream.n_classes) == (per_task, data.n_classes)

    # labels: a renumbering of the classes, the natural one unless a seed asks for another
    order = stream.class_order
    assert sorted(order.tolist()) == list(range(data.n_classes))
    if how["class_order"] is None:
        assert order.tolist() == list(range(data.n_classes))
    assert torch.equal(order[stream.train_labels], data.train_labels)
    assert torch.equal(order[stream.test_labels], data.test_labels)

    # training: each image in exactly one task, and in each epoch at most once
    training_tasks = 1 if how["merged"] else how["tasks"]
    assert len(stream.schedule) == training_tasks
    members = []
    for task in range(training_tasks):
        size = data.n_classes // training_tasks
        mine = [i for i, label in enumerate(stream.train_labels.tolist()) if task * size <= label < (task + 1) * size]
        members += mine
        batches = stream.order(task, generator)
        whole = len(mine) // how["batch"]
        assert batches.shape == (how["epochs"] * whole, how["batch"])
        assert len(batches) == stream.schedule[task]
        for epoch in batches.split(whole):
            drawn = epoch.flatten().tolist()
            assert len(set(drawn)) == len(drawn) > len(mine) - how["batch"]
            assert set(drawn) <= set(mine)
    assert sorted(members) == list(range(len(data.train_labels)))

    # test: the same tasks whether merged or not, each image in exactly one
    seen = []
    for task in range(how["tasks"]):
        pixels, labels = stream.test(task)
        assert ((labels >= task * per_task) & (labels < (task + 1) * per_task)).all()
        numbers = 255 - pixels[:, 0, 0, 0].long()
        assert torch.equal(stream.test_labels[numbers], labels)
        seen += numbers.tolist()
    assert sorted(seen) == list(range(len(data.test_labels)))


@pytest.fixture
def data():
    return numbered([0, 1, 2, 3, 4, 5] * 7, [0, 1, 2, 3, 4, 5], 6)


def test_tasks_own_consecutive_classes(data):
    stream = Stream(data, 3, batch=4)
    assert stream.test(1)[1].tolist() == [2, 3]
    assert stream.schedule == (3, 3, 3)  # 14 images a task: three batches of four, two images left out


def test_batches_follow_the_generator_and_change_every_epoch(data):
    stream = Stream(data, 3, batch=7, epochs=2)
    first, again, other = (stream.order(0, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[:2], first[2:])
    generator = torch.Generator().manual_seed(1)
    assert not torch.equal(stream.order(0, generator), stream.order(0, generator))


def test_every_image_is_left_out_of_an_incomplete_batch_equally_often(data):
    stream, generator = Stream(data, 6, batch=2), torch.Generator().manual_seed(0)
    left_out = torch.zeros(len(data.train_labels))
    for _ in range(700):
        drawn = stream.order(0, generator).flatten().tolist()
        (missing,) = set((data.train_labels == 0).nonzero().squeeze(1).tolist()) - set(drawn)
        left_out[missing] += 1
    counts = left_out[data.train_labels == 0]
    assert counts.min() > 60  # 100 expected, deviation 9
    assert counts.max() < 140


def test_a_class_order_is_fixed_by_its_seed_alone(data):
    state = torch.get_rng_state()
    orders = [Stream(data, 3, class_order=seed, batch=4).class_order.tolist() for seed in (5, 5, 6, 7)]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) > 1
    assert torch.equal(state, torch.get_rng_state())


def test_merged_is_one_task_to_train_and_all_tasks_to_test(data):
    stream = Stream(data, 3, batch=5, merged=True)
    assert stream.schedule == (8,)
    assert stream.tasks == 3
    assert [stream.test(task)[1].tolist() for task in range(3)] == [[0, 1], [2, 3], [4, 5]]
    batches = stream.order(0, torch.Generator().manual_seed(0))
    assert {int(stream.train_labels[i]) // 2 for i in batches[0]} != {0}
    assert set(stream.train_labels[batches].flatten().tolist()) == set(range(6))


@pytest.mark.parametrize("tasks", [0, -1, 4, 5, 7, 12])
def test_tasks_that_do_not_divide_the_classes_are_refused(data, tasks):
    with pytest.raises(UsageError, match=rf"{tasks} tasks do not divide the 6 classes.*--tasks can be 1, 2, 3, 6"):
        Stream(data, tasks)


def test_a_batch_larger_than_a_task_is_refused(data):
    with pytest.raises(UsageError, match=r"batch of 15 .*smallest task \(14 images\).*--batch"):
        Stream(data, 3, batch=15)
    Stream(data, 3, batch=15, merged=True)


def test_the_training_images_of_a_task_are_those_that_its_batches_hold():
    stream = Stream(numbered([0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3], 4), tasks=2, batch=2, class_order=1)
    for task in range(2):
        pixels, labels = stream.train(task)
        members = stream.order(task, torch.Generator()).flatten().sort().values
        assert torch.equal(pixels, stream.data.train_images[members])
        assert torch.equal(labels, stream.train_labels[members])
        assert set((labels // 2).tolist()) == {task}
