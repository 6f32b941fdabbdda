"""Reservoir sampling in preallocated tensors, without a look at any of them from Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cler.errors import UsageError


class Replay(NamedTuple):
    """What a buffer hands out: which slots, and what they hold."""

    slots: Tensor
    pixels: Tensor
    labels: Tensor
    extra: Mapping[str, Tensor] = MappingProxyType({})
    """What the buffer stores with each image besides, by name: (N, ...) each."""


def reservoir_slots(offered: Tensor, draws: Tensor, capacity: int) -> Tensor:
    """Where each sample of a batch goes; `capacity` itself stands for nowhere.

    Sample i is number n = offered + i of all that were offered: it takes slot n while there is room, and later slot
    draws[i], uniform on {0..n}, if that is one. Of two samples sent to one slot the later one stays.
    """
    numbers = offered + torch.arange(len(draws), device=draws.device)
    slots = torch.where(numbers < capacity, numbers, draws.clamp(max=capacity))
    return last_of_each(slots, capacity)


def last_of_each(slots: Tensor, capacity: int) -> Tensor:
    """The slots, but for those that a later sample of the batch takes."""
    overwritten = (slots.unsqueeze(0) == slots.unsqueeze(1)).triu(1).any(1)
    return slots.masked_fill(overwritten, capacity)


class Reservoir:
    """A uniform sample, of fixed size, of everything that was ever offered.

    Row `capacity`, one past the end, takes the writes that are rejected, so that every batch writes the same shape.
    `extra` names further tensors to be stored with each image, in float32, and gives their shapes.
    """

    def __init__(
        self,
        capacity: int,
        image_shape: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        extra: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self.capacity = capacity
        self.generator = generator
        self.pixels = torch.zeros(capacity + 1, *image_shape, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(capacity + 1, dtype=torch.int64, device=device)
        self.extra = {name: torch.zeros(capacity + 1, *shape, device=device) for name, shape in extra.items()}
        self.offered = torch.zeros((), dtype=torch.int64, device=device)
        self.filled = 0
        """How many slots are filled at least, known to the host: recorded steps do not count here."""
        self._numbers = torch.arange(capacity, device=device)

    def add(self, pixels: Tensor, labels: Tensor, **extra: Tensor) -> None:
        """Offer a batch of images as they are stored, with a tensor for each name in `extra`."""
        if extra.keys() != self.extra.keys():
            known, given = (", ".join(sorted(names)) or "nothing" for names in (self.extra, extra))
            raise UsageError(f"the buffer stores {known} with each image, and is given {given}")
        if pixels.dtype != self.pixels.dtype:
            kind = str(pixels.dtype).removeprefix("torch.")
            raise UsageError(
                f"the buffer stores pixels of uint8, not of {kind}: give it batch.pixels, not batch.images"
            )
        slots = self.find_slots(labels)
        self.pixels.index_copy_(0, slots, pixels)
        self.labels.index_copy_(0, slots, labels)
        for name, stored in self.extra.items():
            stored.index_copy_(0, slots, extra[name].to(stored.dtype))
        self.offered.add_(len(labels))
        self.filled = min(self.filled + len(labels), self.capacity)

    def find_slots(self, labels: Tensor) -> Tensor:
        """Where the samples of a batch go; `capacity` stands for nowhere."""
        return reservoir_slots(self.offered, self.draw_positions(len(labels)), self.capacity)

    def sample(self, count: int) -> Replay:
        """Draw `count` different samples, or as many as there are, uniformly."""
        return self.recall(self.draw_slots(min(count, self.filled)))

    def sample_of(self, count: int, classes: Tensor) -> tuple[Replay, Tensor]:
        """Draw `count` samples of some classes, a mask (C,), uniformly; also says whether there is any, bool ().

        They are different ones as far as there are enough; of fewer, each comes about equally often. Without any, what
        is handed out means nothing. `count` is at most the capacity.
        """
        slots, found = self.draw_slots_of(count, classes)
        return self.recall(slots), found

    def recall(self, slots: Tensor) -> Replay:
        """What some slots hold."""
        extra = {name: stored[slots] for name, stored in self.extra.items()}
        return Replay(slots, self.pixels[slots], self.labels[slots], extra)

    def stored(self) -> tuple[Tensor, Tensor]:
        """Pixels and labels of all samples; the host looks."""
        filled = min(int(self.offered), self.capacity)
        return self.pixels[:filled], self.labels[:filled]

    def draw_positions(self, count: int) -> Tensor:
        """For each of the next samples an integer, uniform on {0..n} with n the number offered before it."""
        device = self.offered.device
        numbers = self.offered + torch.arange(1, count + 1, device=device)
        uniform = torch.rand(count, dtype=torch.float64, generator=self.generator, device=device)
        return (uniform * numbers).long()

    def draw_slots(self, count: int) -> Tensor:
        """Slots drawn without replacement among the filled ones: those with the highest random keys."""
        keys = torch.rand(self.capacity, generator=self.generator, device=self.offered.device)
        return keys.masked_fill(self._numbers >= self.offered, -1.0).topk(count).indices

    def draw_slots_of(self, count: int, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Slots of some classes, those with the highest random keys over and over; and whether there is any."""
        wanted = classes[self.labels[: self.capacity]] & (self._numbers < self.offered)
        keys = torch.rand(self.capacity, generator=self.generator, device=self.offered.device)
        best, number = keys.masked_fill(~wanted, -1.0).topk(count).indices, wanted.sum()
        return best[self._numbers[:count] % number.clamp(min=1)], number > 0


@contextmanager
def closed(buffer: Any) -> Iterator[None]:
    """Inside, a buffer of any kind takes nothing that it is offered, and draws nothing for it."""
    buffer.add = lambda *_, **__: None
    try:
        yield
    finally:
        del buffer.add
