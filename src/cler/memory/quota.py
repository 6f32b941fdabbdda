"""A buffer with an equal share for every class, filled between tasks, that also keeps logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cler.memory.reservoir import last_of_each


class Recollection(NamedTuple):
    """What a `QuotaBuffer` hands out: which slots, and what they hold."""

    slots: Tensor
    pixels: Tensor
    labels: Tensor
    logits: Tensor


def same_before(numbers: Tensor) -> Tensor:
    """For each of some numbers, how many before it are the same."""
    return (numbers.unsqueeze(0) == numbers.unsqueeze(1)).tril(-1).sum(1)


class QuotaBuffer:
    """Images, labels and logits of a fixed number of samples, the same number of every class up to rounding.

    Samples come and go between tasks, by `shrink`, `share_room` and `store`, where the host may look. During a task the
    same samples stay, and only their logits change: how often is counted. In the free slots, which are not drawn from,
    a buffer that is to be filled from the stream keeps images of the task as they pass. Row `capacity`, one past the
    end, takes the writes that are rejected, so that every batch writes the same shape.
    """

    def __init__(
        self,
        capacity: int,
        image_shape: Sequence[int],
        n_classes: int,
        *,
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.capacity = capacity
        self.generator = generator
        self.pixels = torch.zeros(capacity + 1, *image_shape, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(capacity + 1, dtype=torch.int64, device=device)
        self.logits = torch.zeros(capacity + 1, n_classes, dtype=dtype, device=device)
        self.counters = torch.zeros(capacity + 1, dtype=torch.int64, device=device)
        """How often each sample was up for new logits in this task."""
        self.room = torch.zeros(n_classes, dtype=torch.int64, device=device)
        """How many more samples of each class will be taken."""
        self.passed = torch.zeros(n_classes, dtype=torch.int64, device=device)
        """How many images of each class have passed since room was shared."""
        self.filled = 0
        """How many slots are filled; constant during a task."""

    # -- during a task -------------------------------------------------------------------------------------------------

    def sample(self, count: int, *, draws: int = 1) -> Recollection:
        """Draw `count` different samples, or as many as there are, uniformly; all of that `draws` times."""
        return self.recall(torch.cat([self.draw_slots(min(count, self.filled)) for _ in range(draws)]))

    def recall(self, slots: Tensor) -> Recollection:
        """What some slots hold."""
        return Recollection(slots, self.pixels[slots], self.labels[slots], self.logits[slots])

    def count(self, slots: Tensor, counted: Tensor) -> Tensor:
        """Increase the counters of slots where `counted`; gives back all of theirs. No slot is counted twice."""
        counters = self.counters[slots] + counted
        self.counters.index_copy_(0, self._or_nowhere(slots, counted), counters)
        return counters

    def write_logits(self, slots: Tensor, logits: Tensor, written: Tensor) -> None:
        """Replace the logits of slots where `written`. No slot is written twice."""
        self.logits.index_copy_(0, self._or_nowhere(slots, written), logits)

    def add(self, pixels: Tensor, labels: Tensor) -> None:
        """Offer a batch: of each class's images a uniform sample, as large as its room, stays in the free slots.

        An image that is offered twice, as in several epochs, counts as two.
        """
        room = self.room[labels]
        numbers = self.passed[labels] + same_before(labels)
        places = torch.where(numbers < room, numbers, self.draw_places(numbers))
        slots = last_of_each(self._or_nowhere(self.first_slots()[labels] + places, places < room), self.capacity)
        self.pixels.index_copy_(0, slots, pixels)
        self.labels.index_copy_(0, slots, labels)
        self.passed.index_add_(0, labels, torch.ones_like(labels))

    def first_slots(self) -> Tensor:
        """The first slot among the free ones of each class that has room."""
        return self.filled + self.room.cumsum(0) - self.room

    def draw_places(self, numbers: Tensor) -> Tensor:
        """For image number n of its class, counted from 0, an integer uniform on {0..n}."""
        uniform = torch.rand(len(numbers), dtype=torch.float64, generator=self.generator, device=numbers.device)
        return (uniform * (numbers + 1)).long()

    def _or_nowhere(self, slots: Tensor, accepted: Tensor) -> Tensor:
        return slots.masked_fill(~accepted, self.capacity)

    def stored(self) -> tuple[Tensor, Tensor]:
        """Pixels and labels of all samples."""
        return self.pixels[: self.filled], self.labels[: self.filled]

    def draw_slots(self, count: int) -> Tensor:
        """Filled slots drawn without replacement: those with the highest random keys."""
        return torch.rand(self.filled, generator=self.generator, device=self.labels.device).topk(count).indices

    # -- between tasks -------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether some class is still short of its share."""
        return bool((self.room > 0).any())

    def shrink(self, per_class: int) -> None:
        """Keep the first `per_class` samples of every class, and put them in the order of the classes."""
        labels, order = self.labels[: self.filled].sort(stable=True)
        rank = torch.arange(self.filled, device=labels.device) - torch.searchsorted(labels, labels)
        kept = order[rank < per_class]
        for values in (self.pixels, self.labels, self.logits, self.counters):
            values[: len(kept)] = values[kept]
        self.filled = len(kept)

    def share_room(self, classes: Tensor) -> None:
        """Share the free slots among some classes, int64 (K,); what does not divide goes to random ones of them."""
        share, left = divmod(self.capacity - self.filled, len(classes))
        self.room.zero_()
        self.room[classes] = share
        self.room[classes[self.draw_favored(left, len(classes))]] += 1
        self.passed.zero_()

    def kept(self) -> tuple[Tensor, Tensor]:
        """Pixels and labels of the images that were kept as they passed."""
        free = torch.arange(self.filled, self.filled + int(self.room.sum()), device=self.labels.device)
        owner = torch.repeat_interleave(self.room)
        slots = free[free - self.first_slots()[owner] < self.passed[owner]]
        return self.pixels[slots], self.labels[slots]

    def store(self, pixels: Tensor, labels: Tensor, logits: Tensor) -> None:
        """Store, in their order, those samples whose class still has room."""
        taken = (same_before(labels) < self.room[labels]).nonzero().squeeze(1)
        slots = slice(self.filled, self.filled + len(taken))
        self.pixels[slots] = pixels[taken]
        self.labels[slots] = labels[taken]
        self.logits[slots] = logits[taken]
        self.counters[slots] = 0
        self.room -= torch.bincount(labels[taken], minlength=len(self.room))
        self.filled = slots.stop

    def draw_favored(self, count: int, n_classes: int) -> Tensor:
        """Which classes get one more, without repetition."""
        return torch.randperm(n_classes, generator=self.generator, device=self.labels.device)[:count]
