"""What every stream is: labeled images in an order, which is cut into tasks or parts, and what it is tested on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from cler.config.registry import STREAMS
from cler.config.schema import NoOptions
from cler.data.images import ImageData
from cler.errors import UsageError
from cler.streams.tasks import Tasks, sizes_of


class Batch(NamedTuple):
    """One batch of the stream."""

    pixels: Tensor
    """Raw images as stored, uint8 (N, C, H, W)."""
    images: Tensor
    """The same images augmented and normalized."""
    labels: Tensor
    """Class numbers from 0, int64 (N,); which task a class comes in is in `Tasks`."""


class Examples(NamedTuple):
    """Some labeled images of a dataset, which are read when they are asked for."""

    images: Tensor
    """All images of which these are some."""
    members: Tensor
    """Which ones, (N,)."""
    labels: Tensor
    """Class numbers from 0, int64 (N,)."""
    shown: Callable[[Tensor], Tensor] = lambda pixels: pixels
    """How the stream shows them."""

    @property
    def pixels(self) -> Tensor:
        """All of them, uint8 (N, C, H, W)."""
        return self.shown(self.images[self.members])

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All of them, so many at a time."""
        for members in self.members.split(size):
            yield self.shown(self.images[members])


class Plan(NamedTuple):
    """What comes when, in tensors of main memory."""

    class_order: Tensor
    """The class of the dataset at each class number of the stream, (C,)."""
    of_class: Tensor
    """The task in which each class is tested, by its number in the stream, (C,)."""
    parts: list[Tensor]
    """The training images of each task that runs are tested on; in a stream without boundaries, all of them in the
    order in which they come, in as many parts."""


class Stream:
    """Splits the classes of `data` into tasks and orders the training images of each; subclasses say how, in `plan`.

    `tasks` is the number of equal tasks, or the number of classes of each, as "5+5+10" or (5, 5, 10). Labels are
    renumbered in the order in which classes come: the first task has the first class numbers. `merged` gives Joint's
    stream: one task to train on that holds every image, and the same tasks to be tested on. A share `validate` of the
    training images of each class is held out: the same ones for every seed, never trained on.

    A stream without boundaries is one order of batches from its beginning to its end. It is cut into parts of equal
    length, after each of which a run is evaluated; the method is not told of them.
    """

    name: ClassVar[str]
    """What the stream is called in settings and on the command line."""
    summary: ClassVar[str] = ""
    """What it is, in one line."""
    revision: ClassVar[int] = 1
    """Raised by hand when its runs come out differently."""
    Options: ClassVar[type] = NoOptions
    """A frozen dataclass of the settings that only this stream has."""
    boundaries: ClassVar[bool] = True
    """Whether it says where tasks begin and end."""
    disjoint: ClassVar[bool] = True
    """Whether each class comes in one task only."""
    own_seed: ClassVar[bool] = False
    """Whether it is drawn by the seed of its run, unless `class_order` is another."""

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
        options: Any = None,
    ) -> None:
        self.data, self.batch, self.epochs = data, batch, epochs
        self.n_classes = data.n_classes
        self.options = self.Options() if options is None else options
        self.merged = merged
        if epochs > 1 and not self.tells_tasks:
            raise UsageError(f"must be 1 in a stream without tasks, which {self.name} is, not {epochs}", "epochs")
        device, labels = data.train_labels.device, data.train_labels.cpu()
        held_out = _held_out(labels, self.n_classes, validate)
        self.validates = validate > 0
        images = (~held_out).nonzero().squeeze(1)
        plan = self.plan(labels, images, tasks, class_order)
        self._check_kinds(plan)
        self.class_order = plan.class_order
        self.tasks = Tasks(plan.of_class.to(device))
        """Which task each class comes in, by its new number."""
        self._check_plan(plan, images)
        position = torch.argsort(self.class_order).to(device)
        self.train_labels = position[data.train_labels]
        self.test_labels = position[data.test_labels]
        self._train = [part.to(device) for part in plan.parts]
        self._held_out = self.held_out_parts(held_out.nonzero().squeeze(1).to(device))
        self._check_held_out(validate)
        self._test = members_of(self.test_labels, self.tasks)
        self._check_test()
        if merged:
            self._train = [torch.cat(self._train).sort().values]
        self._check_lengths()
        if not self.tells_tasks:
            self._train = self._equal_parts()

    @classmethod
    def usual_tasks(cls, options: Mapping[str, Any]) -> int | None:
        """The number of tasks if none is given, by the stream's own settings; None: as many as the dataset says."""
        return None

    def plan(self, labels: Tensor, images: Tensor, tasks: int | str | Sequence[int], class_order: int | None) -> Plan:
        """What comes when of the `images` to train on, which are numbers in the dataset; `labels` are the dataset's.

        Without a `class_order`, the seed of a permutation, classes come in their natural order.
        """
        order = order_of_classes(self.n_classes, class_order)
        split = Tasks.of_sizes(sizes_of(tasks, self.n_classes))
        of_image = split.of_class[order.argsort()[labels[images]]]
        return Plan(order, split.of_class, [images[of_image == task] for task in range(split.number)])

    def _check_kinds(self, plan: Any) -> None:
        """Refuse a plan that is not of tensors of numbers."""
        tensors = [plan.class_order, plan.of_class, *plan.parts] if isinstance(plan, Plan) else [None]
        if not all(isinstance(each, Tensor) and each.dtype == torch.int64 for each in tensors):
            raise UsageError(
                f"plan of the stream {self.name} has to give a Plan(class_order, of_class, parts) of int64 tensors; "
                "each of its parts has the numbers of images, as mask.nonzero().squeeze(1) gives those of a mask"
            )

    def _check_plan(self, plan: Plan, images: Tensor) -> None:
        """Refuse a plan that a run would fail with, or that trains on what is held out."""
        parts, tasks = len(plan.parts), self.n_tasks
        if parts != tasks:
            raise UsageError(
                f"the stream {self.name} plans {parts} parts and is tested in {tasks} tasks: a run is tested on one "
                "more task after each part, so there have to be as many parts as tasks"
            )
        if not torch.isin(torch.cat(plan.parts), images).all():
            raise UsageError(f"the stream {self.name} plans images to train on that are not among those it was given")
        task_of_image = plan.of_class[plan.class_order.argsort()[self.data.train_labels.cpu()]]
        if self.disjoint and any((task_of_image[part] != task).any() for task, part in enumerate(plan.parts)):
            raise UsageError(
                f"the stream {self.name} has images of a class in other tasks than its own: write disjoint = False in "
                "the class"
            )

    def held_out_parts(self, images: Tensor) -> list[Tensor]:
        """The images that are held out, by the task that they are tested with."""
        of_image = self.tasks.of_class[self.train_labels[images]]
        return [images[of_image == task] for task in range(self.tasks.number)]

    def _check_held_out(self, share: float) -> None:
        """Refuse a share of which a task gets nothing: where tasks are not of classes, each class may be elsewhere."""
        for task, members in enumerate(self._held_out):
            if share and not len(members):
                raise UsageError(f"{share} holds out no image of task {task + 1}: hold out a larger share", "validate")

    def _check_test(self) -> None:
        """Refuse a task that nothing could be measured on."""
        for task, members in enumerate(self._test):
            if not len(members):
                classes = [self.data.classes[number] for number in self.class_order[self.tasks.present(task).cpu()]]
                raise UsageError(
                    f"{self.data.name}: task {task + 1} has no images to test on; give its classes some "
                    f"({', '.join(classes[:3])}{', …' * (len(classes) > 3)}), or put them in a task with others"
                )

    def _check_lengths(self) -> None:
        """Refuse a task without images to train on, or with too few for a batch; without tasks, all of them count."""
        lengths = list(map(len, self._train))
        smallest = min(lengths) if self.tells_tasks else sum(lengths) // len(lengths)
        if not smallest:
            raise UsageError(
                f"{self.data.name}: task {lengths.index(0) + 1} has no images to train on; give its classes some, or "
                "put them in a task with others"
            )
        if smallest < self.batch:
            raise UsageError(f"must be at most {smallest}, the images of the smallest task, not {self.batch}", "batch")

    def _equal_parts(self) -> list[Tensor]:
        """The whole stream, its incomplete last batch left out, in parts of equally many batches, or one more."""
        joined = torch.cat(self._train)
        rows = joined[: len(joined) // self.batch * self.batch].view(-1, self.batch)
        return [part.flatten() for part in rows.tensor_split(len(self._train))]

    @property
    def n_tasks(self) -> int:
        """How many tasks a run is tested on."""
        return self.tasks.number

    @property
    def tells_tasks(self) -> bool:
        """Whether the method is told where tasks begin and end; Joint has a single one."""
        return self.boundaries or self.merged

    @property
    def schedule(self) -> tuple[int, ...]:
        """Batches in each training task; runs with equal schedules can be trained side by side."""
        return tuple(self.epochs * (len(members) // self.batch) for members in self._train)

    @property
    def left_out(self) -> int:
        """Training images at the ends of tasks that do not fill a batch: in each pass, so many are not trained on."""
        return sum(len(members) % self.batch for members in self._train)

    def order(self, task: int, generator: torch.Generator, epochs: int | None = None) -> Tensor:
        """The batches of a task as rows of indices: shuffled again in each epoch, the incomplete last batch left out.

        In a stream without boundaries they are already in their order, and nothing is drawn.
        """
        members = self._train[task]
        if not self.tells_tasks:
            return members.view(-1, self.batch)
        whole = len(members) // self.batch * self.batch
        passes = [
            members[torch.randperm(len(members), generator=generator, device=members.device)[:whole]]
            for _ in range(epochs or self.epochs)
        ]
        return torch.cat(passes).view(-1, self.batch)

    def train(self, task: int) -> Examples:
        """Training images of one task, in the order of the dataset, or of a stream without boundaries."""
        return self._of_training(self._train[task])

    def test(self, task: int) -> Examples:
        """Test images of one task."""
        return self._of_test(self._test[task])

    def test_of_met(self, task: int, step: int) -> Examples | None:
        """Test images of the classes met by a step of a task; None where tasks tell which these are."""
        if self.tells_tasks:
            return None
        came = torch.cat([*self._train[:task], self._train[task][: step * self.batch]])
        return self._of_test(torch.isin(self.test_labels, self.train_labels[came].unique()).nonzero().squeeze(1))

    def held_out(self, task: int) -> Examples:
        """The training images of one task that are held out."""
        return self._of_training(self._held_out[task])

    def _of_training(self, members: Tensor) -> Examples:
        return Examples(self.data.train_images, members, self.train_labels[members])

    def _of_test(self, members: Tensor) -> Examples:
        return Examples(self.data.test_images, members, self.test_labels[members])


def _held_out(labels: Tensor, n_classes: int, share: float) -> Tensor:
    """Which images are held out: a share of each class, at least one where there is any share."""
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    if share:
        draws = torch.rand(len(labels), generator=torch.Generator().manual_seed(0))
        for number in range(n_classes):
            members = (labels == number).nonzero().squeeze(1)
            count = max(1, round(share * len(members)))
            if count >= len(members):
                raise UsageError(f"{share} leaves no image to train on of a class with {len(members)}", "validate")
            held_out[members[draws[members].argsort()[:count]]] = True
    return held_out


def members_of(labels: Tensor, tasks: Tasks) -> list[Tensor]:
    """Which images each task has, by their labels."""
    of_image = tasks.of_class[labels]
    return [(of_image == task).nonzero().squeeze(1) for task in range(tasks.number)]


def order_of_classes(n_classes: int, seed: int | None) -> Tensor:
    """Original class at each position: natural, or a permutation fixed by the seed."""
    if seed is None:
        return torch.arange(n_classes)
    return torch.randperm(n_classes, generator=torch.Generator().manual_seed(seed))


def by_appearance(labels: Tensor, n_classes: int) -> Tensor:
    """The classes in the order in which these labels first have them; those that never come are last."""
    first = torch.full((n_classes,), len(labels)).scatter_reduce(0, labels, torch.arange(len(labels)), "amin")
    return first.argsort(stable=True)


register = STREAMS.add
"""Registers a stream for the command line and the tests."""
