"""Which task of a stream a class comes in, as tensors that methods select logits by."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cler.errors import UsageError


class Tasks:
    """The task of each class, and the classes of each task.

    Methods select by the index tensors `past`, `present`, `seen` and `to_come` instead of by ranges of class numbers,
    so that it does not matter to them how large tasks are and which classes they have. All four are slices of
    `ordered`, in which `seen` is `past` and then `present`; how long they are is known to the host. All tensors are
    made once, in `__init__`, on the device of `of_class`.
    """

    def __init__(self, of_class: Tensor) -> None:
        self.of_class = of_class
        """The task in which each class comes, counted from 0, int64 (C,)."""
        sizes = of_class.bincount().tolist()
        if of_class.dim() != 1 or not sizes or 0 in sizes:
            raise ValueError("every task needs a class, and every class a task")
        self.sizes: tuple[int, ...] = tuple(sizes)
        """How many classes each task has."""
        self.ordered = of_class.argsort(stable=True)
        """All classes in the order of their tasks, those of one task in the order of their numbers, int64 (C,)."""
        self.rank = self.ordered.argsort()
        """Index of each class in `seen` of its own task, and so of every later one, int64 (C,)."""
        starts = torch.tensor([sum(sizes[:task]) for task in range(len(sizes))], device=of_class.device)
        self.position = self.rank - starts[of_class]
        """Index of each class in `present` of its own task, int64 (C,)."""

    @classmethod
    def of_sizes(cls, sizes: Sequence[int], device: torch.device | str = "cpu") -> Tasks:
        """Tasks of so many classes each, in the order of the class numbers."""
        return cls(torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).to(device))

    @property
    def number(self) -> int:
        """How many tasks there are."""
        return len(self.sizes)

    @property
    def n_classes(self) -> int:
        """How many classes all tasks have together."""
        return len(self.of_class)

    def past(self, task: int) -> Tensor:
        """The classes of all tasks before this one, int64."""
        return self.ordered[: sum(self.sizes[:task])]

    def present(self, task: int) -> Tensor:
        """The classes of this task, int64."""
        return self.ordered[sum(self.sizes[:task]) : sum(self.sizes[: task + 1])]

    def seen(self, task: int) -> Tensor:
        """The classes of all tasks before this one, then those of this task, int64."""
        return self.ordered[: sum(self.sizes[: task + 1])]

    def to_come(self, task: int) -> Tensor:
        """The classes of all tasks after this one, int64."""
        return self.ordered[sum(self.sizes[: task + 1]) :]

    def not_past(self, task: int) -> Tensor:
        """The classes of this task, then those of all tasks after it, int64."""
        return self.ordered[sum(self.sizes[:task]) :]


def sizes_of(tasks: int | str | Sequence[int], n_classes: int) -> tuple[int, ...]:
    """The number of classes of each task; `tasks` is how many equal ones there are, or sizes: "5+5+10", (5, 5, 10)."""
    written = str(tasks) if isinstance(tasks, int | str) else "+".join(map(str, tasks))
    numbers = [int(each) if each.isdecimal() else 0 for each in written.split("+")]
    if len(numbers) > 1 or not isinstance(tasks, int | str):
        if min(numbers) < 1 or sum(numbers) != n_classes:
            raise UsageError(
                f"must be numbers of classes from 1 that add up to {n_classes}, one for each task, not {written}",
                "tasks",
            )
        return tuple(numbers)
    (number,) = numbers
    if number < 1 or n_classes % number:
        equal = ", ".join(str(each) for each in range(1, n_classes + 1) if n_classes % each == 0)
        raise UsageError(
            f"must be a number that divides the {n_classes} classes ({equal}), or the number of classes of each task, "
            f"joined by +, as {n_classes - 1}+1; {written or 'nothing'} does not divide them",
            "tasks",
        )
    return (n_classes // number,) * number
