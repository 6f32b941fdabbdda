import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cler.errors import UsageError
from cler.memory import Reservoir, reservoir_slots


def by_the_book(offered, draws, capacity, slots):
    """One sample after the other, as the algorithm is written."""
    for number, draw in enumerate(draws, start=offered):
        slot = number if number < capacity else draw
        if slot < capacity:
            slots[slot] = number
    return slots


def test_golden_reservoir(golden):
    fixture = golden("reservoir")
    capacity, labels, draws = int(fixture["capacity"]), fixture["labels"], fixture["draws"]
    memory = Reservoir(capacity, (1, 1, 1))
    memory.draw_positions = lambda count: draws[int(memory.offered) : int(memory.offered) + count]
    ids = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1)
    for i in range(len(labels)):
        slot = reservoir_slots(memory.offered, memory.draw_positions(1), capacity)
        assert int(slot) == (int(fixture["slots"][i]) if fixture["slots"][i] >= 0 else capacity)
        memory.add(ids[i : i + 1], labels[i : i + 1])
    assert torch.equal(memory.labels[:capacity], fixture["final_labels"])
    assert torch.equal(memory.pixels[:capacity].flatten().long(), fixture["final_sample_ids"])
    assert int(memory.offered) == int(fixture["offered"])


@settings(max_examples=60)
@given(capacity=st.integers(1, 8), batch=st.integers(1, 7), batches=st.integers(1, 6), seed=st.integers(0, 1000))
def test_a_batch_is_stored_as_its_samples_one_by_one(capacity, batch, batches, seed):
    memory = Reservoir(capacity, (1, 1, 1), generator=torch.Generator().manual_seed(seed))
    expected = [-1] * capacity
    for i in range(batches):
        draws = memory.draw_positions(batch)
        assert all(0 <= int(draw) <= i * batch + j for j, draw in enumerate(draws))
        memory.draw_positions = lambda count, draws=draws: draws
        numbers = torch.arange(i * batch, (i + 1) * batch)
        memory.add(numbers.to(torch.uint8).view(-1, 1, 1, 1), numbers)
        del memory.draw_positions
        expected = by_the_book(i * batch, draws.tolist(), capacity, expected)
    filled = min(capacity, batch * batches)
    assert memory.labels[:filled].tolist() == expected[:filled]
    assert memory.filled == filled


def test_a_position_is_drawn_among_all_samples_that_were_offered_this_one_included():
    memory = Reservoir(2, (1, 1, 1), generator=torch.Generator().manual_seed(0))
    memory.offered.fill_(3)
    draws = torch.stack([memory.draw_positions(2) for _ in range(2000)])
    for position, largest in enumerate((3, 4)):
        counts = draws[:, position].bincount(minlength=largest + 1)
        assert len(counts) == largest + 1
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_every_sample_is_kept_with_the_same_probability():
    capacity, offered, repeats = 10, 50, 400
    generator = torch.Generator().manual_seed(0)
    kept = torch.zeros(offered)
    for _ in range(repeats):
        memory = Reservoir(capacity, (1, 1, 1), generator=generator)
        for numbers in torch.arange(offered).split(5):
            memory.add(numbers.to(torch.uint8).view(-1, 1, 1, 1), numbers)
        kept[memory.labels[:capacity]] += 1
    assert stats.chisquare(kept.numpy()).pvalue > 1e-3


def test_a_draw_has_no_repetition_and_stays_in_the_filled_part():
    memory = Reservoir(100, (1, 1, 1), generator=torch.Generator().manual_seed(0))
    memory.add(torch.zeros(12, 1, 1, 1, dtype=torch.uint8), torch.arange(12))
    counts = torch.zeros(12)
    for _ in range(400):
        replay = memory.sample(10)
        assert len(set(replay.slots.tolist())) == 10
        assert torch.equal(replay.labels, replay.slots)
        counts[replay.slots] += 1
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_draws_of_some_classes_are_uniform_and_repeat_what_there_is():
    memory = Reservoir(20, (1, 1, 1), generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 1, 3, 1, 2])
    memory.add(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels)
    ones, others = labels.new_tensor([0, 1, 0, 0]).bool(), labels.new_tensor([0, 0, 0, 1]).bool()
    drawn = torch.zeros(len(labels))
    for _ in range(300):
        replay, found = memory.sample_of(2, ones)
        assert found
        assert len(set(replay.slots.tolist())) == 2
        drawn[replay.slots] += 1
    assert drawn[labels != 1].sum() == 0
    assert stats.chisquare(drawn[labels == 1].numpy()).pvalue > 1e-3
    five = memory.sample_of(5, ones)[0]
    assert sorted(five.slots.bincount(minlength=6)[[1, 3, 5]].tolist()) == [1, 2, 2]
    assert memory.sample_of(3, others)[0].slots.tolist() == [4, 4, 4]
    nothing, found = memory.sample_of(3, torch.zeros(4, dtype=torch.bool))
    assert not found
    assert len(nothing.slots) == 3
    assert not Reservoir(3, (1, 1, 1)).sample_of(2, torch.ones(4, dtype=torch.bool))[1]


def test_what_is_kept_of_an_image_stays_together():
    memory = Reservoir(10, (1,), generator=torch.Generator().manual_seed(0), extra={"logits": (3,)})
    for numbers in torch.arange(48).split(6):
        memory.add(numbers.to(torch.uint8).unsqueeze(1), numbers, logits=numbers.float().unsqueeze(1).expand(-1, 3))
        pixels, labels = memory.stored()
        assert len(labels) == len(labels.unique()) == min(int(numbers[-1]) + 1, 10)
        assert torch.equal(pixels[:, 0].long(), labels)
        replay = memory.sample(5)
        assert torch.equal(replay.pixels[:, 0].long(), replay.labels)
        assert torch.equal(replay.extra["logits"], replay.labels.float().unsqueeze(1).expand(-1, 3))
    assert len(memory.stored()[1]) == 10


def test_what_the_buffer_does_not_store_is_refused():
    buffer = Reservoir(4, (3, 2, 2), extra={"logits": (5,), "task": ()})
    pixels, labels, logits = (
        torch.zeros(2, 3, 2, 2, dtype=torch.uint8),
        torch.zeros(2, dtype=torch.int64),
        torch.ones(2, 5),
    )
    few, many = {"logits": logits}, {"logits": logits, "tasks": labels}
    for more, told in ((few, "logits"), (many, "logits, tasks"), ({}, "nothing")):
        with pytest.raises(UsageError, match=f"stores logits, task with each image, and is given {told}$"):
            buffer.add(pixels, labels, **more)
    with pytest.raises(UsageError, match=r"uint8, not of float32: give it batch\.pixels"):
        buffer.add(pixels.float(), labels, logits=logits, task=labels)
    assert buffer.filled == 0
    buffer.add(pixels, labels, logits=logits.bfloat16(), task=labels + 3)
    assert buffer.sample(2).extra["task"].tolist() == [3.0, 3.0]
