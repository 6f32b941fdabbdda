"""The `partial_fit` and `predict` front: a continual learner for a stream that has no tasks and no end."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from operator import eq
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cler.data.augment import Views
from cler.data.stream import Batch
from cler.engine.state import State, collect, restore
from cler.errors import UsageError, unknown
from cler.experiments.build import build_method
from cler.experiments.machine import find_device
from cler.learner import files
from cler.learner.classifier import Classifier, evaluating
from cler.learner.export import export
from cler.learner.inputs import Label, in_order, to_labels, to_pixels
from cler.learner.parameters import check_parameters, to_plain
from cler.learner.saved import Saved, require
from cler.learner.turns import Turns, uninterrupted
from cler.methods import Method, find_method

CHUNK = 500
"""Images that are classified in one pass; the result does not depend on it."""
FIRST_SIZE = 16
"""Classes that a network which grows begins with room for."""


class NotFittedError(UsageError, AttributeError):
    """Asked before it has learned anything; a ValueError and an AttributeError, as scikit-learn's own is."""


class Learner:
    """A classifier that keeps learning from labelled images as they come.

        >>> import cler
        >>> import numpy as np
        >>> generator = np.random.default_rng(0)
        >>> labels = np.array(["dark", "light"]).repeat(20)
        >>> images = generator.random((40, 16, 16, 3)) / 2 + (labels == "light").reshape(-1, 1, 1, 1) / 2
        >>> learner = cler.Learner(image_size=16, width=4, buffer=20)
        >>> for some in generator.permutation(40).reshape(8, 5):
        ...     learner = learner.partial_fit(images[some], labels[some])
        >>> learner.n_seen_
        40
        >>> print(*learner.classes_)
        dark light
        >>> learner.predict_proba(images[:3]).shape
        (3, 2)

    Args:
        method: a continual learner that needs no tasks: 'er-ace', 'er', 'cope', 'finetune'.
        regularizer: 'jigsaw' or 'rotation' (CLER), 'barlow-twins', or 'none'.
        image_size: height and width that images are scaled to, whatever their own.
        channels: 3 for colour, 1 for grey.
        classes: the labels that can occur, or 'grow' to take every new one as it comes.
        buffer: images that the memory holds.
        batch: images of a step.
        replay_batch: remembered images of a step.
        lr: learning rate.
        weight: what the regulariser's loss is multiplied by; None for its own default.
        optimizer: 'sgd' or 'adamw'.
        width: filters of the first layer of ResNet-18; 64 in the paper, 16 is fast without a GPU.
        options: settings that only this method has, as a dictionary.
        mean, std: what pixels, from 0 to 1, are normalised by: a number, or one for each channel.
        seed: where everything random comes from.
        device: 'auto', 'cpu' or 'cuda'.

    Images are a numpy array or a torch tensor, N×H×W×C or N×C×H×W (and N×H×W for grey), or a list of arrays or PIL
    images of any sizes; uint8 from 0 to 255, or floats from 0 to 1. Labels are texts or whole numbers.

    The stream is learned in batches of `batch` images, in the order in which they come. What is left over waits, and is
    learned with the images of the next call: how the stream is cut into calls makes no difference, to the bit. Until
    the memory holds a replay batch there is no replay, as in the first task of a benchmark. Memory use does not grow
    with the stream, only with the number of classes.

    A call that is interrupted, or fails, ends between two steps. Images that were not learned by then are forgotten:
    `n_seen_` tells how far in the stream it came, and the stream goes on from there.

    Other threads may predict, score, save and export while one learns; each call sees the state between two steps.
    """

    def __init__(
        self,
        method: str = "er-ace",
        regularizer: str = "jigsaw",
        *,
        image_size: int = 32,
        channels: int = 3,
        classes: Sequence[Label] | str = "grow",
        buffer: int = 500,
        batch: int = 10,
        replay_batch: int = 10,
        lr: float = 0.01,
        weight: float | None = None,
        optimizer: str = "sgd",
        width: int = 64,
        options: dict[str, Any] | None = None,
        mean: float | Sequence[float] = 0.5,
        std: float | Sequence[float] = 0.25,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.method, self.regularizer = method, regularizer
        self.image_size, self.channels = image_size, channels
        self.classes = classes
        self.buffer, self.batch, self.replay_batch = buffer, batch, replay_batch
        self.lr, self.weight, self.optimizer = lr, weight, optimizer
        self.width, self.options = width, options
        self.mean, self.std = mean, std
        self.seed, self.device = seed, device
        self._turns, self._calls = Turns(), Lock()
        self._begin()

    def _begin(self) -> None:
        """Check the parameters; forget everything that was learned."""
        parameters = {name: to_plain(value) for name, value in self.get_params().items()}
        self._settings = check_parameters(parameters)
        self._plain = SimpleNamespace(**parameters)
        self._allowed = None if self._plain.classes == "grow" else frozenset(to_labels(self._plain.classes))
        self._target = find_device(self._plain.device)
        self._generator = torch.Generator(self._target).manual_seed(self._plain.seed)
        self._numbers: dict[Label, int] = {}  # in the order of first appearance, as ER-ACE means it
        self._steps = 0
        self._method: Method | None = None
        self._waiting = self._read([]), list[Label]()

    # -- learning ------------------------------------------------------------------------------------------------------

    def fit(self, images: Any, labels: Any) -> Learner:
        """Forget everything, then `partial_fit`; what cannot be learned from makes it forget nothing."""
        with self._calls, self._turns:
            before = vars(self).copy()
            self._begin()
            try:
                pixels, plain = self._checked(images, labels)
            except BaseException:
                vars(self).update(before)
                raise
        return self._take(pixels, plain)

    def partial_fit(self, images: Any, labels: Any) -> Learner:
        """Learn from some more images with their labels; any number, new classes too."""
        return self._take(*self._checked(images, labels))

    def _take(self, pixels: Tensor, plain: list[Label]) -> Learner:
        with self._calls:  # one call after the other, so that no batch is mixed of two
            pixels, plain = torch.cat([self._waiting[0], pixels]), self._waiting[1] + plain
            whole = len(plain) // self._plain.batch * self._plain.batch
            for start in range(0, whole, self._plain.batch):
                batch = slice(start, start + self._plain.batch)
                with uninterrupted(), self._turns:
                    self._learn(pixels[batch], plain[batch])
                    self._waiting = pixels[:0], []
            with self._turns:
                self._waiting = pixels[whole:].clone(), plain[whole:]  # a copy, so that the others can go
        return self

    def _checked(self, images: Any, labels: Any) -> tuple[Tensor, list[Label]]:
        pixels, plain = self._read(images), to_labels(labels)
        if len(pixels) != len(plain):
            raise UsageError(f"there must be a label for each image, not {len(plain)} for {len(pixels)} images")
        self._check_allowed(plain)
        return pixels, plain

    def _read(self, images: Any) -> Tensor:
        return to_pixels(images, channels=self._plain.channels, size=self._plain.image_size).to(self._target)

    def _check_allowed(self, labels: Sequence[Label]) -> None:
        for label in labels:
            if self._allowed is not None and label not in self._allowed:
                raise UsageError(f"label {label!r} is not among the classes of this learner; classes='grow' takes any")

    def _learn(self, pixels: Tensor, labels: Sequence[Label]) -> None:
        """One step of the method; new classes get the next numbers."""
        known = self._numbers.copy()
        numbers = [known.setdefault(label, len(known)) for label in labels]
        method = self._make_room(len(known))
        if method.task == 0 and method.settled:
            method.begin_task(1)
        batch = Batch(pixels, method.views.augmented(pixels), torch.tensor(numbers, device=self._target))
        loss = method.observe(batch)
        self._numbers, self._steps = known, self._steps + 1
        self._check_finite("the loss was", loss)

    def _check_finite(self, what: str, *tensors: Tensor) -> None:
        if not all(tensor.isfinite().all() for tensor in tensors):
            raise UsageError(
                f"{what} not finite after {self._steps * self._plain.batch} images: this learner is lost; go back to "
                "one that was saved, or begin again with a lower lr or weight"
            )

    def _make_room(self, n_classes: int) -> Method:
        """The method, built or made larger if it has no room for so many classes."""
        if self._method is None:
            self._method = self._build(n_classes)
        elif self._method.n_classes < n_classes:
            larger = self._build(n_classes)
            restore(larger, collect(self._method), grow=True)
            self._method = larger
        return self._method

    def _room(self, n_classes: int) -> int:
        """The classes that a method has room for which is built for so many."""
        doublings = ((n_classes - 1) // FIRST_SIZE).bit_length()
        return FIRST_SIZE << doublings if self._allowed is None else len(self._allowed)

    def _build(self, n_classes: int) -> Method:
        """A new method with room for at least so many classes."""
        channels, size = self._plain.channels, self._plain.image_size
        statistics = (np.broadcast_to(each, channels).tolist() for each in (self._plain.mean, self._plain.std))
        return build_method(
            self._settings,
            self._plain.seed,
            views=Views(*statistics, generator=self._generator, device=self._target),
            generator=self._generator,
            tasks=1,
            classes_per_task=self._room(n_classes),
            image_shape=(channels, size, size),
        )

    # -- what it knows -------------------------------------------------------------------------------------------------

    @property
    def n_seen_(self) -> int:
        """Images that it was given: those learned, and fewer than a batch that wait."""
        with self._turns:
            return self._steps * self._plain.batch + len(self._waiting[1])

    @property
    def classes_(self) -> np.ndarray:
        """The labels it has learned, sorted; predict_proba has a column for each."""
        with self._turns:
            self._check_is_fitted()
            return self._labels()

    def predict_proba(self, images: Any) -> np.ndarray:
        """Probabilities (N, classes) of the classes in `classes_`, which add up to one."""
        return self._classify(images)[0]

    def predict(self, images: Any) -> np.ndarray:
        """The most probable label of each image."""
        probabilities, labels = self._classify(images)
        return labels[probabilities.argmax(1)]

    def score(self, images: Any, labels: Any) -> float:
        """Share of images, from 0 to 1, whose label is predicted; one not in `classes_` counts as a mistake."""
        predicted, plain = self.predict(images).tolist(), to_labels(labels)
        if len(predicted) != len(plain) or not plain:
            raise UsageError(f"there must be images with a label each, not {len(plain)} for {len(predicted)} images")
        return sum(map(eq, predicted, plain)) / len(plain)

    def _classify(self, images: Any) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities, and the labels of their columns, from one and the same state."""
        pixels = self._read(images)
        with self._turns:
            return self._probabilities(pixels).cpu().numpy(), self._labels()

    @torch.no_grad()
    def _probabilities(self, pixels: Tensor) -> Tensor:
        classifier = self._classifier()
        with evaluating(classifier.network):
            probabilities = torch.cat([classifier(chunk) for chunk in pixels.split(CHUNK)])
        self._check_finite("probabilities are", probabilities)
        return probabilities

    def _check_sound(self) -> None:
        """Refuse to keep what has diverged: its weights, or what it makes of a black and a white image."""
        tensors, _ = self._content()
        self._check_finite("weights are", *tensors.values())
        if self._steps:
            extremes = torch.tensor([0, 255], dtype=torch.uint8, device=self._target)
            self._probabilities(extremes.view(2, 1, 1, 1).expand(2, *self._waiting[0].shape[1:]))

    def _classifier(self) -> Classifier:
        self._check_is_fitted()
        assert self._method is not None
        return Classifier(self._method, [self._numbers[label] for label in in_order(self._numbers)])

    def _labels(self) -> np.ndarray:
        labels = in_order(self._numbers)
        array = np.array(labels)
        exact = array.dtype.kind in "iuU" and array.tolist() == labels
        return array if exact else np.array(labels, dtype=object)

    def _check_is_fitted(self) -> None:
        if not self._steps:
            missing = self._plain.batch - len(self._waiting[1])
            raise NotFittedError(f"this learner has not learned anything yet: give partial_fit {missing} more images")

    # -- keeping it ----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write everything into one file, with which learning goes on as if it had never stopped."""
        with self._turns:
            self._check_sound()
            content = files.encode(*self._content())
        files.write(path, content)

    def _content(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that it is, as `_restore` takes it."""
        state = collect(self._method) if self._method is not None and self._steps else State({}, {})
        tensors = {f"method.{name}": tensor for name, tensor in state.tensors.items()}
        tensors |= {
            "waiting": self._waiting[0],
            "generator": self._generator.get_state(),
        }
        about = {
            "parameters": vars(self._plain),
            "labels": list(self._numbers),
            "waiting": self._waiting[1],
            "steps": self._steps,
            "numbers": state.numbers,
            "device": self._target.type,
        }
        return tensors, about

    def __getstate__(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        with self._turns:
            tensors, about = self._content()
            return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, about

    def _copy_on(self, device: str) -> Learner:
        """The same learner on another device."""
        tensors, about = self.__getstate__()
        learner = type(self)(**about["parameters"] | {"device": device})
        learner._restore(tensors, about)
        return learner

    def __setstate__(self, content: tuple[dict[str, Tensor], dict[str, Any]]) -> None:
        vars(self).update(vars(type(self)(**content[1]["parameters"])))
        self._restore(*content)

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None) -> Learner:
        """A learner from its file, on the device that it was made for or on another one.

        The file may come from a stranger: nothing in it is run, and all of it is checked.
        """
        tensors, about = files.read(path)
        try:
            require(about["parameters"].keys() == set(cls._parameter_names()), "parameters")
            learner = cls(**about["parameters"] | ({} if device is None else {"device": device}))
            learner._restore(tensors, about)
        except UsageError as error:
            raise UsageError(f"{path} cannot be loaded: {error}") from None
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError):
            raise UsageError(f"{path} is damaged: its parts do not belong together") from None
        return learner

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Become what was saved."""
        saved = Saved.read(tensors, about)
        saved.check_stream(self._plain.batch, self._waiting[0])
        self._check_allowed([*saved.labels, *saved.waiting])
        self._numbers = {label: number for number, label in enumerate(saved.labels)}
        self._steps = saved.steps
        self._waiting = saved.pixels.to(self._target), saved.waiting
        if saved.steps:
            saved.check_size(find_method(self._plain.method), self._settings, self._room(len(saved.labels)))
            self._method = self._build(len(saved.labels))
            saved.check_numbers(self._method)
            restore(self._method, saved.state)
            saved.check_memory(self._method, self._plain.batch)
        if saved.device == self._target.type:
            self._generator.set_state(saved.generator)
        else:  # another kind of generator: a new beginning, but not the same draws again
            self._generator.manual_seed(self._plain.seed + self.n_seen_)

    def export(self, path: str | Path) -> None:
        """Write the classifier as it is now, to be used without cler: `.pt2` (torch.export) or `.onnx`.

        It takes uint8 images (N, channels, image_size, image_size), any number of them, and gives the probabilities of
        `classes_`, which are in the file too, as 'classes.json'. Before it is written, the file is checked to give what
        this learner gives. ONNX needs `pip install 'cler[onnx]'`.
        """
        learner = self if self._target.type == "cpu" else self._copy_on("cpu")  # where everybody can run it
        with learner._turns:
            learner._check_sound()
            export(learner._classifier(), Path(path), learner._waiting[0].shape[1:], in_order(learner._numbers))

    # -- scikit-learn's conventions ------------------------------------------------------------------------------------

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return list(inspect.signature(cls.__init__).parameters)[1:]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What it was made with."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **changes: Any) -> Learner:
        """Change what it is made with, before it has been given any image."""
        if self.n_seen_:
            raise UsageError("a learner that has begun to learn cannot be changed; make a new one")
        for name in changes:
            if name not in self._parameter_names():
                raise unknown("parameter", name, self._parameter_names())
        vars(self).update(vars(type(self)(**self.get_params() | changes)))
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return self._steps > 0

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
        )

    def __repr__(self) -> str:
        parameters = inspect.signature(type(self).__init__).parameters
        changed = {name: value for name, value in vars(self._plain).items() if value != parameters[name].default}
        return f"Learner({', '.join(f'{name}={value!r}' for name, value in changed.items())})"
