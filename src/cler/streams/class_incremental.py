"""A labeled image set as a class-incremental stream: tasks of new classes, each seen in small batches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cler.data.images import ImageData
from cler.errors import UsageError


class Batch(NamedTuple):
    """One batch of the stream."""

    pixels: Tensor
    """Raw images as stored, uint8 (N, C, H, W)."""
    images: Tensor
    """The same images augmented and normalized."""
    labels: Tensor
    """Class numbers; task t owns [t·k, (t+1)·k)."""


class Stream:
    """Splits the classes of `data` into `tasks` equal tasks and orders the training images of each.

    Labels are renumbered so that task t owns classes [t·k, (t+1)·k). `merged` gives Joint's stream: one task to train
    on that holds every class, and the same tasks to be tested on.
    """

    def __init__(
        self,
        data: ImageData,
        tasks: int,
        *,
        batch: int = 10,
        epochs: int = 1,
        class_order: int | None = None,
        merged: bool = False,
    ) -> None:
        if tasks < 1 or data.n_classes % tasks:
            divisors = [n for n in range(1, data.n_classes + 1) if data.n_classes % n == 0]
            raise UsageError(
                f"{tasks} tasks do not divide the {data.n_classes} classes of {data.name}; it can be "
                + ", ".join(map(str, divisors))
            )
        self.data, self.tasks, self.batch, self.epochs = data, tasks, batch, epochs
        self.n_classes = data.n_classes
        self.classes_per_task = data.n_classes // tasks
        self.class_order = _class_order(data.n_classes, class_order)
        position = torch.argsort(self.class_order).to(data.train_labels.device)
        self.train_labels = position[data.train_labels]
        self.test_labels = position[data.test_labels]
        parts = 1 if merged else tasks
        self._train = [self._members(self.train_labels, part, self.n_classes // parts) for part in range(parts)]
        self._test = [self._members(self.test_labels, task, self.classes_per_task) for task in range(tasks)]
        smallest = min(len(members) for members in self._train)
        if smallest < batch:
            raise UsageError(f"a batch of {batch} is larger than the smallest task ({smallest} images); lower --batch")

    @staticmethod
    def _members(labels: Tensor, part: int, size: int) -> Tensor:
        return ((labels >= part * size) & (labels < (part + 1) * size)).nonzero().squeeze(1)

    @property
    def schedule(self) -> tuple[int, ...]:
        """Batches in each training task; runs with equal schedules can be trained side by side."""
        return tuple(self.epochs * (len(members) // self.batch) for members in self._train)

    def order(self, task: int, generator: torch.Generator, epochs: int | None = None) -> Tensor:
        """The batches of a task as rows of indices: shuffled anew each epoch, the incomplete last batch left out."""
        members = self._train[task]
        whole = len(members) // self.batch * self.batch
        passes = [
            members[torch.randperm(len(members), generator=generator, device=members.device)[:whole]]
            for _ in range(epochs or self.epochs)
        ]
        return torch.cat(passes).view(-1, self.batch)

    def train(self, task: int) -> tuple[Tensor, Tensor]:
        """Training pixels and labels of one task, in the order of the data set."""
        members = self._train[task]
        return self.data.train_images[members], self.train_labels[members]

    def test(self, task: int) -> tuple[Tensor, Tensor]:
        """Test pixels and labels of one task."""
        members = self._test[task]
        return self.data.test_images[members], self.test_labels[members]


def _class_order(n_classes: int, seed: int | None) -> Tensor:
    """Original class at each position: natural, or a permutation fixed by the seed."""
    if seed is None:
        return torch.arange(n_classes)
    return torch.randperm(n_classes, generator=torch.Generator().manual_seed(seed))
