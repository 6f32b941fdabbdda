"""A reservoir that keeps its classes in balance, decided sample by sample without a look from Python."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cler.memory.reservoir import Reservoir, last_of_each


class BalancedReservoir(Reservoir):
    """A buffer in which every class ever offered tends to hold as many slots as any other.

    While there is room, everything is stored. Later a sample is accepted if plain reservoir sampling would accept it,
    or if its class holds fewer slots than the median class; it takes the place of a member of the largest class.
    """

    def __init__(
        self,
        capacity: int,
        image_shape: Sequence[int],
        n_classes: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(capacity, image_shape, generator=generator, device=device)
        self.labels.fill_(-1)  # so that an empty slot counts for no class
        self._classes = torch.arange(n_classes, device=device).unsqueeze(1)

    def find_slots(self, labels: Tensor) -> Tensor:
        """One sample after the other, since the label of each one stored changes the balance for the next."""
        draws = self.draw_positions(len(labels))
        numbers = self.offered + torch.arange(len(labels), device=labels.device)
        slots = []
        for label, draw, number in zip(labels.split(1), draws.split(1), numbers.split(1), strict=True):
            slots.append(self.find_slot(label, draw, number))
            self.labels.index_copy_(0, slots[-1], label)
        return last_of_each(torch.cat(slots), self.capacity)

    def find_slot(self, label: Tensor, draw: Tensor, number: Tensor) -> Tensor:
        """Where sample `number` goes; `capacity` stands for nowhere. All are tensors of one element.

        `draw` is uniform on {0..number} and serves twice: for the decision, and to choose among the largest class
        (the smallest of several) its member number `draw` modulo the size, in the order of the slots.
        """
        members = self.labels[: self.capacity] == self._classes  # (n_classes, capacity)
        counts = members.sum(1)
        size, largest = counts.max(0, keepdim=True)
        ranks = members.index_select(0, largest)[0].cumsum(0)
        member = torch.searchsorted(ranks, draw % size.clamp(min=1), right=True)
        accepted = (draw < self.capacity) | below_median(counts.index_select(0, label), counts)
        return torch.where(number < self.capacity, number, torch.where(accepted, member, self.capacity))


def below_median(count: Tensor, counts: Tensor) -> Tensor:
    """Whether `count`, one of `counts`, is smaller than the median of the positive ones.

    It is exactly if at least half of those are larger. With an even number, where the median is the mean of the middle
    two, this holds because `count` is 0 or itself among them: nothing can lie between it and the next larger one.
    """
    return 2 * (counts > count).sum() >= counts.count_nonzero()
