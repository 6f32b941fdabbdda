"""A labeled dataset as a class-incremental stream: tasks of new classes, each seen in small batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cler.data.images import ImageData
from cler.errors import UsageError
from cler.streams.tasks import Tasks, sizes_of


class Stream:
    """Splits the classes of `data` into tasks and orders the training images of each.

    `tasks` is the number of equal tasks, or the number of classes of each, as "5+5+10" or (5, 5, 10). Labels are
    renumbered in the order in which classes come: the first task has the first class numbers. `merged` gives Joint's
    stream: one task to train on that holds every class, and the same tasks to be tested on. A share `validate` of the
    training images of each class is held out: the same ones for every seed, never trained on.
    """

    def __init__(
        self,
        data: ImageData,
        tasks: int | str | Sequence[int],
        *,
        batch: int = 10,
        epochs: int = 1,
        class_order: int | None = None,
        merged: bool = False,
        validate: float = 0.0,
    ) -> None:
        self.data, self.batch, self.epochs = data, batch, epochs
        self.n_classes = data.n_classes
        device = data.train_labels.device
        self.tasks = Tasks.of_sizes(sizes_of(tasks, self.n_classes), device)
        """Which task each class comes in, by its new number."""
        self.class_order = _class_order(data.n_classes, class_order)
        position = torch.argsort(self.class_order).to(device)
        self.train_labels = position[data.train_labels]
        self.test_labels = position[data.test_labels]
        trained = Tasks.of_sizes([self.n_classes], device) if merged else self.tasks
        held_out = _held_out(self.train_labels, self.n_classes, validate)
        self._train = [members[~held_out[members]] for members in _members(self.train_labels, trained)]
        self._held_out = [members[held_out[members]] for members in _members(self.train_labels, self.tasks)]
        self.validates = validate > 0
        self._test = _members(self.test_labels, self.tasks)
        smallest = min(len(members) for members in self._train)
        if smallest < batch:
            raise UsageError(f"must be at most {smallest}, the images of the smallest task, not {batch}", "batch")

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
        """Training pixels and labels of one task, in the order of the dataset."""
        members = self._train[task]
        return self.data.train_images[members], self.train_labels[members]

    def test(self, task: int) -> tuple[Tensor, Tensor]:
        """Test pixels and labels of one task."""
        members = self._test[task]
        return self.data.test_images[members], self.test_labels[members]

    def held_out(self, task: int) -> tuple[Tensor, Tensor]:
        """Pixels and labels of the training images of one task that are held out."""
        members = self._held_out[task]
        return self.data.train_images[members], self.train_labels[members]


def _held_out(labels: Tensor, n_classes: int, share: float) -> Tensor:
    """Which images are held out: a share of each class, at least one where there is any share."""
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    if share:
        draws = torch.rand(len(labels), generator=torch.Generator().manual_seed(0))
        for number in range(n_classes):
            members = (labels.cpu() == number).nonzero().squeeze(1)
            count = max(1, round(share * len(members)))
            if count >= len(members):
                raise UsageError(f"{share} leaves no image to train on of a class with {len(members)}", "validate")
            held_out[members[draws[members].argsort()[:count]]] = True
    return held_out.to(labels.device)


def _members(labels: Tensor, tasks: Tasks) -> list[Tensor]:
    """Which images each task has, by their labels."""
    of_image = tasks.of_class[labels]
    return [(of_image == task).nonzero().squeeze(1) for task in range(tasks.number)]


def _class_order(n_classes: int, seed: int | None) -> Tensor:
    """Original class at each position: natural, or a permutation fixed by the seed."""
    if seed is None:
        return torch.arange(n_classes)
    return torch.randperm(n_classes, generator=torch.Generator().manual_seed(seed))
