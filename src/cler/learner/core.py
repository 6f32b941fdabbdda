"""What a learner has learned, and how it takes a step; threads and forms of images are dealt with elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from cler.data.inputs import Label, in_order, to_labels
from cler.data.views import Views
from cler.engine.state import State, collect, restore
from cler.errors import UsageError, one_line
from cler.learner import fileformat
from cler.learner.classifier import Classifier
from cler.learner.parameters import CLASSES, check_parameters, check_same_kind, resolved_parameters
from cler.learner.saved import Saved
from cler.methods import Method
from cler.methods.loss import total
from cler.nets.build import NetworkLike
from cler.nets.passes import images_at_once
from cler.runs.build import build_method
from cler.runs.machine import find_device
from cler.streams import Batch, Tasks

Content: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]
CHUNK = 500
"""Images that are classified in one pass on a GPU."""
FIRST_SIZE = 16
"""Classes that a network which grows begins with room for."""


class NotFittedError(UsageError, AttributeError):
    """Asked before it has learned anything; a ValueError and an AttributeError, as scikit-learn's own is."""


class Core:
    """What was learned with some parameters of `Learner`: at first nothing."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.parameters = resolved_parameters(parameters)
        self.own_classes = {name: parameters[name] for name in CLASSES if isinstance(parameters.get(name), type)}
        """The method, regularizer and teacher, where they are the user's classes and not names."""
        self.settings = check_parameters(self.parameters)
        given = self.parameters["network"]
        self.own_network: NetworkLike | None = None if isinstance(given, str) else given
        """The user's function or module, where the network is not one by name."""
        self.batch: int = self.settings.batch
        self.seed: int = self.parameters["seed"]
        channels, size, classes = (self.parameters[name] for name in ("channels", "image_size", "classes"))
        self.shape = (channels, size, size)
        self.allowed = None if classes == "grow" else frozenset(to_labels(classes))
        self.device = find_device(self.parameters["device"])
        self.generator = torch.Generator(self.device).manual_seed(self.seed)
        self.numbers: dict[Label, int] = {}  # in the order of first appearance, as ER-ACE means it
        self.steps = 0
        self.method: Method | None = None
        self.waiting = torch.empty(0, *self.shape, dtype=torch.uint8, device=self.device), list[Label]()
        self.saved: tuple[Path, int] | None = None
        """The file that it was saved in last, or loaded from, and the images seen by then."""
        self.predicted = [0, 0, 0]
        """Images that were predicted right before they were learned, those that a blind guess had right, and all."""
        self.last_label: Label | None = None
        """Last label of the last batch that was predicted: the blind guess for the next batch."""
        self.failure: str | None = None
        """Why it can no longer learn or answer; None if it can."""

    @property
    def n_seen(self) -> int:
        """Images that were learned, and those that wait."""
        return self.steps * self.batch + len(self.waiting[1])

    @property
    def labels(self) -> list[Label]:
        """The labels that were learned, sorted."""
        return in_order(self.numbers)

    def check_allowed(self, labels: Sequence[Label]) -> None:
        """Refuse labels that cannot occur."""
        for label in labels:
            if self.allowed is not None and label not in self.allowed:
                raise UsageError(f"label {label!r} is not among the classes of this learner; classes='grow' takes any")

    def check_kind(self, labels: Sequence[Label]) -> None:
        """Refuse a string among whole numbers, which might be meant to be one of them, or a number among strings."""
        check_same_kind(labels, [*self.numbers, *self.waiting[1]])

    def learn(self, pixels: Tensor, labels: Sequence[Label]) -> None:
        """One step of the method, on a batch that begins with the images that wait; new classes get the next numbers.

        An error leaves no trace if the step began with a method that was built for it, else a learner of no more use.
        """
        self.check_whole()
        right = self._right(pixels, labels) if self.parameters["prequential"] else 0
        before, known = self.method, self.numbers.copy()
        numbers = [known.setdefault(label, len(known)) for label in labels]
        drawn = self.generator.get_state() if before is None or before.n_classes < len(known) else None
        try:
            method = self.make_room(len(known))
            if method.task == 0 and method.settled:
                method.begin_task(1)
            pixels = pixels.clone()  # which may be a tensor of the caller's inference mode
            batch = Batch(pixels, method.views.augmented(pixels), torch.tensor(numbers, device=self.device))
            loss = total(method.learn(batch)).cpu()  # waits for a GPU, which may have an error to tell
        except BaseException as error:
            if drawn is not None:
                self.method = before
                self.generator.set_state(drawn)
            else:
                error.add_note(self._fail(f"a step failed after {self.n_seen} images, {type(error).__name__}: {error}"))
            raise
        self.numbers, self.steps, self.waiting = known, self.steps + 1, (pixels[:0], [])
        if self.parameters["prequential"]:
            blind = sum(label == self.last_label for label in labels)
            more = (right, blind, len(labels))
            self.predicted = [count + new for count, new in zip(self.predicted, more, strict=True)]
            self.last_label = labels[-1]
        try:
            self._check_finite("the loss was", loss)
        except UsageError as error:
            self.failure = str(error)
            raise

    def _right(self, pixels: Tensor, labels: Sequence[Label]) -> int:
        """How many of a batch are predicted right before it is learned; none of the first one."""
        if not self.steps:
            return 0
        known, best = self.labels, self.probabilities(pixels).argmax(1).tolist()
        return sum(known[column] == label for column, label in zip(best, labels, strict=True))

    def _fail(self, reason: str) -> str:
        self.failure = one_line(f"this learner cannot go on: {reason}; {self._last_save}")
        return self.failure

    @property
    def _last_save(self) -> str:
        return f"load its last save, {self.saved[0]} ({self.saved[1]} images)" if self.saved else "it was never saved"

    def check_whole(self) -> None:
        """Raise an error if a step has failed before."""
        if self.failure is not None:
            raise UsageError(self.failure)

    def after_what_waits(self, pixels: Tensor, labels: list[Label]) -> tuple[Tensor, list[Label]]:
        """The waiting images, which do not fill a batch yet, followed by these, with their labels."""
        self.check_whole()
        return torch.cat([self.waiting[0], pixels]), self.waiting[1] + labels

    def keep_waiting(self, pixels: Tensor, labels: list[Label]) -> None:
        """Keep a copy of these images, in place of those that wait now, until there are enough for a batch."""
        self.waiting = pixels.clone(), labels

    def make_room(self, n_classes: int) -> Method:
        """The method, built or made larger if it has no room for so many classes."""
        if self.method is None:
            self.method = self.build(n_classes)
        elif self.method.n_classes < n_classes:
            larger = self.build(n_classes, pretrained=False)
            restore(larger, collect(self.method), grow=True)
            self.method = larger
        return self.method

    def build(self, n_classes: int, *, pretrained: bool | None = None) -> Method:
        """A new method with room for at least so many classes.

        Without pretrained weights, where other weights are going to take their place.
        """
        settings = self.settings if pretrained is None else dataclasses.replace(self.settings, pretrained=pretrained)
        mean, std = (np.broadcast_to(self.parameters[name], self.shape[0]).tolist() for name in ("mean", "std"))
        return build_method(
            settings,
            self.seed,
            views=Views(mean, std, settings.augment, generator=self.generator, device=self.device),
            generator=self.generator,
            tasks=Tasks.of_sizes([self._room(n_classes)], self.device),
            image_shape=self.shape,
            network=self.own_network,
        )

    def _room(self, n_classes: int) -> int:
        """How many classes a method gets room for if it is built for this many."""
        doublings = ((n_classes - 1) // FIRST_SIZE).bit_length()
        return FIRST_SIZE << doublings if self.allowed is None else len(self.allowed)

    def check_is_fitted(self) -> None:
        """Raise a `NotFittedError` if nothing has been learned yet."""
        if not self.steps:
            missing = self.batch - len(self.waiting[1])
            raise NotFittedError(f"this learner has not learned anything yet: give partial_fit {missing} more images")

    def fitted_labels(self) -> list[Label]:
        """The labels that were learned, sorted; refuses if there are none."""
        self.check_is_fitted()
        return self.labels

    def classifier(self) -> Classifier:
        """From pixels to the probabilities of `labels`."""
        self.check_whole()
        self.check_is_fitted()
        assert self.method is not None
        return Classifier(self.method, [self.numbers[label] for label in self.labels])

    def classify(self, pixels: Tensor, is_awaited: Callable[[], bool]) -> tuple[Tensor, list[Label]]:
        """Probabilities in main memory, and the labels of their columns; may end early if nobody awaits them."""
        return self.probabilities(pixels, is_awaited).cpu(), self.labels

    @torch.no_grad()
    def probabilities(self, pixels: Tensor, is_awaited: Callable[[], bool] = lambda: True) -> Tensor:
        """Probabilities (N, labels) of uint8 images, on the device."""
        classifier = self.classifier()
        assert self.method is not None
        size = images_at_once(self.shape, self.device, on_gpu=CHUNK)
        chunks = takewhile(lambda _: is_awaited(), pixels.split(size))
        with self.method.answering():
            probabilities = torch.cat([classifier(chunk) for chunk in chunks])
        self._check_finite("probabilities are", probabilities)
        return probabilities

    def check_sound(self) -> None:
        """Refuse a learner that failed or diverged: by its weights, and its outputs for a black and a white image."""
        self.check_whole()
        tensors, _ = self.content()
        self._check_finite("weights are", *tensors.values())
        if self.steps:
            extremes = torch.tensor([0, 255], dtype=torch.uint8, device=self.device)
            self.probabilities(extremes.view(2, 1, 1, 1).expand(2, *self.shape))

    def _check_finite(self, what: str, *tensors: Tensor) -> None:
        if not all(tensor.isfinite().all() for tensor in tensors):
            raise UsageError(
                f"{what} not finite after {self.steps * self.batch} images, so this learner can no longer be used: "
                f"{self._last_save}; a new one may need a lower lr or weight"
            )

    def content(self) -> Content:
        """All that it is, as `restore` takes it; the tensors are its own."""
        state = collect(self.method) if self.method is not None and self.steps else State({}, {})
        tensors = {f"method.{name}": tensor for name, tensor in state.tensors.items()}
        tensors |= {"waiting": self.waiting[0], "generator": self.generator.get_state()}
        about = {
            "parameters": self.parameters | {"network": self.settings.network},
            "labels": list(self.numbers),
            "waiting": self.waiting[1],
            "steps": self.steps,
            "numbers": state.numbers,
            "device": self.device.type,
        }
        if self.parameters["prequential"]:
            about |= {"predicted": self.predicted, "last_label": self.last_label}
        return tensors, about

    def encoded(self) -> tuple[bytes, int]:
        """The content of its file, and the images seen by now."""
        self.check_sound()
        return fileformat.encode(*self.content()), self.n_seen

    def copied_content(self) -> Content:
        """The content with copies of the tensors, in main memory."""
        self.check_whole()
        tensors, about = self.content()
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, about

    def restore(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Take over what was saved; only for a new one, which cannot be used if this fails."""
        saved = Saved.read(tensors, about)
        saved.check_stream(self.batch, self.waiting[0])
        self.check_allowed([*saved.labels, *saved.waiting])
        self.numbers = {label: number for number, label in enumerate(saved.labels)}
        self.steps = saved.steps
        self.waiting = saved.pixels.to(self.device, copy=True), saved.waiting
        self.predicted, self.last_label = saved.predicted, saved.last_label
        if saved.steps:
            saved.check_size(self.settings, self._room(len(saved.labels)), self.own_network)
            self.method = self.build(len(saved.labels), pretrained=False)
            if self.own_network is not None:
                saved.check_network(self.method)
            saved.check_numbers(self.method)
            restore(self.method, saved.state)
            saved.check_buffer(self.method, self.batch)
        if saved.device == self.device.type:
            self.generator.set_state(saved.generator)
        else:  # another kind of generator: a new beginning, but not the same draws again
            self.generator.manual_seed(self.seed + self.n_seen)

    def copy_on(self, device: str) -> Core:
        """A copy of all that was learned, on another device."""
        core = Core(self.parameters | {"device": device})
        core.restore(*self.copied_content())
        return core
