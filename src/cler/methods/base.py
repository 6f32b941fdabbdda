"""What every continual learner is: a network, an optimizer, perhaps a buffer and regularizers, and a step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.config.registry import METHODS
from cler.config.schema import NoOptions
from cler.errors import UsageError
from cler.memory import Recollection, Replay, Reservoir, closed
from cler.methods.about import About
from cler.methods.loss import Gradients, backward, detached, mean_terms, total
from cler.methods.optimizers import make_optimizer
from cler.methods.setup import Setup
from cler.nets.backbone import Backbone, Parts
from cler.nets.conv import WorkingCopies
from cler.nets.modes import evaluating
from cler.regularizers.base import Regularizer
from cler.streams import Batch
from cler.teachers.base import Lesson

Terms: TypeAlias = dict[str, Tensor]
"""The terms of a loss by name, weighted, in the order in which they are added."""


class Method:
    """A continual learner; subclasses define `observe`.

    Inside `observe`, Python may decide by the task, by settings and by counters kept on the host, never by the value of
    a tensor: no `.item()`, no boolean indexing, no shape that depends on data, no random numbers from the host.
    Anything that lasts from step to step is updated in place. One `observe` is then a fixed list of kernels, which the
    engine records once for each `recording_key` and replays.

    A class may say `replays = True`: it has a buffer, `self.buffer`; `task_free = True`: it can learn a stream that
    does not tell where tasks begin and end; `teachable = ("raw", "strong")`: what a teacher may show its network, in
    this order, as `lesson` gives it to `outputs`; `smallest_batch = 2`: the fewest images of the stream that it can
    take; and with a dataclass `Options` what settings of its own it has.

    A method finds in `self.network` the network that it trains, with `features`, `classifier` and `feature_size`; in
    `self.views` what turns stored pixels into normalized images, augmented or not; in `self.options` the values of its
    `Options`; and in `self.setup` all that it was made from, such as `replay_batch`, `tasks`, `generator` and `device`.
    """

    name: ClassVar[str]
    """The method's name in settings and on the command line."""
    about: ClassVar[About]
    """What tables, disk estimates and file checks need to know about the method; by default, its name and the first
    line of its docstring."""
    revision: ClassVar[int] = 1
    """Raised by hand when the method's runs come out differently, so that older results are not taken for new ones."""
    merged: ClassVar[bool] = False
    """Whether the method sees all tasks at once."""
    replays: ClassVar[bool] = False
    """Whether the method has a buffer."""
    shares_buffer: ClassVar[bool] = False
    """Whether each class has the same share of the buffer, which then needs room for one image of each."""
    smallest_batch: ClassVar[int] = 1
    """The smallest batch of the stream that the method can take, in images."""
    own_repeats: ClassVar[str | None] = None
    """The method's own setting for several steps on a batch, in place of `repeats`."""
    teachable: ClassVar[tuple[str, ...]] = ()
    """What a teacher may show its network, in the order in which it sees it: 'raw' images and a 'strong' view of them.
    Such a method gives `outputs` a `lesson` in `observe`; teachers that teach work with no other method."""
    task_free: ClassVar[bool] = False
    """Whether the method can learn a stream that does not say where tasks begin and end."""
    own_classes: ClassVar[bool] = True
    """Whether the method needs each class to come in one task only; a task-free one never does."""
    temperature: float = 1.0
    """What the method's logits are divided by to become logarithms of probabilities."""
    Options: ClassVar[type] = NoOptions
    """A frozen dataclass of the settings that only this method has, each with a default and a line of help."""
    own_network: ClassVar[Callable[..., Backbone] | None] = None
    """The only network the method works with, made from the number of outputs, width=… and channels=…; None for any."""

    def __init__(self, setup: Setup, *, also_trained: Sequence[nn.Module] = ()) -> None:
        self.setup = setup
        self.options = setup.options
        self.network = setup.network
        self.views = setup.views
        self.regularizers = list(setup.regularizers)
        self.teacher = setup.teacher
        self.task, self.phase = 0, "observe"
        if not any(parameter.requires_grad for parameter in self.network.parameters()):
            raise UsageError("has nothing to train: at least its classifier has to require gradients", "network")
        modules = [self.network, *self.regularizers, *(each.to(setup.device) for each in also_trained)]
        parameters = [parameter for module in modules for parameter in module.parameters()]
        self.optimizer = make_optimizer(
            setup.optimizer, parameters, setup.lr, momentum=setup.momentum, weight_decay=setup.weight_decay
        )
        self.working_copies = WorkingCopies(modules) if setup.bfloat16 else None
        if self.replays:
            self.buffer = self.make_buffer()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "about" not in vars(cls) and "name" in vars(cls):
            first_line = (cls.__doc__ or "").strip().partition("\n")[0]
            cls.about = About(title=cls.name, summary=first_line.removesuffix("."))

    @cached_property
    def buffer(self) -> Any:
        """What a method that replays replays from, as `make_buffer` makes it."""
        raise UsageError(f"{self.name} has no buffer: write replays = True in the class")

    @property
    def n_classes(self) -> int:
        """The number of classes of all tasks, those to come included."""
        return self.setup.tasks.n_classes

    @property
    def past_classes(self) -> Tensor:
        """The classes of the tasks before this one, int64."""
        return self.setup.tasks.past(self.task)

    @property
    def present_classes(self) -> Tensor:
        """The classes of this task, int64."""
        return self.setup.tasks.present(self.task)

    @property
    def seen_classes(self) -> Tensor:
        """The past classes, then the present ones, int64."""
        return self.setup.tasks.seen(self.task)

    @property
    def trained(self) -> list[Any]:
        """All parameters that the method's optimizer trains."""
        return [each for group in self.optimizer.param_groups for each in group["params"]]

    @property
    def regularized(self) -> Sequence[tuple[Backbone, Regularizer]]:
        """Each regularizer with the network that it acts on."""
        return [(self.network, each) for each in self.regularizers]

    @property
    def recording_key(self) -> Hashable:
        """What Python decides by in `observe`, besides phase and settings: equal keys mean the same kernels."""
        return self.task

    @property
    def settled(self) -> bool:
        """Whether every further `observe` of this task runs the same kernels, so that one can be recorded."""
        return not self.replays or self.buffer.filled >= self.setup.replay_batch

    @classmethod
    def n_outputs(cls, n_classes: int) -> int:
        """How many outputs the method's network has to have."""
        return n_classes

    @classmethod
    def n_networks(cls, options: Any) -> int:
        """How many networks with initial weights of their own the method trains, as `Peers` where they are several."""
        return 1

    @classmethod
    def make_classifier(cls, classifier: nn.Linear, n_classes: int) -> nn.Linear:
        """The network's last layer, or what the method puts in its place."""
        return classifier

    def make_buffer(self) -> Any:
        """The buffer of a method that replays."""
        return self.make_reservoir()

    def make_reservoir(self, **extra: Sequence[int]) -> Reservoir:
        """A reservoir of the size in the settings; `extra` gives the shapes of what else it stores with each image.

        That is stored in float32: `make_reservoir(logits=(self.n_classes,), task=())`.
        """
        setup = self.setup
        return Reservoir(setup.buffer, setup.image_shape, generator=setup.generator, device=setup.device, extra=extra)

    @classmethod
    def phases(cls, options: Any, task: int, *, epoch: int, epochs: int) -> dict[str, int]:
        """How many steps a task has, by the name of what takes them; `epoch` steps are one pass over its images.

        Nearly always that is `observe`. Others are written by the same rules, and get batches too.
        """
        return {"observe": epochs * epoch}

    def begin_task(self, task: int) -> None:
        """Before the first batch of a task; Python may look at tensors here."""
        self.task = task

    def begin_phase(self, phase: str) -> None:
        """Before the first step of a phase; Python may look at tensors here."""
        self.phase = phase

    def observe(self, batch: Batch) -> Terms:
        """Learn from one batch of the stream; returns the terms of the loss, by the names that curves show."""
        raise TypeError(f"{type(self).__name__} has to define observe")

    def learn(self, batch: Batch) -> Terms:
        """Called by the engine with each batch: take one step of the phase, or several, and return their mean terms.

        Each of several steps sees a new view of the batch and draws anew from the buffer; the last one offers the batch
        to it.
        """
        step: Callable[[Batch], Terms] = getattr(self, self.phase)
        if self.setup.repeats == 1:
            return self._checked(step(batch))
        taken: list[Terms] = []
        for left in reversed(range(self.setup.repeats)):
            with closed(self.buffer) if left else nullcontext():
                taken.append(detached(step(batch)))
            if left:
                batch = batch._replace(images=self.views.augmented(batch.pixels))
        return self._checked(mean_terms(taken))

    def _checked(self, terms: Terms) -> Terms:
        """The terms of a step, which have those of all regularizers: tables would credit them with what comes out."""
        missing = [each.name for _, each in self.regularized if isinstance(terms, Mapping) and each.name not in terms]
        if missing and self.phase == "observe":
            raise UsageError(
                f"observe of {self.name} leaves out the loss of {missing[0]}: add the losses that self.outputs returns "
                "to its terms, as {'replay': loss, **penalties}"
            )
        return terms

    def end_task(self, task: int, batches: Iterable[Batch]) -> None:
        """After the last batch of a task; Python may look at tensors here.

        `batches` are the task's batches in a new order: a second look at its images, for methods that take one.
        """

    def logits(self, images: Tensor) -> Tensor:
        """Scores (N, n_classes) of normalized images, for evaluation."""
        return self.network(images)

    def logits_in_passing(self, images: Tensor) -> Tensor:
        """Scores of a batch that is about to be learned, computed quickly and by the rule of `observe`."""
        return self.logits(images)

    @property
    def is_taught(self) -> bool:
        """Whether a teacher adds to the loss."""
        return self.teacher is not None and self.teacher.teaches

    def lesson(self, *sources: Batch | Replay | Recollection) -> Lesson | None:
        """The teacher's lesson on the images of all sources, replay first; None where no teacher teaches.

        It draws a strong view, after what the method draws itself.
        """
        if self.teacher is None or not self.teacher.teaches:
            return None
        pixels, labels = torch.cat([each.pixels for each in sources]), torch.cat([each.labels for each in sources])
        lesson = self.teacher.lesson(self.views, pixels, labels)
        if not lesson.images.keys() <= set(self.teachable):
            shown, known = (", ".join(names) for names in (lesson.images, self.teachable))
            raise UsageError(f"{self.teacher.name} shows {shown}; {self.name} can be shown {known}", "teacher")
        return lesson

    def with_replay(self, batch: Batch) -> Batch:
        """The stream batch with a new replay draw behind it, as soon as there is one."""
        if not self.buffer.filled:
            return batch
        replay = self.buffer.sample(self.setup.replay_batch)
        return Batch(
            torch.cat([batch.pixels, replay.pixels]),
            torch.cat([batch.images, self.views.augmented(replay.pixels)]),
            torch.cat([batch.labels, replay.labels]),
        )

    def replay_of(self, count: int, classes: Tensor, instead: Batch) -> tuple[Tensor, Tensor]:
        """Pixels and labels of `count` stored images of some classes, a mask (C,); of `instead` if there are none."""
        replay, found = self.buffer.sample_of(count, classes)
        numbers = torch.arange(count, device=found.device) % len(instead.labels)
        return (
            torch.where(found, replay.pixels, instead.pixels[numbers]),
            torch.where(found, replay.labels, instead.labels[numbers]),
        )

    def loss_within_task(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy among the classes of this task, of which the labels are."""
        return F.cross_entropy(logits.index_select(1, self.present_classes), self.setup.tasks.position[labels])

    def outputs(
        self,
        *batches: Tensor,
        pixels: Tensor,
        labels: Tensor,
        parts: Parts | None = None,
        augmented: Tensor | None = None,
        forward: Callable[..., Tensor] | None = None,
        lesson: Lesson | None = None,
        network: Backbone | None = None,
    ) -> tuple[tuple[Tensor, ...], Terms]:
        """The network's outputs for some batches, each normalized separately, and the regularizers' losses by name.

        The regularizers see the images of `pixels`, not augmented, which are all of the batches' or the first of them,
        with their class numbers in `labels`; `parts` are parts of them that are normalized separately. If they come in
        another order than in the batches, `augmented` are the same images as trained on.
        With a `lesson` its images follow the batches in the same pass, and its losses come before the regularizers'.
        `forward` may be another way through the network, such as to its features, and `network` one of several.
        """
        shown = {name: lesson.images[name] for name in self.teachable if name in lesson.images} if lesson else {}
        passing = (*batches, *shown.values())
        if any(each.dtype == torch.uint8 for each in passing):
            raise UsageError(
                "the network is given pixels as they are stored: give it batch.images, or self.views.augmented(pixels)"
            )
        sizes = tuple(map(len, passing))
        images, own = (torch.cat(passing), Parts(sizes)) if len(passing) > 1 else (passing[0], None)
        network = network or self.network
        forward = forward or network
        regularizers = [each for its_network, each in self.regularized if its_network is network]
        raw = self.views.plain(pixels) if regularizers else pixels
        asked = [each.pretext_images(network, raw, parts) for each in regularizers]
        pretext = [each for each in asked if each is not None]
        outputs = forward(images, own, pretext) if pretext else forward(images, own)
        seen = images[: len(raw)] if augmented is None else augmented
        losses: Terms = {}
        for each, mine in zip(regularizers, asked, strict=True):
            loss = each.loss(network, raw, seen, labels, parts) if mine is None else each.loss_of(mine)
            losses[each.name] = losses[each.name] + loss if each.name in losses else loss
        passed = outputs.split(sizes)
        if lesson:
            losses = lesson.terms(dict(zip(shown, passed[len(batches) :], strict=True))) | losses
        return passed[: len(batches)], losses

    def descend(
        self, terms: Mapping[str, Tensor], optimizer: torch.optim.Optimizer | None = None, *, accumulate: bool = False
    ) -> None:
        """One step on the sum of these terms, of the method's optimizer or of another one for some of its parameters.

        With `accumulate` the gradients of the step before, as that step used them, are added to those of this one.
        """
        earlier = {each: each.grad for each in self.trained if each.grad is not None} if accumulate else {}
        self._differentiate(terms)
        if earlier:  # all at once, where autograd would add them a kernel at a time
            torch._foreach_add_([each.grad for each in earlier], list(earlier.values()))
        self._step(optimizer or self.optimizer)

    def gradients(self, terms: Mapping[str, Tensor], *, retain_graph: bool = False) -> dict[Tensor, Tensor]:
        """The gradient of the sum of these terms, by parameter: all that the optimizer trains and that have one.

        That of any other parameter, if it is asked for, is zero: two losses need not reach the same ones.
        `retain_graph` keeps what another call needs for the gradients of other terms of the same pass.
        """
        self._differentiate(terms, retain_graph=retain_graph)
        return Gradients({each: each.grad for each in self.trained if each.grad is not None})

    def apply_gradients(self, gradients: Mapping[Tensor, Tensor]) -> None:
        """One step of the method's optimizer along these gradients, in place of those of a loss.

        `descend(terms)` is `apply_gradients(self.gradients(terms))`.
        """
        for each in self.trained:
            each.grad = gradients.get(each)
        self._step(self.optimizer)

    def _differentiate(self, terms: Mapping[str, Tensor], *, retain_graph: bool = False) -> None:
        self.optimizer.zero_grad()
        backward(total(terms), retain_graph=retain_graph)
        if self.working_copies:
            self.working_copies.gather_gradients()

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        if self.working_copies:
            self.working_copies.refresh()
        for network, each in self.regularized:
            each.after_step(network)
        if self.teacher:
            self.teacher.after_step(self.network, self.task)

    @property
    def answerer(self) -> Backbone:
        """The network that answers in evaluation: the teacher's, where there is one."""
        return self.network if self.teacher is None else self.teacher.answering(self.network)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Inside, in evaluation, `network` is the one that answers."""
        trained, self.network = self.network, self.answerer
        try:
            with evaluating(self.network):
                yield
        finally:
            self.network = trained

    @contextmanager
    def unaided(self) -> Iterator[None]:
        """Inside, the network answers itself, as it does without a teacher."""
        teacher, self.teacher = self.teacher, None
        try:
            yield
        finally:
            self.teacher = teacher


register = METHODS.add
"""Registers a method for the command line and the tests."""


def find_method(name: str) -> type[Method]:
    """The method of that name."""
    found: type[Method] = METHODS.find(name)
    return found
