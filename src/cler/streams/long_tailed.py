"""Long-tailed: class-incremental, with many images of some classes and few of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cler.config.schema import setting
from cler.streams.base import Plan, Stream, register

TAILS = ("ordered", "shuffled")


@dataclass(frozen=True)
class LongTailedOptions:
    """Settings that only this stream has."""

    imbalance: float = setting(100.0, "Images of the largest class per image of the smallest.", least=1, most=1e6)
    tail: str = setting(
        "ordered", "Which classes have few: those that come last (ordered), or any (shuffled).", choices=TAILS
    )


def long_tail(counts: Tensor, imbalance: float, rank: Tensor) -> Tensor:
    """How many images each class keeps: of the class of rank r among C, n · imbalance^(−r/(C−1)), at least one.

    n are the images that it has.
    """
    exponent = rank.double() / max(1, len(counts) - 1)
    return (counts * imbalance**-exponent).round().long().clamp(min=1).minimum(counts)


@register
class LongTailed(Stream):
    """Class-incremental with a number of images that falls exponentially from class to class (Liu et al., 2022).

    The class of rank r among C keeps n · imbalance^(−r/(C−1)) of its n images, the same ones for every seed; the others
    are not in the stream. In an ordered tail the rank is the place at which the class comes, so that tasks become
    shorter and shorter; in a shuffled one it is a permutation that is the same for every seed. Test images stay as they
    are.
    """

    name = "long-tailed"
    summary = "tasks of new classes, with many images of some and few of others"
    Options = LongTailedOptions

    def plan(self, labels: Tensor, images: Tensor, tasks: int | str | Sequence[int], class_order: int | None) -> Plan:
        """Class-incremental, of the images that are kept."""
        whole = super().plan(labels, images, tasks, class_order)
        generator = torch.Generator().manual_seed(0)
        rank = whole.class_order.argsort()
        if self.options.tail == "shuffled":
            rank = torch.randperm(self.n_classes, generator=generator)
        counts = labels[images].bincount(minlength=self.n_classes)
        kept = long_tail(counts, self.options.imbalance, rank)
        draws = torch.rand(len(labels), generator=generator)
        keep = torch.zeros(len(labels), dtype=torch.bool)
        for number in range(self.n_classes):
            members = images[labels[images] == number]
            keep[members[draws[members].argsort()[: kept[number]]]] = True
        return whole._replace(parts=[part[keep[part]] for part in whole.parts])
