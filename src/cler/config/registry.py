"""The tables of everything that has a name: methods, regularizers, networks, datasets, and so on."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from cler.errors import UsageError, unknown
from cler.files import as_path

T = TypeVar("T")
C = TypeVar("C")
_PARTS = ("method", "regularizer", "teacher", "network", "stream", "optimizer", "augmentation")
"""The kinds whose own ones a user gives in a file of Python."""
PLUGINS = "cler.plugins"
"""The group of entry points through which an installed package registers methods, networks and so on of its own."""


class Registry(Mapping[str, T], Generic[T]):
    """All registered things of one kind, by name.

    Reading it first imports the package of `cler` that the kind lives in, and the plug-ins that are installed. Settings
    say 'none' where there need not be one of the kind (`optional`), and join the names of several by '+' (`joined`).
    """

    def __init__(self, kind: str, room: str, *, optional: bool = False, joined: bool = False) -> None:
        self.kind, self.room, self.optional, self.joined = kind, room, optional, joined
        self._entries: dict[str, T] = {}
        self._families: dict[str, tuple[str, Callable[[str], T], Callable[[str], bool]]] = {}
        """For each prefix: how such names are written, what makes an entry of the rest of one, and `likely`."""

    def register(self, name: str, entry: T) -> T:
        """Register an entry; the same class again, as from a notebook cell that runs twice, replaces it."""
        if (self.optional and name == "none") or (self.joined and "+" in name):
            why = f"that stands for no {self.kind}" if name == "none" else "'+' joins the names of several"
            raise UsageError(f"a {self.kind} cannot be named '{name}': {why}; give yours another name")
        known = self._entries.get(name)
        if known is not None and _origin(known) != _origin(entry):
            raise UsageError(f"two {self.kind}s are named '{name}': give yours a name of its own")
        self._entries[name] = entry
        return entry

    def add(self, entry: C) -> C:
        """Register a class or an object under its attribute `name`; gives it back, as a decorator has to."""
        name = getattr(entry, "name", None)
        if not isinstance(name, str) or not name:
            named = getattr(entry, "__qualname__", entry)
            raise UsageError(f"the {self.kind} {named} has no name: write one in the class, as name = 'mine'")
        self.register(name, entry)  # type: ignore[arg-type]
        return entry

    def register_family(
        self, written: str, make: Callable[[str], T], likely: Callable[[str], bool] = lambda name: False
    ) -> None:
        """Register all names of a form, such as 'folder:PATH': `make` is given what stands for PATH.

        `likely` tells whether an unknown name without the prefix was probably meant to have it.
        """
        self._families[written.partition(":")[0]] = written, make, likely

    @property
    def offered(self) -> list[str]:
        """All names, and the forms of names that contain something else, such as 'folder:PATH'."""
        return [*self, *(written for written, *_ in self._families.values())]

    def find(self, name: str) -> T:
        """The entry of that name."""
        if name not in self:
            raise self.no_such(name)
        return self[name]

    def no_such(self, name: str, known: Iterable[str] = ()) -> UsageError:
        """The error for a name that is not registered; `known` is what to list in place of what is `offered`."""
        for prefix, (_, _, likely) in self._families.items():
            if likely(name):
                return UsageError(f"unknown {self.kind} '{name}': write {prefix}:{name}")
        told = no_part if self.kind in _PARTS else unknown
        return told(self.kind, name, known or self.offered)

    def __getitem__(self, name: str) -> T:
        self._load()
        if name not in self._entries and self._in_family(name):
            prefix, _, rest = name.partition(":")
            return self._families[prefix][1](rest)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries or self._in_family(name)

    def _in_family(self, name: object) -> bool:
        prefix, _, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
        return bool(rest) and prefix in self._families

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(list(self._entries))

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        if self.room not in sys.modules:
            import_module(self.room)
        load_plugins()


def _origin(entry: Any) -> Any:
    """Where an entry was defined: equal for a class that is defined again in the same place."""
    code = class_or_function(_without_arguments(getattr(entry, "build", entry)))
    return code.__module__, code.__qualname__


def made_of(entry: Any) -> Any:
    """What an entry is made of: what a user gave for it, what builds it, or the entry itself."""
    given = getattr(entry, "given", None)
    return _without_arguments(given if given is not None else getattr(entry, "build", entry))


def _without_arguments(made: Any) -> Any:
    while isinstance(made, partial):
        made = made.func
    return made


def class_or_function(made: Any) -> Any:
    """The class or function itself, or the class of an object."""
    return made if isinstance(getattr(made, "__qualname__", None), str) else type(made)  # some have any attribute


def is_own(entry: Any) -> bool:
    """Whether an entry is a user's own, not of this package."""
    return str(class_or_function(made_of(entry)).__module__).partition(".")[0] != "cler"


def no_part(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for the name of a part of a run that is not registered, which may be a user's own."""
    told = f"{unknown(kind, name, known)}; if it is your own, name its file with --import (in Python, import it first)"
    return forgotten(kind, name) or UsageError(told)


def forgotten(kind: str, name: str) -> UsageError | None:
    """The error for a name whose class is in a file that the user imported, but is not registered; None if none is."""
    registered = {class_or_function(made_of(entry)) for registry in _ALL for entry in registry._entries.values()}
    for where, module in _IMPORTED.items():
        for each in vars(module).values():
            ours = isinstance(each, type) and each.__module__ == where and each not in registered
            if ours and getattr(each, "name", None) == name:
                found = f"{where}.{each.__qualname__}"
                return UsageError(f"unknown {kind} '{name}': {found} is not registered; put @cler.register above it")
    return None


@cache
def load_plugins() -> None:
    """Import the modules that installed packages name in the group `cler.plugins`; if one fails, a warning says so.

    Only modules: a plug-in that reads a table while it is imported comes here again, when it has no names yet.
    """
    for point in entry_points(group=PLUGINS):
        try:
            import_module(point.module)
        except Exception as error:
            told = f"the plug-in {point.name} ({point.value}) cannot be imported: {type(error).__name__}: {error}"
            warnings.warn(told, stacklevel=2)


_IMPORTED: dict[str, ModuleType] = {}
"""What `import_code` has imported, by name."""


def is_file(named: str) -> bool:
    """Whether this names a file of Python, not a module."""
    return named.endswith(".py")


def import_code(named: str) -> None:
    """Import a file of Python ('mine.py') or a module ('mine.methods') of a user's own, which registers what it has.

    Its folder, for a module the working directory, is then searched for other modules too.
    """
    path = as_path(named) if is_file(named) else Path()
    if is_file(named) and not path.is_file():
        raise UsageError(f"there is no file {named} to import")
    folder = os.path.realpath(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = import_module(path.stem if is_file(named) else named)
        if is_file(named) and os.path.realpath(module.__file__ or "") != os.path.realpath(path):
            raise UsageError(f"{named} cannot be imported: there is another module {path.stem}; rename the file")
        _IMPORTED[module.__name__] = module
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{named} cannot be imported: {type(error).__name__}: {error}") from error


METHODS: Registry[Any] = Registry("method", "cler.methods")
REGULARIZERS: Registry[Any] = Registry("regularizer", "cler.regularizers", optional=True, joined=True)
TEACHERS: Registry[Any] = Registry("teacher", "cler.teachers", optional=True)
NETWORKS: Registry[Any] = Registry("network", "cler.nets")
STREAMS: Registry[Any] = Registry("stream", "cler.streams")
DOMAINS: Registry[Any] = Registry("set of domains", "cler.streams")
DATASETS: Registry[Any] = Registry("dataset", "cler.data")
VIEWS: Registry[Any] = Registry("augmentation", "cler.data.views")
TRACKERS: Registry[Any] = Registry("tracker", "cler.tracking", optional=True, joined=True)
BACKENDS: Registry[Any] = Registry("backend", "cler.runs.backends")
OPTIMIZERS: Registry[Any] = Registry("optimizer", "cler.methods")
_ALL = (
    METHODS, REGULARIZERS, TEACHERS, NETWORKS, STREAMS, DOMAINS, DATASETS, VIEWS, TRACKERS, BACKENDS, OPTIMIZERS,
)  # fmt: skip
