"""Parts of a run that are a user's own: registered by name here, and found again in other processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn

from cler.config.machine import Machine
from cler.config.registry import (
    DATASETS,
    DOMAINS,
    NETWORKS,
    OPTIMIZERS,
    TRACKERS,
    VIEWS,
    Registry,
    class_or_function,
    is_own,
    made_of,
)
from cler.config.settings import CUSTOM, PARTS
from cler.data.images import ImageData, InMemory
from cler.errors import UsageError
from cler.methods.base import Method
from cler.nets.adapter import AdaptedBackbone
from cler.nets.build import check_own, own_network
from cler.regularizers.base import Regularizer, entry_of
from cler.runs.jobs import Job
from cler.streams.base import Stream
from cler.teachers.base import Teacher

_CLASSES: Mapping[str, tuple[type, str]] = {
    "method": (Method, "cler.Method"),
    "regularizer": (Regularizer, "cler.Regularizer"),
    "teacher": (Teacher, "cler.Teacher"),
    "stream": (Stream, "cler.Stream"),
}
"""The parts that may be given as a class, and what it is a subclass of."""


def name_class(kind: str, given: Any) -> str | None:
    """The name of a method, regularizer, teacher or stream: a user's own class is registered under its name."""
    if given is None or isinstance(given, str):
        return given
    parent, called = _CLASSES[kind]
    if PARTS[kind].joined and isinstance(given, list | tuple) and all(isinstance(each, str) for each in given):
        raise UsageError(f"must name several as {'+'.join(given)!r}, not as {given!r}", kind)
    if not (isinstance(given, type) and issubclass(given, parent)):
        raise UsageError(f"must be the name of a {kind} or a subclass of {called}, not {given!r}", kind)
    return str(PARTS[kind].add(_entry(kind, given)).name)


def _entry(kind: str, given: Any) -> Any:
    """What is registered of a class or function."""
    return entry_of(given) if kind == "regularizer" else given


def name_dataset(dataset: Any) -> str:
    """The name of a dataset: images in memory are registered under theirs."""
    if isinstance(dataset, str):
        return dataset
    if isinstance(dataset, ImageData):
        known = DATASETS.get(dataset.name)
        if known is not None and not isinstance(known, InMemory):
            raise UsageError(
                f"'{dataset.name}' is the name of another dataset: give your images another one", "dataset"
            )
        return DATASETS.add(InMemory(dataset)).name
    raise UsageError(
        f"must be the name of a dataset or a cler.data.ImageData, not a {type(dataset).__name__}; cler.data.arrays, "
        "folder and torch make one",
        "dataset",
    )


def name_network(network: Any) -> str | None:
    """The name of a network: a user's own function or module gets one that says where it was defined."""
    if network is None or isinstance(network, str):
        return network
    check_own(network)
    inside = network.module if isinstance(network, AdaptedBackbone) else network
    named = type(inside) if isinstance(inside, nn.Module) else network
    name = f"{CUSTOM}{getattr(named, '__module__', '')}:{getattr(named, '__qualname__', 'function')}"
    return NETWORKS.add(own_network(name, network)).name


@dataclass(frozen=True)
class Code:
    """What another process has to import before it can build a run."""

    modules: tuple[str, ...]
    given: tuple[tuple[str, str, str, str], ...]
    """Kind, name, module and qualified name of what was given as a class or function."""
    only_here: tuple[str, ...]
    """What no other process can import, in words."""

    def load(self) -> None:
        """Import and register all of it in this process."""
        for module in self.modules:
            import_module(module)
        for kind, name, module, path in self.given:
            found: Any = import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
            if name not in PARTS[kind]:
                PARTS[kind].register(name, own_network(name, found) if kind == "network" else _entry(kind, found))


def code_of(job: Job, machine: Machine) -> Code:
    """What a job needs that does not come with the package, under the trackers that are asked for."""
    modules, given, only_here = dict[str, None](), [], []
    for kind, name, entry in _entries(job, machine):
        code = class_or_function(made_of(entry))
        object_here = isinstance(entry, InMemory) or isinstance(getattr(entry, "given", None), nn.Module)
        if not is_own(entry) and not object_here:
            continue
        if object_here or not _importable(code):
            only_here.append(f"the {kind} {name}")
            continue
        modules[code.__module__] = None
        if kind in PARTS:
            given.append((kind, name, code.__module__, code.__qualname__))
    return Code(tuple(modules), tuple(given), tuple(only_here))


def only_here(jobs: Iterable[Job], machine: Machine) -> list[str]:
    """What no other process could import of these jobs, in words."""
    return list(dict.fromkeys(what for job in jobs for what in code_of(job, machine).only_here))


def _entries(job: Job, machine: Machine) -> Iterator[tuple[str, str, Any]]:
    """What a job consists of that is registered: its kind, its name and its entry."""
    settings = job.settings
    chosen: dict[str, tuple[Registry[Any], str]] = {
        **{kind: (table, getattr(settings, kind)) for kind, table in PARTS.items()},
        "domains": (DOMAINS, settings.options.get("domains", "")),
        "dataset": (DATASETS, settings.dataset),
        "augmentation": (VIEWS, settings.augment),
        "optimizer": (OPTIMIZERS, settings.optimizer),
        "tracker": (TRACKERS, machine.track or ""),
    }
    for kind, (table, names) in chosen.items():
        for name in names.split("+") if table.joined else [names]:
            if name in table:
                yield kind, name, table[name]


def _importable(code: Any) -> bool:
    """Whether another process finds the same under its import path: no lambda, and not of a program or notebook."""
    if code.__module__ == "__main__" or "<" in code.__qualname__:
        return False
    try:
        return find_spec(code.__module__) is not None
    except (ImportError, ValueError):
        return False
