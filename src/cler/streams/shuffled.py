"""Shuffled: all images in one random order, the stream in which nothing has to be remembered."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cler.streams.base import Plan, Stream, by_appearance, register
from cler.streams.tasks import Tasks, sizes_of


@register
class Shuffled(Stream):
    """All training images in one random order, drawn by the run's seed or that of `class_order`, without boundaries.

    It is a reference for streams whose classes come one after the other. Classes are numbered in the order in which
    they first come. Tests are of groups of classes in their natural order, as many as `tasks` says: the row after part
    t has the groups 0 to t, as in a class-incremental stream, although all classes come from the beginning.
    """

    name = "shuffled"
    summary = "all images in one random order, without tasks"
    boundaries = False
    disjoint = False
    own_seed = True

    def plan(self, labels: Tensor, images: Tensor, tasks: int | str | Sequence[int], class_order: int | None) -> Plan:
        """One permutation of all images."""
        split = Tasks.of_sizes(sizes_of(tasks, self.n_classes))
        generator = torch.Generator().manual_seed(class_order or 0)
        images = images[torch.randperm(len(images), generator=generator)]
        order = by_appearance(labels[images], self.n_classes)
        return Plan(order, split.of_class[order], list(images.tensor_split(split.number)))
