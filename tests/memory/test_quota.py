import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cler.memory import QuotaBuffer
from cler.memory.quota import same_before


def make_buffer(capacity=12, n_classes=6, seed=0):
    return QuotaBuffer(capacity, (1,), n_classes, generator=torch.Generator().manual_seed(seed))


def samples(labels, first=0):
    """Samples whose pixel is their number, and whose logits are all their label."""
    labels = torch.tensor(labels)
    numbers = torch.arange(first, first + len(labels), dtype=torch.uint8)
    return numbers.unsqueeze(1), labels, labels.float().unsqueeze(1).expand(-1, 6)


def numbers_in(memory):
    return memory.pixels[: memory.filled, 0].tolist()


def labels_in(memory):
    return memory.labels[: memory.filled].tolist()


def test_how_many_before_are_the_same():
    assert same_before(torch.tensor([3, 1, 2, 1, 3, 3, 0])).tolist() == [0, 0, 0, 1, 1, 2, 0]


def test_only_classes_with_room_are_stored_in_their_order():
    memory = make_buffer(capacity=4)
    memory.share_room(torch.arange(2, 4))
    assert memory.room.tolist() == [0, 0, 2, 2, 0, 0]
    memory.store(*samples([2, 5, 2, 2, 3]))
    assert numbers_in(memory) == [0, 2, 4]
    assert labels_in(memory) == [2, 2, 3]
    assert memory.has_room
    memory.store(*samples([2, 3, 3], first=5))
    assert numbers_in(memory) == [0, 2, 4, 6]
    assert labels_in(memory) == [2, 2, 3, 3]
    assert torch.equal(memory.logits[:4, 0].long(), memory.labels[:4])
    assert not memory.has_room
    memory.shrink(1)
    pixels, labels = memory.stored()
    assert pixels.tolist() == [[0], [4]]
    assert labels.tolist() == [2, 3]


def test_shrinking_keeps_the_first_of_each_class_by_class():
    memory = make_buffer()
    memory.room.fill_(12)
    memory.store(*samples([3, 1, 3, 0, 1, 3, 1]))
    memory.logits[:7, 1] = torch.arange(7.0)
    memory.counters[:7] = torch.arange(7)
    memory.shrink(2)
    assert labels_in(memory) == [0, 1, 1, 3, 3]
    assert numbers_in(memory) == [3, 1, 4, 0, 2]
    assert memory.logits[:5, 1].tolist() == memory.counters[:5].tolist() == [3, 1, 4, 0, 2]


def test_slots_that_were_never_filled_are_no_samples():
    """All zero as they are, they must not pass for samples of class 0."""
    memory = make_buffer(capacity=12)
    memory.share_room(torch.arange(1, 3))
    memory.store(*samples([1, 2, 2, 1]))  # the task has no more: the memory stays partly empty
    memory.shrink(3)
    assert labels_in(memory) == [1, 1, 2, 2]
    memory.share_room(torch.arange(3, 5))
    assert memory.room.tolist() == [0, 0, 0, 4, 4, 0]
    assert set(memory.sample(10, draws=3).labels.tolist()) == {1, 2}


def test_nothing_kept():
    memory = make_buffer(capacity=3)
    memory.shrink(0)
    memory.share_room(torch.arange(3))
    memory.store(*samples([0, 1, 2]))
    memory.shrink(0)
    assert memory.filled == 0
    memory.share_room(torch.arange(3, 6))
    assert memory.room.tolist() == [0, 0, 0, 1, 1, 1]


def test_what_does_not_divide_goes_to_random_classes():
    counts = torch.zeros(4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        memory = QuotaBuffer(10, (1,), 6, generator=generator)
        memory.share_room(torch.arange(2, 6))
        assert sorted(memory.room.tolist()) == [0, 0, 2, 2, 3, 3]
        counts += memory.room[2:] - 2
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


@settings(max_examples=40)
@given(
    capacity=st.integers(1, 40),
    tasks=st.integers(1, 4),
    per_task=st.integers(1, 3),
    per_class=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_after_every_task_the_memory_is_balanced(capacity, tasks, per_task, per_class, seed):
    generator = torch.Generator().manual_seed(seed)
    memory = QuotaBuffer(capacity, (1,), tasks * per_task, generator=generator)
    for task in range(tasks):
        classes = torch.arange(task * per_task, (task + 1) * per_task)
        seen = (task + 1) * per_task
        before = memory.labels[: memory.filled].bincount(minlength=seen)
        memory.shrink(capacity // seen)
        kept = memory.labels[: memory.filled].bincount(minlength=seen)
        assert torch.equal(kept, before.clamp(max=capacity // seen))
        memory.share_room(torch.arange(task * per_task, seen))
        share = memory.room[classes]
        assert int(share.sum()) == capacity - memory.filled
        assert int(share.max() - share.min()) <= 1
        labels = classes.repeat(per_class)[torch.randperm(per_task * per_class, generator=generator)]
        for part in labels.split(5):
            memory.store(part.unsqueeze(1).to(torch.uint8), part, torch.zeros(len(part), tasks * per_task))
        counts = memory.labels[: memory.filled].bincount(minlength=seen)
        assert torch.equal(counts[classes], share.clamp(max=per_class))
        assert torch.equal(counts[: classes[0]], kept[: classes[0]])
        assert torch.equal(memory.labels[: memory.filled], memory.pixels[: memory.filled, 0].long())


def test_of_images_that_pass_each_class_keeps_a_uniform_sample_as_large_as_its_room():
    kept = torch.zeros(40)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        memory = QuotaBuffer(9, (1,), 6, generator=generator)
        memory.share_room(torch.tensor([1]))
        memory.store(*samples([1] * 3, first=200))
        memory.share_room(torch.tensor([0, 4]))
        before, room = memory.sample(3), memory.room.clone()
        for first in range(0, 40, 8):  # even numbers are of class 0, odd ones of class 4
            memory.add(*samples([0, 4] * 4, first)[:2])
        assert set(memory.sample(9).slots.tolist()) == set(before.slots.tolist())
        assert sorted(memory.pixels[:3, 0].tolist()) == [200, 201, 202]
        pixels, labels = memory.kept()
        numbers = pixels[:, 0].long()
        assert len(set(numbers.tolist())) == len(numbers) == 6
        assert torch.equal(labels, 4 * (numbers % 2))
        assert torch.equal(labels.bincount(minlength=6), room)
        kept[numbers] += 1
    assert stats.chisquare(kept[::2].numpy()).pvalue > 1e-3
    assert stats.chisquare(kept[1::2].numpy()).pvalue > 1e-3


def test_a_place_is_drawn_among_all_images_of_the_class_that_have_passed_this_one_included():
    places = make_buffer().draw_places(torch.full((4000,), 3))
    assert stats.chisquare(places.bincount(minlength=4).numpy()).pvalue > 1e-3


def test_a_class_of_which_fewer_images_pass_than_it_has_room_for_keeps_them_all():
    memory = make_buffer(capacity=10)
    memory.share_room(torch.tensor([2, 3]))
    memory.add(*samples([3, 2, 3])[:2])
    memory.add(*samples([3], first=3)[:2])
    pixels, labels = memory.kept()
    assert pixels[:, 0].tolist() == [1, 0, 2, 3]
    assert labels.tolist() == [2, 3, 3, 3]
    memory.share_room(torch.tensor([3]))
    assert not len(memory.kept()[1])  # what passed before counts no more


def test_a_draw_has_no_repetition_and_stays_in_the_filled_part():
    memory = make_buffer(capacity=100)
    memory.room.fill_(100)
    memory.store(*samples([0, 1, 2] * 4))
    counts = torch.zeros(12)
    for _ in range(200):
        slots, pixels, labels, logits = memory.sample(10, draws=2)
        for draw in slots.chunk(2):
            assert len(set(draw.tolist())) == 10
        assert torch.equal(pixels[:, 0].long(), slots)
        assert torch.equal(labels, slots % 3)
        assert torch.equal(logits[:, 5].long(), labels)
        counts[slots[:10]] += 1
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert len(memory.sample(50, draws=2).slots) == 24


def test_only_accepted_slots_are_counted_and_written():
    memory = make_buffer()
    slots, accepted = torch.tensor([4, 7, 4, 2]), torch.tensor([True, True, False, False])
    memory.counters[:12] = torch.arange(12)
    assert memory.count(slots, accepted).tolist() == [5, 8, 4, 2]
    assert memory.counters[:12].tolist() == [0, 1, 2, 3, 5, 5, 6, 8, 8, 9, 10, 11]
    memory.write_logits(slots, torch.tensor([1.0, 2.0, 3.0, 4.0]).unsqueeze(1).expand(-1, 6), accepted)
    assert memory.logits[:12, 3].tolist() == [0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_are_kept_as_they_are(dtype):
    memory = QuotaBuffer(3, (1,), 2, dtype=dtype)
    memory.share_room(torch.arange(1))
    logits = torch.randn(3, 2, dtype=dtype)
    memory.store(torch.zeros(3, 1, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), logits)
    assert torch.equal(memory.recall(torch.arange(3)).logits, logits)
