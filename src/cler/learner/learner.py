"""`Learner`: a continual learner with `partial_fit` and `predict`, for a stream that has no tasks and no end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cler.config.learner import learner_settings
from cler.config.settings import CUSTOM
from cler.data.inputs import Label, to_labels
from cler.errors import UsageError
from cler.learner import fileformat
from cler.learner.core import Content, Core, NotFittedError
from cler.learner.export import export
from cler.learner.inputs import to_array, to_pixels
from cler.learner.parameters import check_among, check_registered, completed_parameters, resolved_parameters, to_plain
from cler.learner.worker import Worker, apart_from_fork, is_awaited
from cler.methods import Method
from cler.nets.backbone import Backbone
from cler.nets.build import TIMM
from cler.regularizers import Regularizer
from cler.teachers import Teacher


class Learner:
    """A classifier that keeps learning from labeled images as they arrive.

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
        method: a method that needs no tasks: 'er-ace', 'er', 'derpp', 'pcr', 'cope', 'ccl-dc' or 'finetune'; it, the
            regularizer and the teacher may also be a class of your own.
        regularizer: 'jigsaw' or 'rotation' (CLER), 'barlow-twins', several, such as 'jigsaw+barlow-twins', or 'none'.
        teacher: 'ema', a moving average of the network, which answers and is exported in its place; 'mkd', a slow copy
            that also teaches it, for 'er', 'er-ace', 'derpp' and 'pcr'; or 'none'.
        image_size: height and width that images are scaled to, whatever their own.
        channels: 3 for color, 1 for gray.
        classes: the labels that can occur, or 'grow' to accept every new one as it arrives.
        buffer: number of images in the replay buffer.
        batch: number of images from the stream in a step.
        replay_batch: number of images from the buffer in a step.
        repeats: steps on each batch of the stream, each with a new view and a new draw from the buffer.
        lr: learning rate.
        weight: weight of the regularizer's loss; None for the regularizer's default.
        optimizer: 'sgd', 'adam' or 'adamw'.
        sgd_momentum: momentum of 'sgd'.
        weight_decay: weight decay; None for the optimizer's default.
        network: a name; a function that takes the number of classes and returns what `cler.backbone` makes, called
            again as more classes arrive; or such a network itself, which is copied.
        width: filters in the first layer of the built-in networks; 64 in the paper, 16 is fast without a GPU.
        pretrained: whether a timm network starts from pretrained weights.
        freeze: whether to freeze the network up to its tap.
        augment: how to augment the images that it trains on: 'none', 'crop', 'crop-flip', 'light', 'full' or
            'randaugment'.
        mean: what is subtracted from pixels, which are from 0 to 1: a number, or one for each channel.
        std: what they are divided by after that: a number, or one for each channel.
        prequential: whether to predict each batch before learning it, for `prequential_`; takes one more pass.
        seed: seed for all random numbers.
        device: 'auto', 'cpu' or 'cuda'.
        options: settings that only this method, or another part, has, by name.

    `set_params` can change these before the first image, not after.

    Images are a numpy array or a torch tensor, N×H×W×C or N×C×H×W (and N×H×W for gray), or a list of arrays or PIL
    images of any sizes; uint8 from 0 to 255, or floats from 0 to 1. Labels are strings or whole numbers.

    The stream is learned in batches of `batch` images, in order of arrival. Images that do not fill a batch wait, and
    are learned with those of the next call, so it makes no difference, to the bit, how you divide the stream into
    calls. Replay begins as soon as the buffer holds a replay batch. A learner's memory does not grow with the stream,
    only with the number of classes.

    A call that is interrupted, by anything, ends between two steps. Images of the call that were not learned by then
    are dropped: `n_seen_` is the place in the stream to continue from. After an error inside a step, a learner can no
    longer learn or predict, and names the file it was last saved to; `fit` starts over.

    While one thread learns, other threads and signal handlers may predict, score, save and export; each call sees the
    state between two steps. All computation is in the learner's own thread, where the caller's modes, such as no_grad,
    inference_mode and autocast, do not apply. If you have changed torch's default dtype, it is float32 for all threads
    while a learner computes.
    """

    def __init__(
        self,
        method: str | type[Method] = "er-ace",
        regularizer: str | type[Regularizer] = "jigsaw",
        *,
        teacher: str | type[Teacher] = "none",
        image_size: int = 32,
        channels: int = 3,
        classes: Sequence[Label] | str = "grow",
        buffer: int = 500,
        batch: int = 10,
        replay_batch: int = 10,
        repeats: int = 1,
        lr: float = 0.01,
        weight: float | None = None,
        optimizer: str = "sgd",
        sgd_momentum: float = 0.0,
        weight_decay: float | None = None,
        network: str | Backbone | Callable[[int], Backbone] = "resnet18",
        width: int = 64,
        pretrained: bool = False,
        freeze: bool = False,
        augment: str = "crop-flip",
        mean: float | Sequence[float] = 0.5,
        std: float | Sequence[float] = 0.25,
        prequential: bool = False,
        seed: int = 0,
        device: str = "auto",
        **options: Any,
    ) -> None:
        self.method, self.regularizer, self.teacher = method, regularizer, teacher
        self.image_size, self.channels = image_size, channels
        self.classes = classes
        self.buffer, self.batch, self.replay_batch, self.repeats = buffer, batch, replay_batch, repeats
        self.lr, self.weight, self.optimizer = lr, weight, optimizer
        self.sgd_momentum, self.weight_decay = sgd_momentum, weight_decay
        self.network, self.width, self.pretrained, self.freeze = network, width, pretrained, freeze
        self.augment = augment
        self.mean, self.std = mean, std
        self.prequential, self.seed, self.device = prequential, seed, device
        unnamed = {name: each.default for name, each in learner_settings().items() if name not in self._explicit()}
        vars(self).update(unnamed | options)
        self._options = tuple(unnamed | options)
        self._worker = Worker()
        self._core = Core(self.get_params())

    # -- learning ------------------------------------------------------------------------------------------------------

    def fit(self, images: Any, labels: Any) -> Learner:
        """Forget everything, then `partial_fit`; if the images or labels are refused, nothing is forgotten."""
        with self._worker.alone():
            core = Core(self.get_params())
            pixels, plain = _checked(core, images, labels)
            self._core = core
            self._take(pixels, plain)
        return self

    def partial_fit(self, images: Any, labels: Any, classes: Sequence[Label] | str | None = None) -> Learner:
        """Learn from more images and their labels: any number, including new classes.

        With `classes`, only these may occur in this call; `classes_` still has only those that were learned.
        """
        with self._worker.alone():  # one call after the other, so that no batch is mixed of two
            self._take(*_checked(self._core, images, labels, classes))
        return self

    def _take(self, pixels: Tensor, plain: list[Label]) -> None:
        core = self._core
        pixels, plain = self._worker(core.after_what_waits, pixels, plain)
        whole = len(plain) // core.batch * core.batch

        def learn(start: int) -> None:
            batch = slice(start, start + core.batch)
            core.learn(pixels[batch], plain[batch])

        for start in range(0, whole, core.batch):
            self._worker(learn, start)
        self._worker(core.keep_waiting, pixels[whole:], plain[whole:])

    # -- what it knows -------------------------------------------------------------------------------------------------

    @property
    def n_seen_(self) -> int:
        """Number of images it has been given, including the few that wait for a full batch."""
        return self._worker(lambda: self._core.n_seen)

    @property
    def classes_(self) -> np.ndarray:
        """The labels it has learned, sorted; `predict_proba` has a column for each."""
        return to_array(self._worker(self._core.fitted_labels))

    @property
    def prequential_(self) -> float:
        """Share of the stream, from 0 to 1, predicted correctly before it was learned; needs `prequential=True`."""
        return self._share_predicted(0)

    @property
    def blind_(self) -> float:
        """Share of the stream that a guesser gets right by repeating the last label of the previous batch."""
        return self._share_predicted(1)

    def _share_predicted(self, whose: int) -> float:
        counts = self._worker(lambda: self._core.predicted)
        if not counts[2]:
            raise NotFittedError("no batch was predicted before it was learned: that takes Learner(prequential=True)")
        return counts[whose] / counts[2]

    def predict_proba(self, images: Any) -> np.ndarray:
        """Probabilities (N, classes) of the classes in `classes_`, which add up to one."""
        return self._classify(images)[0]

    def predict(self, images: Any) -> np.ndarray:
        """The most probable label of each image."""
        probabilities, labels = self._classify(images)
        return labels[probabilities.argmax(1)]

    def score(self, images: Any, labels: Any) -> float:
        """Share of images, from 0 to 1, predicted correctly; a label that is not in `classes_` counts as a mistake."""
        predicted, plain = self.predict(images).tolist(), to_labels(labels)
        if len(predicted) != len(plain) or not plain:
            raise UsageError(f"there must be images with a label each, not {len(plain)} for {len(predicted)} images")
        return sum(map(eq, predicted, plain)) / len(plain)

    def _classify(self, images: Any) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities, and the labels of their columns, from one and the same state."""
        core = self._core  # once, for another may be put in its place while the images are read
        pixels = _read(core, images)
        probabilities, labels = self._worker(core.classify, pixels, is_awaited)
        return probabilities.numpy(), to_array(labels)

    # -- keeping it ----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Save the whole learner to one file; once loaded, it continues exactly as this one would.

        If you gave your own network, the file has its weights but not its code: pass it to `load` again.
        """
        core = self._core
        content, n_seen = self._worker(core.encoded)
        fileformat.write(path, content)
        core.saved = Path(path), n_seen

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str | None = None,
        network: str | Backbone | Callable[[int], Backbone] | None = None,
    ) -> Learner:
        """Load a learner from its file, on the device that it was made for or on another one.

        `network` is the function or module that the learner was made with, if its network was not given by name. Other
        parts of your own have to be registered (`cler.register`) before, as by importing your file.

        The file may come from a stranger: nothing in it is run, and all of it is checked.
        """
        tensors, about = apart_from_fork(fileformat.read, path)
        try:
            parameters = completed_parameters(about["parameters"])
            check_registered(parameters)
            parameters["network"] = _network(parameters["network"], network)
            if device is None and parameters["device"] == "cuda" and not torch.cuda.is_available():
                raise UsageError("it was made for a GPU, and torch sees none here; with device='cpu' it can")
            learner = cls(**parameters | ({} if device is None else {"device": device}))
            learner._worker(learner._core.restore, tensors, about)
        except UsageError as error:
            raise UsageError(f"{path} cannot be loaded: {error}") from None
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError):
            raise UsageError(f"{path} is damaged: its parts do not belong together") from None
        learner._core.saved = Path(path), learner._core.n_seen
        return learner

    def __getstate__(self) -> Content:
        core = self._core
        tensors, about = self._worker(core.copied_content)
        return tensors, about | {"parameters": core.parameters | core.own_classes}  # with one's own, not its name

    def __setstate__(self, content: Content) -> None:
        parameters = content[1]["parameters"]
        if parameters["device"] == "cuda" and not torch.cuda.is_available():
            parameters = parameters | {"device": "cpu"}  # there is nobody to ask for another one
        type(self).__init__(self, **parameters)
        self._worker(self._core.restore, *content)

    def export(self, path: str | Path) -> None:
        """Export the classifier as it is now, for use without cler: `.pt2` (torch.export) or `.onnx`.

        It takes any number of uint8 images (N, channels, image_size, image_size) and returns the probabilities of
        `classes_`, which are in the file too, as 'classes.json'. Before the file is written, its outputs are checked
        against this learner's. ONNX needs `pip install onnx onnxscript onnxruntime`.
        """
        self._worker(export, self._core, Path(path))

    # -- scikit-learn's conventions ------------------------------------------------------------------------------------

    def _explicit(self) -> list[str]:
        """The parameters that the signature names."""
        return list(inspect.signature(type(self).__init__).parameters)[1:-1]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters that it was made with."""
        return {name: getattr(self, name) for name in (*self._explicit(), *self._options)}

    def set_params(self, **changes: Any) -> Learner:
        """Change some of the parameters, before the first image."""
        with self._worker.alone():
            if self._core.n_seen:
                raise UsageError("a learner that has begun to learn cannot be changed; make a new one")
            wanted = self.get_params() | changes
            self._core = Core(wanted)
            vars(self).update(changes)
            others = [name for name in changes if name not in self._explicit()]
            self._options = tuple(dict.fromkeys([*self._options, *others]))
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return self._core.steps > 0

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
        )

    def __repr__(self) -> str:
        usual = resolved_parameters({})
        changed = {
            name: _shown(value)
            for name, value in self._core.parameters.items()
            if name not in usual or value != usual[name]
        }
        return f"Learner({', '.join(f'{name}={value}' for name, value in changed.items())})"


def _shown(value: Any) -> str:
    """A value in one line: a module would print all of its layers."""
    return f"<{type(value).__name__}>" if isinstance(value, nn.Module) else repr(value)


def _network(name: str, given: Any) -> Any:
    """The network for a learner's file that has this name for it: the name, or what is given in its place."""
    own = name.startswith(CUSTOM)
    if own and given is None:
        raise UsageError(f"its network is one of your own, {name.removeprefix(CUSTOM)}: load it with network=…")
    if not own and given not in (None, name):
        raise UsageError(f"its network is {name}: leave network out")
    elsewhere = name.startswith(TIMM) and not set(":/").isdisjoint(name.removeprefix(TIMM))
    if elsewhere and given is None:
        raise UsageError(f"its network is described outside of timm: if you trust it, load it with network='{name}'")
    return given if own else name


def _checked(core: Core, images: Any, labels: Any, classes: Any = None) -> tuple[Tensor, list[Label]]:
    """Images and labels as the core learns them."""
    pixels, plain = _read(core, images), to_labels(labels)
    if len(pixels) != len(plain):
        raise UsageError(f"there must be a label for each image, not {len(plain)} for {len(pixels)} images")
    core.check_allowed(plain)
    core.check_kind(plain)
    if classes is not None:
        core.check_allowed(check_among(plain, to_plain(classes)))
    return pixels, plain


def _read(core: Core, images: Any) -> Tensor:
    return apart_from_fork(to_pixels, images, channels=core.shape[0], size=core.shape[1]).to(core.device)
