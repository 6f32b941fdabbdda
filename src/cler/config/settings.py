"""The settings of a run, checked when they are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cler.config.compatibility import check_goes_together
from cler.config.machine import Machine
from cler.config.protocols import PROTOCOLS
from cler.config.registry import (
    DATASETS,
    METHODS,
    NETWORKS,
    OPTIMIZERS,
    REGULARIZERS,
    STREAMS,
    TEACHERS,
    VIEWS,
    Registry,
)
from cler.config.schema import Setting, check_all, joined, setting, settings_of
from cler.config.values import (
    read_class_order,
    read_network,
    read_regularizer,
    read_tasks,
    read_teacher,
    read_weight,
    regularizers_in,
)
from cler.errors import UsageError, hint

PRECISIONS = ("fp32", "tf32", "bf16")
CLASSIFIERS = ("network", "ncm")
FITS = ("crop", "pad", "stretch")
OF_READING = ("size", "fit", "test_share", "skip_broken")
"""Settings that say how your own dataset is read; a dataset names those that it `takes`."""
CUSTOM = "custom:"
"""Prefix of the names of networks that were given from Python as objects."""
OF_REPLAY = ("buffer", "replay_batch", "repeats", "classifier")
"""Settings that mean nothing to a method without a buffer."""
PARTS: Mapping[str, Registry[Any]] = {
    "method": METHODS, "regularizer": REGULARIZERS, "network": NETWORKS, "teacher": TEACHERS, "stream": STREAMS,
}  # fmt: skip
"""The settings that name a part of a run, which may have its own settings, and the table of all such parts."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run, its seed aside."""

    method: str = setting("er-ace", "The method; `cler methods` lists them.", choices=METHODS)
    regularizer: str = setting(
        "none",
        "Regularizer to add to the method: none, one, or several, such as jigsaw+barlow-twins.",
        role="addition",
        read=read_regularizer,
    )
    teacher: str = setting(
        "none",
        "Slow copy of the network that answers in its place or teaches it: none, ema or mkd.",
        read=read_teacher,
    )
    protocol: str | None = setting(
        None, "Protocol: a named set of defaults. Settings that you give win.", choices=PROTOCOLS, learner=False
    )
    dataset: str = setting(
        "cifar10-sample",
        "The dataset: a name from `cler data list`, folder:PATH, domains:PATH, npz:PATH or hf:NAME.",
        choices=DATASETS, learner=False,
    )  # fmt: skip
    size: int | None = setting(
        None, "Side, in pixels, that your own images are resized to (default: their own size, if they all share it).",
        least=4, most=1024, benchmark=True, learner=False,
    )  # fmt: skip
    fit: str | None = setting(
        None, "How your own images are resized (default: crop).",
        choices=FITS, benchmark=True, learner=False,
    )  # fmt: skip
    test_share: float | None = setting(
        None, "Share of each class to test on, if your dataset has no test images (default: 0.2).",
        above=0, most=0.9, benchmark=True, learner=False,
    )  # fmt: skip
    skip_broken: bool = setting(
        False, "Skip images in your dataset that cannot be read, instead of stopping.", learner=False
    )
    stream: str = setting(
        "class-incremental", "What arrives when; `cler methods` lists the streams.",
        choices=STREAMS, benchmark=True, learner=False,
    )  # fmt: skip
    tasks: int | str = setting(
        5, "How many tasks to split the classes into, or how many classes each has, such as 5+5+10.",
        read=read_tasks, benchmark=True, learner=False,
    )  # fmt: skip
    buffer: int = setting(500, "Number of images in the replay buffer.", least=0, most=10_000_000)
    epochs: int = setting(
        1, "Passes over each task; 1 is online learning.", least=1, most=10_000, benchmark=True, learner=False
    )
    lr: float = setting(0.01, "Learning rate.", above=0, most=1e30, tuned=True)
    weight: float | str = setting(
        0.0,
        "Weight of the regularizer's loss, or one for each, such as 1.5+0.01 (default: the paper's, or its own).",
        role="addition",
        read=read_weight,
    )
    batch: int = setting(10, "Number of images from the stream in a batch.", least=1, most=100_000, benchmark=True)
    replay_batch: int = setting(10, "Number of images from the buffer in a batch.", least=1, most=100_000)
    repeats: int = setting(
        1, "Steps on each batch of the stream, each with a new view and a new buffer draw.", least=1, most=10_000
    )
    optimizer: str = setting("sgd", "The optimizer.", choices=OPTIMIZERS)
    sgd_momentum: float = setting(0.0, "Momentum of sgd.", least=0, most=1)
    weight_decay: float | None = setting(None, "Weight decay (default: the optimizer's).", least=0, most=1e30)
    network: str = setting(
        "resnet18", "The network: a name from `cler methods`, or timm:NAME.", absent="resnet18", read=read_network
    )
    width: int = setting(64, "Filters in the first layer of the built-in networks.", least=1, most=1024)
    pretrained: bool = setting(False, "Start from pretrained weights (timm networks).")
    freeze: bool = setting(False, "Freeze the network up to its tap, the layer that CLER reads.")
    augment: str = setting("crop-flip", "How to augment the images that classification trains on.", choices=VIEWS)
    normalize: bool = setting(
        True, "Normalize pixels by the dataset's mean and deviation; otherwise they are from 0 to 1.", learner=False
    )
    class_order: int | str | None = setting(
        None, "Seed for the order of the classes, or 'seed' for each run's own seed (default: their natural order).",
        read=read_class_order, benchmark=True, learner=False,
    )  # fmt: skip
    classifier: str = setting(
        "network", "What classifies in evaluation: the network, or the nearest class mean in the buffer (ncm).",
        choices=CLASSIFIERS, learner=False,
    )  # fmt: skip
    validate: float = setting(
        0.0, "Share of each task's training images to hold out; accuracy on them is reported.",
        least=0, most=0.9, benchmark=True, learner=False,
    )  # fmt: skip
    evaluate_every: int = setting(
        0, "Also evaluate within tasks, every so many steps, and predict each batch before learning it; 0 means never.",
        least=0, most=10_000_000, role="bits", learner=False,
    )  # fmt: skip
    precision: str = setting(
        "fp32", "Precision of the arithmetic (default: bf16 on a GPU that has it, fp32 elsewhere).",
        choices=PRECISIONS, learner=False,
    )  # fmt: skip
    threads: int = setting(1, "CPU threads for each run.", least=1, most=1024, role="bits", learner=False)
    compile: bool = setting(
        False, "Compile the network with torch.compile, which takes minutes.", role="bits", learner=False
    )
    options: dict[str, Any] = field(default_factory=dict)
    """The method's and the other parts' own settings; files list them with the others."""

    def __post_init__(self) -> None:
        check_all(self)
        own = own_settings(vars(self))
        for name in self.options:
            if name not in own:
                raise no_such_option(self.method, name, own)
        complete = {name: each.checked(self.options.get(name, each.default)) for name, each in own.items()}
        object.__setattr__(self, "options", complete)
        _ = self.method_options  # which may refuse some together
        check_reading(self.dataset, self.reading)
        check_goes_together(self)

    @property
    def pair(self) -> str:
        """Method, regularizer and teacher, as names of folders have them: 'er-ace+jigsaw+ema'."""
        return pair_of(self.method, self.regularizer, self.teacher)

    @property
    def reading(self) -> dict[str, Any]:
        """How the dataset is read, by the names of the settings that say so."""
        return {name: getattr(self, name) for name in OF_READING}

    @property
    def regularizers(self) -> list[str]:
        """The regularizers, by name."""
        return regularizers_in(self.regularizer)

    @property
    def weights(self) -> list[float]:
        """What the loss of each regularizer is multiplied by."""
        parts = [float(part) for part in str(self.weight).split("+")]
        return parts if len(parts) > 1 else parts * len(self.regularizers)

    @property
    def method_options(self) -> Any:
        """The method's own settings, as its `Options`."""
        return self.options_of(METHODS.find(self.method))

    def options_of(self, part: Any) -> Any:
        """The own settings of a part of the run, as its `Options`."""
        names = {each.name for each in dataclasses.fields(part.Options)}
        return part.Options(**{name: value for name, value in self.options.items() if name in names})

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain values, as in files: the own settings of parts beside the others."""
        values = {name: getattr(self, name) for name in settings_of(Settings)}
        return values | self.options


def check_reading(dataset: str, how: Mapping[str, Any]) -> None:
    """Refuse settings of the reading that a dataset does not take."""
    for name, value in how.items():
        if value != getattr(Settings, name) and name not in taken_by(dataset):
            raise UsageError(f"has no effect on {dataset}: leave it out", name)
    check_fit_has_size(how)


def taken_by(dataset: str) -> Collection[str]:
    """The settings of the reading that a dataset takes."""
    taken: Collection[str] = getattr(DATASETS.find(dataset), "takes", ())
    return taken


def check_fit_has_size(how: Mapping[str, Any]) -> None:
    """Refuse a way to fit images to a size that is not given."""
    if how.get("fit") is not None and how.get("size") is None:
        raise UsageError("has no effect without a size: give that too, or leave it out", "fit")


def pair_of(method: str, regularizer: str, teacher: str) -> str:
    """Method, regularizer and teacher, as names of folders have them: 'er-ace+jigsaw+ema'."""
    return joined([method, *(each for each in (regularizer, teacher) if each != "none")])


def own_settings(chosen: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings that only the chosen parts of a run have, by name; a part that is not named is the usual one."""
    names = {kind: str(chosen.get(kind) or getattr(Settings, kind)) for kind in PARTS}
    METHODS.find(names["method"])
    own: dict[str, Setting] = {}
    for kind, table in PARTS.items():
        for part in names[kind].split("+") if kind == "regularizer" else [names[kind]]:
            for name, each in _own_of(table[part]).items() if part in table else ():
                if name in settings_of(Settings):
                    raise UsageError(f"{name} is already a setting of all runs: rename that of the {kind} {part}")
                if name in own:
                    told = f"{names['method']} with {names['regularizer']} on {names['network']}"
                    raise UsageError(f"is an option of two parts of {told}: rename one", name)
                own[name] = each
    return own


def _own_of(part: Any) -> dict[str, Setting]:
    options: Any = getattr(part, "Options", None)
    if not options:
        return {}
    named = f"the Options of {getattr(part, 'name', part)}"
    made = getattr(options, "__dataclass_params__", None)
    if made is None or not made.frozen:
        raise UsageError(f"{named} must be a frozen dataclass: write @dataclass(frozen=True) above the class")
    for each in dataclasses.fields(options):
        if each.default is dataclasses.MISSING:
            raise UsageError(f"{named} must have defaults: {each.name} has none")
    return settings_of(options)


def parts_with(name: str) -> list[str]:
    """The parts, such as 'stream blurry', that have a setting of this name of their own."""
    return [
        f"{kind} {part}"
        for kind, table in PARTS.items()
        for part, entry in table.items()
        if name in getattr(getattr(entry, "Options", None), "__dataclass_fields__", ())  # of one that may be refused
    ]


def elsewhere(name: str) -> str:
    """The end of a line about a setting that these parts do not have: the parts that have one of that name."""
    others = [f"the {each}" for each in parts_with(name)]
    return f"; {', '.join(others)} {'has' if len(others) == 1 else 'have'} one of that name" if others else ""


def usual_on(dataset: str) -> Mapping[str, Any]:
    """The dataset's own defaults of settings, if it has any."""
    defaults: Mapping[str, Any] = getattr(DATASETS.find(dataset), "defaults", {})
    return defaults


def usual_stream(dataset: str) -> str:
    """The stream of runs on a dataset where none is given."""
    return str(usual_on(dataset).get("stream", Settings.stream))


def no_such_option(method: str, name: str, own: Mapping[str, Setting]) -> UsageError:
    """The error for a setting that neither all runs nor these parts have."""
    of_its_own = f"only has {', '.join(own)} of its own" if own else "has none of its own"
    meant = elsewhere(name) or hint(name, [*own, *settings_of(Settings), *settings_of(Machine), "seeds"])
    return UsageError(
        f"unknown setting '{name}': {method} {of_its_own}, and `cler run --help` lists those of all runs{meant}"
    )
