"""The settings of a run, checked when they are made, and the defaults of those that are not given."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from cler.config.cluster import Slurm, read_on, read_slurm
from cler.config.protocols import PROTOCOLS, protocol_defaults
from cler.config.registry import DATASETS, METHODS, NETWORKS, OPTIMIZERS, REGULARIZERS, STREAMS, TEACHERS, VIEWS
from cler.config.schema import Setting, check_all, joined, setting, settings_of
from cler.errors import UsageError, unknown

PRECISIONS = ("fp32", "tf32", "bf16")
CLASSIFIERS = ("network", "ncm")
DEVICES = ("auto", "cpu", "cuda")
CUSTOM = "custom:"
"""Prefix of the names of networks that were given from Python as objects."""
OF_REPLAY = ("buffer", "replay_batch", "repeats", "classifier")
"""Settings that mean nothing to a method without a buffer."""
OWN_SEED = "seed"
"""The class order of a run that is permuted by its own seed."""
PARTS = ("method", "regularizer", "network", "teacher", "stream")
"""The settings that name a part of a run which may have settings of its own."""


def read_tasks(value: Any) -> int | str:
    """A number of equal tasks, or the number of classes of each: '5+5+10', or a list."""
    sizes = value.split("+") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else [value]
    if any(isinstance(size, bool) for size in sizes):
        sizes = ["not a number"]
    try:
        numbers = [int(size) for size in sizes]
    except (OverflowError, TypeError, ValueError):
        numbers = []
    if not numbers or min(numbers) < 1 or max(numbers) > 10_000 or len(numbers) > 10_000 or isinstance(value, float):
        raise ValueError(f"must be a number of tasks, or the classes of each as 5+5+10, not {value!r}")
    return numbers[0] if len(numbers) == 1 else joined(numbers)


def number_of_tasks(tasks: int | str) -> int:
    """How many tasks the setting `tasks` means."""
    return tasks if isinstance(tasks, int) else tasks.count("+") + 1


def read_class_order(value: Any) -> int | str:
    """The seed of a permutation, or 'seed' for that of the run."""
    if value == OWN_SEED:
        return OWN_SEED
    text = str(value)
    if isinstance(value, bool | float) or not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise ValueError(f"must be a whole number from 0 to 999999, or {OWN_SEED}, not {value!r}")
    return int(text)


def read_regularizer(value: Any) -> str:
    """'none', a regularizer, or several joined by '+', each of which is known."""
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a regularizer, or several as jigsaw+barlow-twins, not {value!r}")
    names = value.split("+")
    for name in names:
        if name not in REGULARIZERS and (name != "none" or len(names) > 1):
            raise unknown("regularizer", name, ["none", *REGULARIZERS])
    if len(set(names)) < len(names):
        raise ValueError(f"must name different regularizers, not {value!r}")
    return value


def read_teacher(value: Any) -> str:
    """'none', or a teacher that is known."""
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a teacher, not {value!r}")
    if value != "none" and value not in TEACHERS:
        raise unknown("teacher", value, ["none", *TEACHERS])
    return value


def read_weight(value: Any) -> float | str:
    """A number from zero, or one for each of several regularizers, joined by '+'."""
    parts = value.split("+") if isinstance(value, str) else [value]
    try:
        numbers = [float(part) for part in parts if not isinstance(part, bool)]
    except (OverflowError, TypeError, ValueError):
        numbers = []
    if len(numbers) != len(parts) or not all(0 <= number <= 1e30 for number in numbers):
        raise ValueError(f"must be a number from 0 to 1e30, or several as 1.5+0.01, not {value!r}")
    return numbers[0] if len(numbers) == 1 else joined([f"{number:g}" for number in numbers])


def read_network(value: Any) -> str:
    """The name of a network; that of a method's own, or of an object from Python, stays as it is."""
    known = [*NETWORKS, *(name for name, method in METHODS.items() if _has_own_network(method))]
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a network, not {value!r}")
    if not value.startswith("timm:") and value not in known:
        raise unknown("network", value, [*NETWORKS, "timm:NAME"])
    return value


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run, its seed aside."""

    method: str = setting("er-ace", "The continual learner; `cler methods` lists them.", choices=METHODS)
    regularizer: str = setting(
        "none",
        "Regularizer added to the method: none, one, or several as jigsaw+barlow-twins.",
        role="addition",
        read=read_regularizer,
    )
    teacher: str = setting(
        "none",
        "Slow copy of the network that answers in its place, or teaches it: none, ema or mkd.",
        read=read_teacher,
    )
    protocol: str | None = setting(
        None, "Take the settings of a protocol where nothing else is said.", choices=PROTOCOLS, learner=False
    )
    dataset: str = setting(
        "cifar10-sample", "The dataset; `cler data list` lists them.", choices=DATASETS, learner=False
    )
    stream: str = setting(
        "class-incremental", "What arrives when; `cler methods` lists the streams.",
        choices=STREAMS, benchmark=True, learner=False,
    )  # fmt: skip
    tasks: int | str = setting(
        5, "Tasks that the classes are split into: a number, or the classes of each as 5+5+10.",
        read=read_tasks, benchmark=True, learner=False,
    )  # fmt: skip
    buffer: int = setting(500, "Images that the replay buffer holds.", least=0, most=10_000_000)
    epochs: int = setting(1, "Passes over each task; 1 is online.", least=1, most=10_000, benchmark=True, learner=False)
    lr: float = setting(0.01, "Learning rate.", above=0, most=1e30, tuned=True)
    weight: float | str = setting(
        0.0, "What the regularizer's loss is multiplied by.", role="addition", read=read_weight
    )
    batch: int = setting(10, "Images of the stream in a batch.", least=1, most=100_000, benchmark=True)
    replay_batch: int = setting(10, "Images of the buffer in a batch.", least=1, most=100_000)
    repeats: int = setting(
        1, "Steps on each batch of the stream, each with a new view of it and a new replay.", least=1, most=10_000
    )
    optimizer: str = setting("sgd", "The optimizer.", choices=OPTIMIZERS)
    sgd_momentum: float = setting(0.0, "Momentum of sgd.", least=0, most=1)
    weight_decay: float | None = setting(None, "Weight decay (default: the optimizer's own).", least=0, most=1e30)
    network: str = setting(
        "resnet18", "The network: a name that `cler methods` lists, or timm:NAME.", absent="resnet18", read=read_network
    )
    width: int = setting(64, "Filters of the first layer of our own networks.", least=1, most=1024)
    pretrained: bool = setting(False, "Start from pretrained weights (timm networks).")
    freeze: bool = setting(False, "Freeze the network up to its tap, the layer that CLER reads.")
    augment: str = setting("crop-flip", "Augmentation of the images that classification trains on.", choices=VIEWS)
    normalize: bool = setting(
        True, "Normalize pixels by the dataset's mean and deviation; without it they are from 0 to 1.", learner=False
    )
    class_order: int | str | None = setting(
        None, "Seed of a permutation of the classes, or seed for each run's own (default: their natural order).",
        read=read_class_order, benchmark=True, learner=False,
    )  # fmt: skip
    classifier: str = setting(
        "network", "Who answers in evaluation: the network, or the nearest class mean of the buffer's features (ncm).",
        choices=CLASSIFIERS, learner=False,
    )  # fmt: skip
    validate: float = setting(
        0.0, "Share of each task's training images to hold out and report accuracy on.",
        least=0, most=0.9, benchmark=True, learner=False,
    )  # fmt: skip
    evaluate_every: int = setting(
        0, "Steps between evaluations within tasks, which also predict the stream before learning it; 0 is none.",
        least=0, most=10_000_000, role="bits", learner=False,
    )  # fmt: skip
    precision: str = setting("fp32", "Precision of the arithmetic.", choices=PRECISIONS, learner=False)
    threads: int = setting(1, "CPU threads of each run.", least=1, most=1024, role="bits", learner=False)
    compile: bool = setting(False, "Compile the network with torch.compile; takes minutes.", role="bits", learner=False)
    options: dict[str, Any] = field(default_factory=dict)
    """Own settings of the method and the other parts; in files they stand beside the others."""

    def __post_init__(self) -> None:
        check_all(self)
        method = METHODS.find(self.method)
        own = own_settings(*_parts(self))
        for name in self.options:
            if name not in own:
                raise _no_such_option(self.method, name, own)
        complete = {name: each.checked(self.options.get(name, each.default)) for name, each in own.items()}
        object.__setattr__(self, "options", complete)
        _ = self.method_options
        if not fits(self.method, self.teacher):
            taught = ", ".join(name for name in METHODS if fits(name, self.teacher))
            raise UsageError(f"{self.teacher} cannot teach {self.method}; it can teach {taught}", "teacher")
        if lacking := lacks(self.stream, self.method):
            known = ", ".join(name for name in METHODS if not lacks(self.stream, name))
            raise UsageError(f"{self.stream} {lacking}, which {self.method} needs; it can have {known}", "stream")
        entries = [REGULARIZERS[name] for name in self.regularizers]
        smallest = max([method.smallest_batch, *(entry.smallest_batch for entry in entries)])
        if self.batch < smallest:
            raise UsageError(f"must be at least {smallest} for {self.pair}, not {self.batch}", "batch")
        if method.replays and self.buffer < self.replay_batch:
            raise UsageError(
                f"{self.buffer} is smaller than the replay batch of {self.replay_batch}, drawn from it without "
                "repetition: make the buffer larger, or the replay batch smaller",
                "buffer",
            )
        if self.classifier == "ncm" and not method.replays:
            raise UsageError(
                f"ncm is by the images of a buffer, and {self.method} has none: leave it out", "classifier"
            )
        if self.repeats > 1 and not method.replays:
            raise UsageError(f"{self.repeats} is for methods with a buffer, and {self.method} has none", "repeats")
        if self.repeats > 1 and method.own_repeats:
            raise UsageError(f"{self.repeats}: {self.method} has {method.own_repeats} instead; set that", "repeats")
        weights = str(self.weight).count("+") + 1
        if weights > 1 and weights != len(entries):
            raise UsageError(
                f"{self.weight} has {weights} parts for {len(entries)} regularizers: give one for each", "weight"
            )
        if _has_own_network(method) and self.network != self.method:
            raise UsageError(f"{self.network}: {self.method} has a network of its own; leave it out", "network")
        if not _has_own_network(method) and is_own_network(self.network):
            raise UsageError(f"{self.network} is the network of the method of that name alone", "network")

    @property
    def pair(self) -> str:
        """Method, regularizer and teacher, as names of folders have them."""
        return joined([self.method, *(each for each in (self.regularizer, self.teacher) if each != "none")])

    @property
    def regularizers(self) -> list[str]:
        """The regularizers, by name."""
        return [] if self.regularizer == "none" else self.regularizer.split("+")

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


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and how runs are trained, which does not change their results."""

    on: str = setting(
        "local", "Who trains: local, this machine; slurm; ray, a cluster started here; ray:HOST:PORT, a running one.",
        role="machine", read=read_on,
    )  # fmt: skip
    slurm: Slurm | None = setting(
        None, "Settings file whose table [slurm] has partition, time, account and so on.",
        role="machine", read=read_slurm,
    )  # fmt: skip
    give_up_after: float = setting(
        600.0, "Seconds without events after which a machine of slurm or ray is given up.",
        above=0, most=1e9, role="machine",
    )  # fmt: skip
    device: str = setting(
        "auto", "Where to train; auto is the GPU where there is one.", choices=DEVICES, role="machine"
    )
    workers: int | None = setting(
        None,
        "Processes on a CPU (default: as many as its cores allow); bundles to share runs out to on slurm or ray.",
        least=1,
        most=10_000,
        role="machine",
    )
    at_once: int | None = setting(
        None, "Runs side by side on a GPU (default: as many as fit).", least=1, most=1000, role="machine"
    )
    data_dir: Path | None = setting(None, "Folder of the datasets.", role="machine")
    out: Path = setting(Path("runs"), "Folder for the results.", role="machine")
    checkpoint_every: float = setting(
        60.0, "Seconds between checkpoints; 0 is only after each task.", least=0, most=1e9, role="machine"
    )
    graph: bool = setting(
        True, "Recording of GPU steps as a CUDA graph; without it, for debugging, ten times slower.", role="machine"
    )
    save_network: bool = setting(
        False, "Keep the trained network of each run beside its result, as network.safetensors.", role="machine"
    )
    until_task: int | None = setting(
        None,
        "Stop after this many tasks, and compare what there is; without it the same command resumes.",
        least=1,
        most=100_000,
        role="machine",
    )

    def __post_init__(self) -> None:
        check_all(self)


def fits(method: str, teacher: str) -> bool:
    """Whether the method can be trained beside the teacher: one that teaches needs one that is teachable."""
    teaches = teacher in TEACHERS and TEACHERS[teacher].teaches
    return not teaches or bool(METHODS.find(method).teachable)


def lacks(stream: str, method: str) -> str | None:
    """What a method needs that a stream does not have, in words."""
    has, needs = STREAMS.find(stream), METHODS.find(method)
    if needs.merged or needs.task_free:
        return None
    if not has.boundaries:
        return "does not say where tasks begin and end"
    return "has no tasks with classes of their own" if needs.own_classes and not has.disjoint else None


def own_settings(
    method: str,
    regularizer: str = "none",
    network: str = "resnet18",
    teacher: str = "none",
    stream: str = "class-incremental",
) -> dict[str, Setting]:
    """The settings that only these parts of a run have, by name."""
    parts = [METHODS.find(method)]
    parts += [REGULARIZERS[name] for name in regularizer.split("+") if name in REGULARIZERS]
    parts += [NETWORKS[network]] if network in NETWORKS else []
    parts += [TEACHERS[teacher]] if teacher in TEACHERS else []
    parts += [STREAMS[stream]] if stream in STREAMS else []
    own: dict[str, Setting] = {}
    for part in parts:
        for name, each in settings_of(part.Options).items() if getattr(part, "Options", None) else ():
            if name in own or name in settings_of(Settings):
                raise UsageError(
                    f"is an option of two parts of {method} with {regularizer} on {network}: rename one", name
                )
            own[name] = each
    return own


def _no_such_option(method: str, name: str, own: Mapping[str, Setting]) -> UsageError:
    if not own:
        return UsageError(f"unknown setting '{name}': {method} has none of its own, and no run has it")
    return unknown(f"setting of {method}", name, own)


def _has_own_network(method: Any) -> bool:
    return bool(getattr(method, "own_network", False))


def is_own_network(name: str) -> bool:
    """Whether this is the network that one method alone works with."""
    return name in METHODS and _has_own_network(METHODS[name])


def _has_width(network: str) -> bool:
    """Whether the width of a network can be chosen: of ours, not of timm's and of a user's own."""
    if network in NETWORKS:
        return getattr(NETWORKS[network], "width", None) is not None
    return is_own_network(network)


Defaults = Callable[[str, str, str, int | None], Mapping[str, Any]]
"""From method, regularizer, dataset and buffer (None: not given) to the settings that are usual for them."""
SOURCES = ("cler.paper.settings",)
"""Modules with a function `defaults` of that kind; one that is not there has nothing to say."""


def usual(
    method: str,
    regularizer: str,
    dataset: str,
    buffer: int | None = None,
    network: str | None = None,
    protocol: str | None = None,
) -> dict[str, Any]:
    """Values of settings that are not given: the defaults, the dataset's, the paper's, a protocol's, a network's."""
    values = {name: each.default for name, each in settings_of(Settings).items()}
    values |= dict(getattr(DATASETS.find(dataset), "defaults", {}))
    if _has_own_network(METHODS.find(method)):
        values["network"] = method
    weights = [REGULARIZERS.find(name).weight for name in regularizer.split("+") if name != "none"]
    values["weight"] = read_weight(joined(weights)) if weights else 0.0
    for defaults in _sources():
        values |= dict(defaults(method, regularizer, dataset, buffer))
    values |= protocol_defaults(protocol, method, regularizer)
    if network is not None and network in NETWORKS:
        values |= {"network": network, **dict(getattr(NETWORKS[network], "defaults", {}))}
    return values | {"method": method, "regularizer": regularizer, "dataset": dataset}


def _sources() -> Iterator[Defaults]:
    for name in SOURCES:
        try:
            yield import_module(name).defaults
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise


def make_settings(**given: Any) -> Settings:
    """Settings from the given values and the usual ones for the rest; None is not given, unless None is a value."""
    declared = settings_of(Settings)
    optional = {name for name, each in declared.items() if each.optional}
    given = {name: value for name, value in given.items() if value is not None or name in optional}
    given |= given.pop("options", {})
    method, dataset = (
        declared[name].checked(given.get(name, declared[name].default)) for name in ("method", "dataset")
    )
    regularizer = declared["regularizer"].checked(given.get("regularizer", Settings.regularizer))
    protocol = declared["protocol"].checked(given.get("protocol"))
    expected = usual(method, regularizer, dataset, given.get("buffer"), given.get("network"), protocol)
    if given.get("optimizer", expected["optimizer"]) != expected["optimizer"]:
        expected |= {name: declared[name].default for name in ("sgd_momentum", "weight_decay")}
    merged = expected | given
    if regularizer == "none":
        if given.get("weight") not in (None, 0, 0.0):
            raise UsageError(f"{given['weight']} has no effect without a regularizer: leave it out", "weight")
        merged["weight"] = 0.0
    if not METHODS.find(method).replays:
        for name in ("buffer", "replay_batch"):
            if given.get(name):
                raise UsageError(f"{given[name]} has no effect: {method} has no buffer; leave it out", name)
        merged["buffer"] = 0
    if given.get("width") is not None and not _has_width(merged["network"]):
        raise UsageError(f"{given['width']} has no effect on {merged['network']}: leave it out", "width")
    teacher, stream = (declared[name].checked(merged[name]) for name in ("teacher", "stream"))
    own = own_settings(method, regularizer, merged["network"], teacher, stream)
    options = {name: merged.pop(name) for name in list(merged) if name in own}
    if strange := sorted(merged.keys() - declared.keys()):
        raise _no_such_option(method, strange[0], own)
    return Settings(**merged, options=options)


def grid(given: Mapping[str, Any]) -> list[Settings]:
    """The settings of every combination of what is given; a list stands for several values.

    A value that means nothing to one of several methods, regularizers or teachers is left out: a method alone has no
    weight.
    """
    several = any(isinstance(given.get(name), list) for name in PARTS)
    values = [value if isinstance(value, list) else [value] for value in given.values()]
    made = []
    for each in itertools.product(*values):
        one = dict(zip(given, each, strict=True))
        if one.get("regularizer") == "none" and isinstance(given["regularizer"], list):
            one.pop("weight", None)
        if isinstance(given.get("method"), list) and not METHODS.find(one["method"]).replays:
            one = {name: value for name, value in one.items() if name not in OF_REPLAY}
        if several:
            own = own_settings(*(str(one.get(name) or getattr(Settings, name)) for name in PARTS))
            one = {name: value for name, value in one.items() if name in own or name in settings_of(Settings)}
        made.append(make_settings(**one))
    return list({str(one.to_dict()): one for one in made}.values())


def unusual(settings: Settings) -> dict[str, Any]:
    """The settings that differ from the usual ones, except for method, regularizer, teacher, dataset and buffer."""
    network = None if is_own_network(settings.network) else settings.network
    expected = usual(
        settings.method, settings.regularizer, settings.dataset, settings.buffer, network, settings.protocol
    )
    expected |= {name: each.default for name, each in own_settings(*_parts(settings)).items() if name not in expected}
    if settings.network != Settings.network and network is not None:
        expected["network"] = Settings.network
    shown = {"method", "regularizer", "teacher", "dataset", "buffer"}
    return {name: value for name, value in settings.to_dict().items() if name not in shown and value != expected[name]}


def _parts(settings: Settings) -> list[str]:
    return [getattr(settings, name) for name in PARTS]
