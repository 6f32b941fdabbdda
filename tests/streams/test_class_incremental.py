from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cler.data.images import ImageData
from cler.errors import UsageError
from cler.streams import STREAMS, Stream
from toys import shades


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
    """A dataset with its classes in any order and number, and a way to make a stream of it."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    n_classes = sum(sizes)
    batch = draw(st.integers(1, 4))
    counts = [draw(st.integers(batch, batch + 5)) for _ in range(n_classes)]
    labels = draw(st.permutations([k for k, count in enumerate(counts) for _ in range(count)]))
    test_labels = draw(st.permutations(list(range(n_classes)) * draw(st.integers(1, 3))))
    how = {
        "tasks": sizes,
        "batch": batch,
        "epochs": draw(st.integers(1, 3)),
        "class_order": draw(st.none() | st.integers(0, 1000)),
        "merged": draw(st.booleans()),
    }
    return numbered(labels, test_labels, n_classes), how


@settings(max_examples=80)
@given(situation=situations(), seed=st.integers(0, 1000))
def test_the_split(situation, seed):
    data, how = situation
    stream = Stream(data, **how)
    sizes, generator = how["tasks"], torch.Generator().manual_seed(seed)
    of_class = [task for task, size in enumerate(sizes) for _ in range(size)]
    assert stream.tasks.of_class.tolist() == of_class
    assert (stream.tasks.number, stream.n_classes) == (len(sizes), data.n_classes)

    # labels: a renumbering of the classes, the natural one unless a seed asks for another
    order = stream.class_order
    assert sorted(order.tolist()) == list(range(data.n_classes))
    if how["class_order"] is None:
        assert order.tolist() == list(range(data.n_classes))
    assert torch.equal(order[stream.train_labels], data.train_labels)
    assert torch.equal(order[stream.test_labels], data.test_labels)

    # training: each image in exactly one task, and in each epoch at most once
    training_tasks = 1 if how["merged"] else len(sizes)
    assert len(stream.schedule) == training_tasks
    members = []
    for task in range(training_tasks):
        mine = [i for i, label in enumerate(stream.train_labels.tolist()) if how["merged"] or of_class[label] == task]
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
    for task in range(len(sizes)):
        examples = stream.test(task)
        pixels, labels = examples.pixels, examples.labels
        assert {of_class[label] for label in labels.tolist()} == {task}
        numbers = 255 - pixels[:, 0, 0, 0].long()
        assert torch.equal(stream.test_labels[numbers], labels)
        seen += numbers.tolist()
    assert sorted(seen) == list(range(len(data.test_labels)))


@pytest.fixture
def data():
    return numbered([0, 1, 2, 3, 4, 5] * 7, [0, 1, 2, 3, 4, 5], 6)


def test_tasks_own_consecutive_classes(data):
    stream = Stream(data, 3, batch=4)
    assert stream.test(1).labels.tolist() == [2, 3]
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
    assert stream.tasks.sizes == (2, 2, 2)
    assert [stream.test(task).labels.tolist() for task in range(3)] == [[0, 1], [2, 3], [4, 5]]
    batches = stream.order(0, torch.Generator().manual_seed(0))
    assert {int(stream.train_labels[i]) // 2 for i in batches[0]} != {0}
    assert set(stream.train_labels[batches].flatten().tolist()) == set(range(6))


def test_tasks_may_have_different_sizes(data):
    stream = Stream(data, (1, 3, 2), batch=4)
    assert stream.schedule == (1, 5, 3)  # 7, 21 and 14 images
    assert [stream.test(task).labels.tolist() for task in range(3)] == [[0], [1, 2, 3], [4, 5]]


def test_a_batch_larger_than_a_task_is_refused(data):
    with pytest.raises(UsageError, match=r"^batch must be at most 14, the images of the smallest task, not 15$"):
        Stream(data, 3, batch=15)
    with pytest.raises(UsageError, match=r"^batch must be at most 7, "):
        Stream(data, (5, 1), batch=8)
    Stream(data, 3, batch=15, merged=True)


@pytest.mark.parametrize("stream", ["class-incremental", "long-tailed", "blurry", "shuffled"])
def test_a_task_without_images_to_test_on_is_refused(stream):
    data = shades(6, 12)
    kept = data.test_labels != 3
    some = replace(data, test_images=data.test_images[kept], test_labels=data.test_labels[kept])
    STREAMS[stream](some, 1, batch=1)
    with pytest.raises(UsageError, match=r"toy: task \d has no images to test on; give its classes some \(class 3\)"):
        STREAMS[stream](some, 6, batch=1)


def test_a_task_without_images_to_train_on_is_refused():
    data = shades(6, 12)
    kept = data.train_labels != 3
    some = replace(data, train_images=data.train_images[kept], train_labels=data.train_labels[kept])
    Stream(some, 3, batch=1)
    with pytest.raises(UsageError, match=r"^toy: task 4 has no images to train on; give its classes some"):
        Stream(some, 6, batch=1)


def test_the_training_images_of_a_task_are_those_that_its_batches_hold():
    stream = Stream(numbered([0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3], 4), tasks=2, batch=2, class_order=1)
    for task in range(2):
        examples = stream.train(task)
        pixels, labels = examples.pixels, examples.labels
        members = stream.order(task, torch.Generator()).flatten().sort().values
        assert torch.equal(pixels, stream.data.train_images[members])
        assert torch.equal(labels, stream.train_labels[members])
        assert set((labels // 2).tolist()) == {task}


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("class_order", [None, 5])
def test_held_out_images_are_never_trained_on(merged, class_order):
    images = shades(4, 20)
    images.train_images[:, 0, 0, 0] = torch.arange(80)  # so that each image can be told
    stream = Stream(images, 2, batch=5, epochs=3, class_order=class_order, merged=merged, validate=0.25)

    def numbers(pixels):
        return set(pixels[:, 0, 0, 0].tolist())

    held_out = [numbers(stream.held_out(task).pixels) for task in range(2)]
    assert [len(each) for each in held_out] == [10, 10]
    assert not held_out[0] & held_out[1]
    trained = set()
    for task in range(len(stream.schedule)):
        rows = stream.order(task, torch.Generator().manual_seed(0), epochs=50)
        trained |= set(rows.flatten().tolist())
        assert numbers(stream.train(task).pixels) == numbers(images.train_images[rows.flatten()])
    assert trained == set(range(80)) - held_out[0] - held_out[1]
    for task in range(2):
        examples = stream.held_out(task)
        pixels, labels = examples.pixels, examples.labels
        assert labels.bincount(minlength=4)[2 * task : 2 * task + 2].tolist() == [5, 5]
        original = stream.class_order[labels]
        assert torch.equal(original, images.train_labels[pixels[:, 0, 0, 0].long()])
    other = Stream(images, 2, batch=5, class_order=class_order, validate=0.25)
    assert held_out == [numbers(other.held_out(task).pixels) for task in range(2)]  # whatever the method


def test_a_share_that_leaves_a_class_without_images_is_refused():
    with pytest.raises(UsageError, match=r"validate 0.9 leaves no image to train on of a class with 2"):
        Stream(shades(4, 2, test_per_class=1), 2, batch=1, validate=0.9)


def test_a_small_share_holds_out_an_image_of_each_class_at_least():
    stream = Stream(shades(4, 3, test_per_class=1), 2, batch=1, validate=0.1)
    assert [sorted(stream.held_out(task).labels.tolist()) for task in range(2)] == [[0, 1], [2, 3]]


def test_without_a_share_nothing_is_held_out():
    stream = Stream(shades(4, 20), 2, batch=5)
    assert not stream.validates
    assert len(stream.held_out(0).pixels) == 0
