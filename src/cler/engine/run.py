"""One run: a method on a stream, with its own random generator and its results so far."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from cler.data.views import Views
from cler.engine.evaluate import evaluate
from cler.engine.events import RunName
from cler.engine.losses import LossSums
from cler.engine.state import State, collect, restore
from cler.errors import UsageError
from cler.methods.base import Method
from cler.metrics import SCENARIOS, class_and_task_correct
from cler.streams import Batch, Stream
from cler.streams.base import Examples

T = TypeVar("T")
VALIDATION = "validation_"
"""Prefix of the names of accuracies on held-out training images."""
UNAIDED = "unaided_"
"""Prefix of the names of accuracies of the network itself, where a teacher answers in its place."""
Curves = dict[str, list[Any]]
"""What evaluation within tasks finds, an entry for each evaluation, by name: the `task`, the `step` of it, accuracies
on the tasks met so far (`class_il`, `task_il`), and of the stream, as `predicted` before it was learned, how many
images were right class- and task-incrementally, how many by a blind guess, and how many there were. In a stream without
boundaries `met_class_il` and `met_task_il` are the accuracy on the classes met so far. `ahead_class_il` and
`ahead_task_il` have for each task the accuracies on it and on those after it before it was learned; `tested` are the
test images of each task."""
_TENSORS = ("order", "position", "bad_step")
_WITHIN = ("predicted", "last_label")
"""Tensors that only a run has which is evaluated within its tasks."""
_NUMBERS = ("task", "taken", "seconds", "steps_done")


class Run:
    """A method on its way through a stream.

    `step` keeps the rule of `observe`: where the stream stands is a tensor too, so that a recorded step, replayed,
    takes the next batch.
    """

    def __init__(
        self,
        method: Method,
        stream: Stream,
        *,
        views: Views,
        generator: torch.Generator,
        precision: str,
        evaluate_every: int,
        name: RunName,
    ) -> None:
        self.method, self.stream, self.views, self.generator = method, stream, views, generator
        self.precision, self.name = precision, name
        self.phases = [
            method.phases(method.options, task, epoch=steps // stream.epochs, epochs=stream.epochs)
            for task, steps in enumerate(stream.schedule)
        ]
        """For each task: the number of steps of each phase."""
        self.device = stream.data.train_images.device
        self.accuracy: dict[str, list[list[float]]] = {name: [] for name in SCENARIOS}
        self.evaluate_every = evaluate_every
        """Steps between evaluations within a task; 0 for none."""
        self.curves: Curves = {}
        self.confusion: list[list[int]] | None = None
        """How many test images of each task (rows) are predicted as a class of each task (columns) at the end, in
        streams whose tasks have classes of their own."""
        self.evaluates_unaided = False
        """Whether the network itself is evaluated too after each task, where a teacher answers."""
        self.unaided_confusion: list[list[int]] | None = None
        self.seconds = 0.0
        self.steps_done = 0
        self.at_once = 1
        """How many runs, with this one, are trained side by side and share its `seconds`."""
        self.task, self.taken = 0, 0
        """How far the run has come: the task, and the steps of it that have been taken; 0 if it has not started."""
        self.failure: str | None = None
        self.losses = LossSums(self.device)
        """For display only: not part of the state, so a resumed run starts new sums."""
        self._order = torch.empty(0, dtype=torch.int64, device=self.device)
        self._position = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._bad_step = torch.full((1,), -1, dtype=torch.int64, device=self.device)
        self._predicted = torch.zeros(4, dtype=torch.int64, device=self.device)
        self._last_label = torch.full((1,), -1, dtype=torch.int64, device=self.device)
        self._bad_step_seen = self._bad_step.cpu()
        if self.device.type == "cuda":
            self._bad_step_seen = self._bad_step_seen.pin_memory()  # or copying to it would wait for the GPU

    @property
    def label(self) -> str:
        """The run's name in progress bars."""
        return self.name.label

    @property
    def schedule(self) -> tuple[int, ...]:
        """Steps in each task."""
        return tuple(sum(phases.values()) for phases in self.phases)

    @property
    def recording_key(self) -> Hashable:
        """A recorded step can be replayed for as long as this stays the same."""
        method = self.method
        teacher = method.teacher and method.teacher.recording_key(method.task)
        return method.recording_key, teacher, method.phase, self._order.shape

    @property
    def complete(self) -> bool:
        """Whether every task has been learned and evaluated."""
        return len(self.accuracy["class_il"]) == len(self.schedule)

    @property
    def running_accuracy(self) -> float | None:
        """Class-incremental accuracy, in percent, over the tasks seen, as of the last evaluation."""
        rows = self.accuracy["class_il"]
        return sum(rows[-1]) / len(rows[-1]) if rows else None

    def begin_task(self, task: int) -> None:
        """Shuffle the task's images, and begin the task and its first phase in the method."""
        epoch = self.stream.schedule[task] // self.stream.epochs
        parts = [
            self.stream.order(task, self.generator, epochs=math.ceil(steps / epoch))[:steps]
            for steps in self.phases[task].values()
        ]
        order = torch.cat(parts)
        if self._order.shape == order.shape:
            self._order.copy_(order)  # in place, for a recorded step to find
        else:
            self._order = order
        self._position.zero_()
        self.method.network.train()
        if self.stream.tells_tasks or task == 0:
            self._begin("task", task)
        self.begin_phase(next(iter(self.phases[task])))

    def begin_phase(self, phase: str) -> None:
        """The steps from here on are those of another phase."""
        self._begin("phase", phase)

    def _begin(self, kind: str, value: int | str) -> None:
        """Begin a task or a phase in the method, which has to know of it."""
        with self._between_steps():
            getattr(self.method, f"begin_{kind}")(value)
        if getattr(self.method, kind) != value:
            raise UsageError(f"begin_{kind} of {self.method.name} has to call super().begin_{kind}({kind})")

    def step(self) -> None:
        """Learn the next batch."""
        with self._autocast():
            if not self.stream.tells_tasks and self.method.task == 0 and self.method.settled:
                self._begin("task", 1)  # which means: from here on there is something to replay
            batch = self._batch(self._order.index_select(0, self._position)[0])
            if self.evaluate_every and self.method.phase == "observe":
                self._predict(batch)
            terms = self.method.learn(batch)
        finite = self.losses.add(terms).abs() < math.inf  # isfinite would take twice as many kernels
        torch.where(finite | (self._bad_step >= 0), self._bad_step, self._position, out=self._bad_step)
        self._position.add_(1)

    def _batch(self, indices: Tensor) -> Batch:
        pixels = self.stream.data.train_images[indices]
        return Batch(pixels, self.views.augmented(pixels), self.stream.train_labels[indices])

    def _batches(self, task: int) -> Iterator[Batch]:
        """The batches of a task, once each, in a new order; nothing is drawn unless they are asked for."""
        for indices in self.stream.order(task, self.generator, epochs=1):
            yield self._batch(indices)

    @torch.no_grad()
    def _predict(self, batch: Batch) -> None:
        """Count what of a batch is predicted right before it is learned, by the rule of `observe`.

        It is the network that answers, also where evaluation is by the nearest class mean.
        """
        with self.method.answering():
            logits = self.method.logits_in_passing(self.views.plain(batch.pixels))
        class_il, task_il = class_and_task_correct(logits, batch.labels, self.stream.tasks.of_class)
        right = torch.stack([class_il, task_il, batch.labels == self._last_label, torch.ones_like(class_il)])
        self._predicted.add_(right.sum(1))
        self._last_label.copy_(batch.labels[-1:])

    def check(self, task: int, *, wait: bool) -> None:
        """Check on the host whether the loss has stayed finite; a run that failed is marked.

        Without `wait`, on a GPU, the answer is as of some steps ago.
        """
        self._bad_step_seen.copy_(self._bad_step, non_blocking=not wait)
        if self.failure is None and (step := int(self._bad_step_seen)) >= 0:
            phase = self._phase_at(task, step + 1)
            advice = "a lower lr or weight" if phase == "observe" else "a lower lr, or other settings of the method"
            self.failure = f"the loss was not finite at task {task + 1}, step {step + 1}; try {advice}"

    def end_task(self, task: int) -> None:
        """Let the method finish the task, where it is told of one."""
        if not self.stream.tells_tasks:
            return
        with self._between_steps():
            self.method.end_task(task, self._batches(task))

    def evaluate(self, task: int) -> None:
        """Evaluate on every task seen so far; a run whose outputs are not numbers is marked as failed."""
        found, self.confusion = self._after_task(task)
        if not self._are_numbers(found, f"after task {task + 1}"):
            return
        if self.evaluates_unaided:
            with self.method.unaided():
                unaided, self.unaided_confusion = self._after_task(task)
            if not any(map(math.isnan, unaided["class_il"])):
                found |= {UNAIDED + name: row for name, row in unaided.items()}
        for name, row in found.items():
            self.accuracy.setdefault(name, []).append(row)
        self.task, self.taken = task + 1, 0
        if self.evaluate_every:
            self._note(task, self.schedule[task], {name: found[name] for name in SCENARIOS})
            self.look_ahead()

    def _after_task(self, task: int) -> tuple[dict[str, list[float]], list[list[int]] | None]:
        """Accuracies on every task seen so far, by name, on held-out images too if there are any; and the confusion."""
        seen, counted = self._seen(task), self._empty_confusion(task)
        found = self._evaluated(seen, confusion=counted)
        if self.stream.validates:
            held_out = self._evaluated(seen, self.stream.held_out)
            found |= {VALIDATION + name: row for name, row in held_out.items()}
        return found, None if counted is None else counted.tolist()

    @property
    def unaided(self) -> dict[str, list[list[float]]] | None:
        """Accuracies of the network itself, by name; None unless it has some of every task so far."""
        found = {name.removeprefix(UNAIDED): rows for name, rows in self.accuracy.items() if name.startswith(UNAIDED)}
        return found if len(found.get("class_il", ())) == len(self.accuracy["class_il"]) else None

    def evaluate_within(self, task: int, step: int) -> dict[str, list[float]]:
        """Evaluate between two steps of a task, where that is asked for after so many of them; changes nothing else.

        Gives the accuracies on the tasks met so far by scenario, none where nothing was evaluated.
        """
        due = self.evaluate_every and step % self.evaluate_every == 0 and step < self.schedule[task]
        if not due or self.failure is not None:
            return {}
        found = self._evaluated(self._seen(task))
        if not self._are_numbers(found, f"at task {task + 1}, step {step}"):
            return {}
        self._note(task, step, found)
        return found

    def look_ahead(self) -> None:
        """Evaluate on the tasks that have not been learned yet, where that is asked for and has not been done."""
        to_come = range(self.task, 0 if self.method.merged and self.task else self.stream.n_tasks)
        if not self.evaluate_every or len(self.curves.get("ahead_class_il", ())) > self.task or not to_come:
            return
        found = self._evaluated(to_come)
        if self._are_numbers(found, f"before task {self.task + 1}"):
            for name, row in found.items():
                self.curves.setdefault(f"ahead_{name}", []).append(row)

    def _seen(self, task: int) -> range:
        return range(self.stream.n_tasks if self.method.merged else task + 1)

    def _empty_confusion(self, task: int) -> Tensor | None:
        """Zeros to count confusions of tasks in; None but after the last task, and where tasks share classes."""
        if task + 1 < len(self.schedule) or not self.stream.disjoint:
            return None
        return torch.zeros(self.stream.n_tasks, self.stream.n_tasks, dtype=torch.int64, device=self.device)

    def _evaluated(
        self,
        tasks: Iterable[int],
        images: Callable[[int], Examples] | None = None,
        confusion: Tensor | None = None,
    ) -> dict[str, list[float]]:
        with self._autocast():
            return evaluate(self.method, self.stream, self.views, tasks, images, confusion)

    def _are_numbers(self, found: Mapping[str, Sequence[float]], when: str) -> bool:
        """Whether the outputs were numbers; otherwise the run has failed."""
        numbers = not any(map(math.isnan, found["class_il"]))
        if not numbers:
            self.failure = f"the outputs were not numbers {when}; try a lower lr or weight"
        return numbers

    def _note(self, task: int, step: int, accuracies: Mapping[str, Sequence[float]]) -> None:
        """Add an evaluation to the curves, unless none of the classes met so far has images to test on."""
        found: dict[str, Any] = {"task": task, "step": step, **accuracies}
        if (tested := self.stream.test_of_met(task, step)) is not None:
            if not len(tested.labels):
                return
            found |= {f"met_{name}": row[0] for name, row in self._evaluated([task], lambda _: tested).items()}
        for name, value in (found | {"predicted": self._predicted.tolist()}).items():
            self.curves.setdefault(name, []).append(value)
        if "tested" not in self.curves:
            self.curves["tested"] = [len(self.stream.test(each).members) for each in range(self.stream.n_tasks)]

    def state(self) -> State:
        """Everything that resuming from here needs; the tensors are the run's own, not copies."""
        state = collect(self.method)
        own = {f"run.{name}": getattr(self, f"_{name}") for name in self._tensors}
        counted = {f"run.{name}": getattr(self, name) for name in _NUMBERS}
        generator = {"run.generator": self.generator.get_state()}
        return State(state.tensors | own | generator, state.numbers | counted)

    @property
    def _tensors(self) -> tuple[str, ...]:
        return _TENSORS + _WITHIN if self.evaluate_every else _TENSORS

    def restore(self, state: State, accuracy: dict[str, list[list[float]]], curves: Curves | None = None) -> None:
        """Take over the state of another run like this one."""
        restore(self.method, State(_of_the_method(state.tensors), _of_the_method(state.numbers)))
        for name in self._tensors:
            setattr(self, f"_{name}", state.tensors[f"run.{name}"].to(self.device, copy=True))
        for name in _NUMBERS:
            number = state.numbers[f"run.{name}"]
            if isinstance(number, bool) or not isinstance(number, type(getattr(self, name)) | int):
                raise TypeError(f"{name} is {number!r}")
            setattr(self, name, number)
        self.generator.set_state(state.tensors["run.generator"])
        self.accuracy, self.curves = accuracy, curves or {}
        if self.taken:
            self.method.phase = self._phase_at(self.task, self.taken)

    def _phase_at(self, task: int, taken: int) -> str:
        """The phase of the last of the first `taken` steps of a task."""
        ends = itertools.accumulate(self.phases[task].values())
        return next(phase for phase, end in zip(self.phases[task], ends, strict=True) if taken <= end)

    def _autocast(self) -> torch.autocast:
        # without its cache, which would not notice a step of the optimizer inside
        bfloat16 = self.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16, cache_enabled=False)

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Inside, the method may change weights in place."""
        with self._autocast():
            yield
        if self.method.working_copies:
            self.method.working_copies.refresh()


def _of_the_method(named: dict[str, T]) -> dict[str, T]:
    return {name: value for name, value in named.items() if not name.startswith("run.")}


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Allow TF32 inside when asked for, and only then."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    allowed = precision != "fp32"
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
