"""Everything that decides what a run computes, checked when it is made."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, get_type_hints

from cler.data.images import DATASETS
from cler.data.images import find as find_dataset
from cler.engine import PRECISIONS
from cler.errors import UsageError, unknown
from cler.methods import METHODS, find_method
from cler.methods.base import OPTIMIZERS
from cler.regularizers import REGULARIZERS, find_regularizer

LARGEST_SEED = 999_999
MOST = {"tasks": 10_000, "epochs": 10_000, "batch": 100_000, "replay_batch": 100_000, "width": 1024, "threads": 1024}
"""What no machine of today could do anyway: beyond it there is a slip of the finger."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run, its seed aside."""

    method: str = "er-ace"
    regularizer: str = "none"
    dataset: str = "cifar10-sample"
    tasks: int = 5
    buffer: int = 500
    """Images the memory holds; 0 for a method that has none."""
    epochs: int = 1
    lr: float = 0.01
    weight: float = 0.0
    """λ_r, what the regularizer's loss is multiplied by; 0 without one."""
    batch: int = 10
    replay_batch: int = 10
    optimizer: str = "sgd"
    width: int = 64
    """Filters of the network's first layer."""
    class_order: int | None = None
    """Seed of a permutation of the classes; None for their natural order."""
    precision: str = "fp32"
    threads: int = 1
    """CPU threads of the run: part of what makes results repeatable to the bit."""
    compile: bool = False
    """Whether torch.compile fuses what the network does between its convolutions."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings that only this method has; in files they stand beside the others."""

    def __post_init__(self) -> None:
        method = find_method(self.method)
        find_dataset(self.dataset)
        entry = find_regularizer(self.regularizer)
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        for name, most in MOST.items():
            _positive(name, getattr(self, name), most)
        _positive("lr", self.lr, 1e30)
        if self.class_order is not None and not 0 <= self.class_order <= LARGEST_SEED:
            raise UsageError(f"--class-order is a seed from 0 to {LARGEST_SEED}, not {self.class_order}")
        if self.buffer > 10_000_000:
            raise UsageError(f"--buffer must be at most 10000000 images, not {self.buffer}")
        if not 0 <= self.weight <= 1e30:
            raise UsageError(f"--weight must be a number from 0 to 1e30, not {self.weight}")
        _ = self.method_options
        smallest = max(method.smallest_batch, entry.smallest_batch if entry else 1)
        if self.batch < smallest:
            raise UsageError(f"--batch must be at least {smallest} for {self.pair}, not {self.batch}")
        if method.replays and self.buffer < self.replay_batch:
            raise UsageError(
                f"--buffer {self.buffer} is smaller than --replay-batch {self.replay_batch}: "
                "a replay batch is drawn without repetition, so the memory has to hold one"
            )

    @property
    def pair(self) -> str:
        """Method and regularizer, as folder names and the settings file write them."""
        return self.method if self.regularizer == "none" else f"{self.method}+{self.regularizer}"

    @property
    def method_options(self) -> Any:
        """The method's own settings, as its `Options`."""
        kinds = option_kinds(self.method)
        for name in self.options:
            if not kinds:
                raise UsageError(f"{self.method} has no settings of its own: leave out '{name}'")
            if name not in kinds:
                raise unknown(f"option of {self.method}", name, kinds)
        return find_method(self.method).Options(**self.options)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in `settings.json`, the method's own beside the others."""
        values = dataclasses.asdict(self)
        del values["options"]
        if not self.compile:
            del values["compile"]  # results from before it could be set are of the same settings
        return values | dataclasses.asdict(self.method_options)


def _usual(method: str, regularizer: str, dataset: str, buffer: int | None) -> dict[str, Any]:
    """What the paper, or this package where the paper does not say, takes for a method on a data set."""
    about = paper_settings().get(dataset, {})
    by_method = about.get("methods", {})
    usual = {name: value for name, value in about.items() if name != "methods"}
    usual["weight"] = REGULARIZERS[regularizer].weight if regularizer in REGULARIZERS else 0.0
    buffer = usual.get("buffer", Settings.buffer) if buffer is None else buffer
    for name in (method, f"{method}+{regularizer}"):
        usual |= by_method.get(name, {}) | by_method.get(f"{name}@{buffer}", {})
    return usual


def unusual(settings: Settings) -> dict[str, Any]:
    """The settings that somebody has changed, but for method, regularizer, data set and the memory's size."""
    chosen = settings.method, settings.regularizer, settings.dataset, settings.buffer
    usual = {each.name: each.default for each in dataclasses.fields(Settings)}
    usual |= dataclasses.asdict(find_method(settings.method).Options()) | _usual(*chosen)
    usual |= dict(zip(("method", "regularizer", "dataset", "buffer"), chosen, strict=True))
    return {name: value for name, value in settings.to_dict().items() if value != usual[name]}


def label_of(method: str, regularizer: str) -> str:
    """As a reader knows them: 'ER-ACE + CLER (jigsaw)'; names that this version does not know stay as they are."""
    title = METHODS[method].title if method in METHODS else method
    if regularizer == "none":
        return title
    return f"{title} + {REGULARIZERS[regularizer].title if regularizer in REGULARIZERS else regularizer}"


def option_kinds(method: str) -> dict[str, str]:
    """Names and kinds of the settings that only this method has."""
    options = find_method(method).Options
    kinds = get_type_hints(options)
    return {each.name: getattr(kinds[each.name], "__name__", str(each.type)) for each in dataclasses.fields(options)}


def option_defaults(method: str) -> dict[str, Any]:
    """The same with what they are where nobody says otherwise."""
    return dataclasses.asdict(find_method(method).Options())


def option_docs(method: str) -> dict[str, str]:
    """What the settings mean that only this method has: the docstrings below them, in one line each."""
    docs = dict.fromkeys(option_kinds(method), "")
    try:
        source = textwrap.dedent(inspect.getsource(find_method(method).Options))
    except OSError:  # of a class that was not read from a file
        return docs
    body = getattr(ast.parse(source).body[0], "body", ())
    for name, below in itertools.pairwise(body):
        if isinstance(name, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            docs[ast.unparse(name.target)] = " ".join(str(below.value.value).split())
    return docs


def _positive(name: str, value: float, most: float) -> None:
    flag = f"--{name.replace('_', '-')}"
    if not value > 0:  # so that NaN does not pass either
        raise UsageError(f"{flag} must be larger than zero, not {value}")
    if value > most:
        raise UsageError(f"{flag} must be at most {most}, not {value}")


def make_settings(**given: Any) -> Settings:
    """Settings from what the user gave (None: nothing), the rest as in the paper for that method and data set."""
    given = {name: value for name, value in given.items() if value is not None}
    method = find_method(given.get("method", Settings.method))
    dataset = given.get("dataset", Settings.dataset)
    regularizer = given.get("regularizer", Settings.regularizer)
    find_dataset(dataset)
    merged = _usual(method.name, regularizer, dataset, given.get("buffer")) | given
    if regularizer == "none":
        if given.get("weight", 0) != 0:
            raise UsageError(f"--weight {given['weight']} has no effect without --regularizer")
        merged["weight"] = 0.0
    if not method.replays:
        if given.get("buffer", 0) < 0:
            raise UsageError(f"--buffer must not be negative, not {given['buffer']}")
        merged["buffer"] = 0
    own = {name: merged.pop(name) for name in option_kinds(method.name) if name in merged}
    own |= merged.pop("options", {})
    if strange := merged.keys() - {each.name for each in dataclasses.fields(Settings)}:
        raise unknown(f"setting of {method.name}", min(strange), option_kinds(method.name))
    return Settings(**merged, options=own)


def paper_settings() -> dict[str, Any]:
    """The settings in `paper.toml`, for the image sets that this version has."""
    return {name: about for name, about in paper_file().items() if name in DATASETS}


@cache
def paper_file() -> dict[str, Any]:
    """The content of `paper.toml`."""
    return tomllib.loads((files("cler.paper") / "paper.toml").read_text("utf-8"))
