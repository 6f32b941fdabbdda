from collections import Counter
from statistics import median

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cler.memory import BalancedReservoir
from cler.memory.balanced import below_median


def by_the_book(stored, label, draw, number, capacity):
    """The slot of one sample, or None, as the algorithm is written."""
    if number < capacity:
        return number
    counts = Counter(stored)
    if not (draw < capacity or counts[label] == 0 or counts[label] < median(counts.values())):
        return None
    largest = min(counts, key=lambda each: (-counts[each], each))
    members = [slot for slot, each in enumerate(stored) if each == largest]
    return members[draw % len(members)]


def pixels_of(numbers):
    """Images of one pixel that tell which sample they are."""
    return numbers.to(torch.uint8).view(-1, 1, 1, 1)


@pytest.mark.parametrize("batch", [1, 10, 32])
def test_golden_balanced_reservoir(golden, batch):
    fixture = golden("cope").under("balanced.")
    capacity, labels, draws = int(fixture["capacity"]), fixture["labels"], fixture["draws"]
    memory = BalancedReservoir(capacity, (1, 1, 1), int(labels.max()) + 1)
    memory.draw_positions = lambda count: draws[int(memory.offered) : int(memory.offered) + count]
    held = torch.full((capacity,), -1)
    for numbers in torch.arange(len(labels)).split(batch):
        memory.add(pixels_of(numbers), labels[numbers])
        for number in numbers.tolist():
            if fixture["slots"][number] >= 0:
                held[fixture["slots"][number]] = number
        full = held >= 0
        assert torch.equal(memory.pixels[:capacity].flatten().long()[full], held[full])
        assert torch.equal(memory.labels[:capacity][full], labels[held[full]])
    assert torch.equal(memory.labels[:capacity], fixture["final_labels"])
    assert torch.equal(memory.pixels[:capacity].flatten().long(), fixture["final_sample_ids"])


def test_golden_slots(golden):
    fixture = golden("cope").under("balanced.")
    capacity, labels, draws = int(fixture["capacity"]), fixture["labels"], fixture["draws"]
    memory = BalancedReservoir(capacity, (1, 1, 1), int(labels.max()) + 1)
    for i, expected in enumerate(fixture["slots"].tolist()):
        slot = memory.find_slot(labels[i : i + 1], draws[i : i + 1], torch.tensor([i]))
        assert slot.tolist() == [expected if expected >= 0 else capacity]
        memory.labels[slot] = labels[i]


@settings(max_examples=40)
@given(
    capacity=st.integers(1, 9),
    n_classes=st.integers(1, 5),
    batch=st.integers(1, 7),
    batches=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_a_batch_is_stored_as_its_samples_one_by_one(capacity, n_classes, batch, batches, seed):
    generator = torch.Generator().manual_seed(seed)
    memory = BalancedReservoir(capacity, (1, 1, 1), n_classes, generator=generator)
    stored, held = [], []
    for i in range(batches):
        draws = memory.draw_positions(batch)
        labels = torch.randint(n_classes, (batch,), generator=generator)
        memory.draw_positions = lambda count, draws=draws: draws
        numbers = torch.arange(i * batch, (i + 1) * batch)
        memory.add(pixels_of(numbers), labels)
        del memory.draw_positions
        for number, label, draw in zip(numbers.tolist(), labels.tolist(), draws.tolist(), strict=True):
            slot = by_the_book(stored, label, draw, number, capacity)
            if slot == len(stored):
                stored.append(label)
                held.append(number)
            elif slot is not None:
                stored[slot], held[slot] = label, number
    filled = len(stored)
    assert memory.filled == filled
    assert memory.labels[:filled].tolist() == stored
    assert memory.pixels[:filled].flatten().tolist() == held
    assert int(memory.offered) == batch * batches


@settings(max_examples=200)
@given(counts=st.lists(st.integers(0, 6), min_size=1, max_size=9).filter(any), data=st.data())
def test_below_the_median(counts, data):
    count = data.draw(st.sampled_from(counts))
    middle = median(each for each in counts if each)
    assert bool(below_median(torch.tensor([count]), torch.tensor(counts))) == (count < middle)


@pytest.mark.parametrize(("capacity", "n_classes"), [(50, 10), (48, 10), (20, 4)])
def test_classes_stay_in_balance_on_a_class_ordered_stream(capacity, n_classes):
    memory = BalancedReservoir(capacity, (1, 1, 1), n_classes, generator=torch.Generator().manual_seed(0))
    for labels in torch.arange(n_classes).repeat_interleave(100).split(10):
        memory.add(torch.zeros(10, 1, 1, 1, dtype=torch.uint8), labels)
        counts = memory.labels[:capacity].clamp(min=0).bincount(minlength=n_classes)
    assert int(counts.sum()) == capacity
    assert (counts - capacity / n_classes).abs().max() <= 2


def test_plain_reservoir_sampling_still_turns_samples_over():
    """Of a class that is as large as any other, a sample is accepted with probability M / (n + 1)."""
    capacity, offered, repeats = 10, 40, 200
    generator, kept = torch.Generator().manual_seed(0), torch.zeros(offered)
    for _ in range(repeats):
        memory = BalancedReservoir(capacity, (1, 1, 1), 1, generator=generator)
        for numbers in torch.arange(offered).split(10):
            memory.add(pixels_of(numbers), torch.zeros_like(numbers))
        kept[memory.pixels[:capacity].flatten().long()] += 1
    assert kept.sum() == capacity * repeats
    expected = capacity / offered * repeats
    assert (kept - expected).abs().max() < 5 * expected**0.5
