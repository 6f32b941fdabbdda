"""Domain-incremental: all classes in every task, each time as another domain shows them: a transform, or a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor

from cler.config.registry import DOMAINS
from cler.config.schema import setting
from cler.data.images import ImageData
from cler.errors import UsageError
from cler.streams.base import Examples, Plan, Stream, order_of_classes, register

Transform = Callable[[Tensor], Tensor]
"""From uint8 images (N, C, H, W) to as many of the same size."""
_made: WeakKeyDictionary[ImageData, WeakValueDictionary[tuple[Transform, ...], ImageData]] = WeakKeyDictionary()
"""What runs train on, by the data and the transforms that it was made of."""


@dataclass(frozen=True)
class Domains:
    """Transforms that make the domains of a stream, by a name."""

    name: str
    transforms: tuple[Transform, ...]

    @property
    def given(self) -> Transform:
        """The transform that another process has to import; one that it cannot, if there is any."""
        return next((each for each in self.transforms if "<" in each.__qualname__), self.transforms[0])


def domains(name: str, *transforms: Transform) -> Domains:
    """Make transforms known as the domains of a stream, one for each task.

        cler.streams.domains("negatives", lambda images: images, lambda images: 255 - images)
        cler.train(stream="domain-incremental", domains="negatives")

    Each takes uint8 images (N, C, H, W), on the device where they are trained on, and gives back as many. It is given
    some of the images at a time, and shows one alike whatever is beside it. Worker processes know domains that a module
    which they can import defines; others are trained in the caller's process.
    """
    if not transforms or not all(map(callable, transforms)):
        raise UsageError(f"the domains {name} need functions, one for each task")
    made = Domains(name, transforms)
    DOMAINS.register(name, made)
    return made


def as_it_is(images: Tensor) -> Tensor:
    """The images themselves."""
    return images


def quarter_turn(images: Tensor) -> Tensor:
    """Images turned counterclockwise by 90 degrees."""
    return images.rot90(1, (2, 3))


def half_turn(images: Tensor) -> Tensor:
    """Images turned by 180 degrees."""
    return images.rot90(2, (2, 3))


def three_quarter_turn(images: Tensor) -> Tensor:
    """Images turned counterclockwise by 270 degrees."""
    return images.rot90(3, (2, 3))


domains("rotations", as_it_is, quarter_turn, half_turn, three_quarter_turn)
FOLDERS = domains("folders", as_it_is)
"""The domains that the images of a dataset come from, of which each is as it is."""


@dataclass(frozen=True)
class DomainIncrementalOptions:
    """Settings that only this stream has."""

    domains: str = setting(
        "rotations",
        "Transforms of the images, one for each task; folders are the domains of the dataset.",
        choices=DOMAINS,
    )


@register
class DomainIncremental(Stream):
    """All classes come in every task, shown by its domain: a transform of the images, or where they come from.

    Each training image comes in one task, which is drawn, the same one for every seed; tasks are of equal size, or one
    image more. The first `tasks` of the domains take part. Each task is tested on all test images, as its domain shows
    them. With the domains `folders`, a task has the training and the test images of a domain of the dataset, in the
    order of their names. As a task says nothing about an image's class, task-incremental accuracy is class-incremental
    accuracy. Where tasks begin is told to the method.
    """

    name = "domain-incremental"
    summary = "all classes in every task, under a different transform each time"
    Options = DomainIncrementalOptions
    disjoint = False

    @classmethod
    def usual_tasks(cls, options: Mapping[str, Any]) -> int | None:
        """A task for each transform of the domains; None for folders, of which the dataset knows how many there are."""
        name = options.get("domains", DomainIncrementalOptions.domains)
        return None if name == FOLDERS.name else len(DOMAINS.find(name).transforms)

    def plan(self, labels: Tensor, images: Tensor, tasks: int | str | Sequence[int], class_order: int | None) -> Plan:
        """Every task has a share of the images, in its domain, or those of its folder."""
        in_folders = self.options.domains == FOLDERS.name
        if in_folders and not self.data.domains:
            raise UsageError(f"folders are those of a dataset domains:PATH, and {self.data.name} has none", "domains")
        transforms = DOMAINS.find(self.options.domains).transforms
        if in_folders:
            transforms *= len(self.data.domains)
        if not isinstance(tasks, int) or not 1 <= tasks <= len(transforms):
            raise UsageError(
                f"must be a number from 1 to {len(transforms)}, of the domains {self.options.domains}, not {tasks}",
                "tasks",
            )
        self.transforms: tuple[Transform, ...] = transforms[:tasks]
        if in_folders:
            self._take_domains_of_data()
        else:
            shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
            self.of_image = torch.empty_like(shuffled).index_copy_(0, shuffled, torch.arange(len(labels)) % tasks)
            self.tested = [torch.arange(len(self.data.test_labels))] * tasks
            self.data = self._data_as_shown()
        order = order_of_classes(self.n_classes, class_order)
        parts = [images[self.of_image[images] == task] for task in range(tasks)]
        return Plan(order, torch.zeros(self.n_classes, dtype=torch.int64), parts)

    def _take_domains_of_data(self) -> None:
        """Each task has the images that come from its domain."""
        assert self.data.train_domains is not None
        assert self.data.test_domains is not None
        self.of_image = self.data.train_domains
        of_test = self.data.test_domains
        self.tested = [(of_test == task).nonzero().squeeze(1) for task in range(len(self.transforms))]
        for name, members in zip(self.data.domains, self.tested, strict=False):
            if not len(members):
                raise UsageError(f"{self.data.name}: the domain {name} has no images to test on")

    def _data_as_shown(self) -> ImageData:
        """The data with training images in their domains, which runs side by side share."""
        data, of_image = self.data, self.of_image.to(self.data.train_images.device)

        def shown(indices: Tensor) -> Tensor:
            pixels = data.train_images[indices]
            for task in range(len(self.transforms)):
                members = (of_image[indices] == task).nonzero().squeeze(1)
                if len(members):
                    pixels[members] = self.shown(task, pixels[members])
            return pixels

        in_use = _made.setdefault(data, WeakValueDictionary())
        made = in_use.get(self.transforms) or data.with_training_images(shown)
        in_use[self.transforms] = made
        return made

    def shown(self, task: int, images: Tensor) -> Tensor:
        """Images in the domain of a task."""
        made = self.transforms[task](images)
        if not isinstance(made, Tensor) or made.shape != images.shape or made.dtype != images.dtype:
            kind = f"{made.dtype} {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
            raise UsageError(
                f"{self.options.domains}: the transform of task {task + 1} gives back {kind}, not uint8 images of the "
                f"size {tuple(images.shape)} that it was given",
                "domains",
            )
        return made

    @property
    def n_tasks(self) -> int:
        """How many tasks there are: one for each domain."""
        return len(self.transforms)

    def held_out_parts(self, images: Tensor) -> list[Tensor]:
        """The images that are held out, by domain."""
        of_image = self.of_image.to(images.device)[images]
        return [images[of_image == task] for task in range(self.n_tasks)]

    def test(self, task: int) -> Examples:
        """The test images in the domain of a task: all of them, or those that come from it."""
        members = self.tested[task].to(self.test_labels.device)
        return self._of_test(members)._replace(shown=partial(self.shown, task))
