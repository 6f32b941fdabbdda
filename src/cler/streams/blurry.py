"""Blurry streams, in which classes come and go: i-Blurry (Koh et al., 2022) and Si-Blurry (Moon et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cler.config.schema import setting
from cler.errors import UsageError
from cler.streams.base import Plan, Stream, by_appearance, register
from cler.streams.tasks import sizes_of

HOMES = ("equal", "random")


@dataclass(frozen=True)
class BlurryOptions:
    """Settings that only this stream has."""

    disjoint: int = setting(50, "Percent of the classes that come in one task only.", least=0, most=100)
    blur: int = setting(10, "Percent of the other classes' images that are spread over all tasks.", least=0, most=100)
    homes: str = setting(
        "equal", "Classes of each task: equally many (equal, i-Blurry), or any number (random, Si-Blurry).",
        choices=HOMES,
    )  # fmt: skip


class Drawn:
    """Random numbers of a seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def permutation(self, count: int) -> Tensor:
        """The numbers below `count` in a random order."""
        return torch.randperm(count, generator=self.generator)

    def cuts(self, below: int, count: int) -> Tensor:
        """So many numbers, uniform below another one."""
        return torch.randint(below, (count,), generator=self.generator)


class Blurred(NamedTuple):
    """What comes when in a blurry stream."""

    class_order: Tensor
    """The classes that are in the stream, disjoint ones first."""
    home: Tensor
    """The task in which each class is at home; -1 for one that is not in the stream, (C,)."""
    is_blurry: Tensor
    """Which classes may come in other tasks too, (C,)."""
    tasks: list[Tensor]
    """The samples of each task, in the order in which they come."""


def blurred(
    targets: Tensor, n_classes: int, n_tasks: int, *, disjoint: int, blur: int, random: bool, draws: Drawn
) -> Blurred:
    """The tasks of a blurry stream of samples with these classes, as the authors of Si-Blurry draw them.

    The draws are, in this order: the classes; in random mode where the disjoint classes, the blurry ones and the pool
    are cut; the pool; each task.
    """
    order = draws.permutation(n_classes)
    n_disjoint = n_classes * disjoint // 100 // n_tasks * n_tasks
    n_blurry = (n_classes - n_disjoint) // n_tasks * n_tasks
    order = order[: n_disjoint + n_blurry]
    runs = [_cut(part, n_tasks, random, draws) for part in (order[:n_disjoint], order[n_disjoint:])]
    home = torch.full((n_classes,), -1)
    for task, classes in enumerate(zip(*runs, strict=True)):
        home[torch.cat(classes)] = task
    own, loose = ([torch.isin(targets, run).nonzero().squeeze(1) for run in kind] for kind in runs)
    total = sum(map(len, loose))
    if random:
        pool_size = total * blur // 100
        amounts = [len(part) for part in _cut(torch.arange(pool_size), n_tasks, random, draws)]
    else:
        amounts = [len(samples) * blur // 100 for samples in loose]
    pool = torch.cat([samples[:amount] for samples, amount in zip(loose, amounts, strict=True)])
    pool = pool[draws.permutation(len(pool))]
    dealt = amounts if random else [len(pool) // n_tasks] * n_tasks
    ends = torch.tensor([0, *dealt]).cumsum(0).tolist()
    tasks = []
    for task, amount in enumerate(amounts):
        samples = torch.cat([own[task], loose[task][amount:], pool[ends[task] : ends[task + 1]]])
        tasks.append(samples[draws.permutation(len(samples))])
    is_blurry = torch.zeros(n_classes, dtype=torch.bool).index_fill(0, order[n_disjoint:], True)
    return Blurred(order, home, is_blurry, tasks)


def _cut(items: Tensor, count: int, random: bool, draws: Drawn) -> list[Tensor]:
    """Cut into so many runs: of equal length, or at places that are drawn if there is anything to cut."""
    if not random or not len(items):
        return list(items.tensor_split(count))
    return list(items.tensor_split(draws.cuts(len(items), count - 1).sort().values))


@register
class Blurry(Stream):
    """Some classes come in one task only, the others also in every other one, a little; nobody says where tasks begin.

    Each class has a task in which it is at home. A share `disjoint` of the classes comes only there; a share `blur` of
    the images of all others goes into a pool and is dealt out to all tasks. With `homes` equal, all tasks have as many
    classes (i-Blurry; in the field `disjoint` is N and `blur` M); with random ones any number (Si-Blurry). Everything
    is drawn by the run's seed, or that of `class_order`. Which images go into the pool is drawn too: in the authors'
    program they are the first of a task in the order of the dataset, which here is shuffled before.

    Batches know no boundaries, and the method is told of none. Classes are numbered in the order in which they first
    come. The stream is cut into `tasks` parts of equal length, after each of which a run is evaluated, and the classes,
    in the order of their homes, into as many groups of equal size: the row after part t has the groups 0 to t. With
    equal homes these are the tasks of i-Blurry and their classes. So seeds train side by side, however long the tasks
    of each are. Task-incremental accuracy is that among the classes of an image's group.
    """

    name = "blurry"
    summary = "classes that come and go, without boundaries: i-Blurry and Si-Blurry"
    Options = BlurryOptions
    boundaries = False
    disjoint = False
    own_seed = True

    def plan(self, labels: Tensor, images: Tensor, tasks: int | str | Sequence[int], class_order: int | None) -> Plan:
        """One order of all images, from task to task."""
        if not isinstance(tasks, int):
            raise UsageError(f"must be a number in a blurry stream, which deals out classes, not {tasks}", "tasks")
        sizes, seed = sizes_of(tasks, self.n_classes), class_order or 0
        images = images[Drawn(seed + (1 << 32)).permutation(len(images))]
        found = blurred(
            labels[images],
            self.n_classes,
            len(sizes),
            disjoint=self.options.disjoint,
            blur=self.options.blur,
            random=self.options.homes == "random",
            draws=Drawn(seed),
        )
        parts = [images[samples] for samples in found.tasks]
        by_home = found.class_order[found.home[found.class_order].argsort(stable=True)]
        group = torch.empty_like(by_home).index_copy_(0, by_home, torch.arange(self.n_classes) // sizes[0])
        order = by_appearance(labels[torch.cat(parts)], self.n_classes)
        return Plan(order, group[order], parts)
