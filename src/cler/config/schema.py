"""Settings declared once: a line of a dataclass says what a setting is, and everything else is derived from it.

    lr: float = setting(0.01, "Learning rate.", above=0)

Options of the command line and their help, keys of settings files, checks and their messages, names of folders, which
runs are the same, which rows of a table belong together: all of it reads these declarations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cler.config.registry import Registry
from cler.errors import UsageError, unknown
from cler.files import as_path

Role = Literal["numbers", "addition", "bits", "machine"]
_LATER = object()
"""Stands for an `absent` that was not given: the default is meant."""


@dataclass(frozen=True)
class Setting:
    """One thing that a run, a method or a machine can be told."""

    name: str
    """The name in Python, in settings files and in results."""
    kind: type
    """int, float, str, bool or Path; object for a setting that `read` parses."""
    optional: bool
    """Whether None is a value."""
    default: Any
    help: str
    above: float | None
    least: float | None
    most: float | None
    choices: Collection[str] | None
    role: Role
    """'numbers': decides what a run computes. 'addition': so does this, and it is what a gain is measured of.
    'bits': results agree but for rounding. 'machine': where and how, of no consequence for results."""
    absent: Any
    """What a file without this setting meant, whatever the default is by now."""
    benchmark: bool
    """Whether accuracies with different values are not to be compared."""
    tuned: bool
    """Whether it is tuned for each combination: a method alone may have another value than with a regularizer."""
    learner: bool
    """Whether a `Learner` has it too."""
    backends: tuple[str, ...]
    """The backends that it means something to; all of them where none is named."""
    read: Callable[[Any], Any] | None
    """Turns what was given into the value, for a setting that is more than a number or a name; raises ValueError."""

    @property
    def takes(self) -> str:
        """What it takes, in words: 'a whole number'."""
        return _WORDS.get(self.kind, "a value")

    def checked(self, value: Any) -> Any:
        """The value in its own type; refuses what is of another kind, out of bounds or not among the choices."""
        if value is None and self.optional:
            return None
        if self.read is not None:
            try:
                return self.read(value)
            except UsageError:
                raise
            except ValueError as error:
                raise UsageError(str(error), self.name) from None
        value = self._of_kind(value)
        if self.choices is not None and value not in self.choices:
            if isinstance(self.choices, Registry):
                raise self.choices.no_such(value)
            raise unknown(self.name.replace("_", " "), value, self.choices)
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_bounds(value)
        return value

    def parsed(self, text: str) -> Any:
        """The value that a string of the command line means."""
        if self.optional and text.lower() == "none":
            return None
        if self.read is not None or self.kind in (str, Path):
            return self.checked(text)
        try:
            return self.checked(_PARSERS[self.kind](text))
        except (ValueError, KeyError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"must be {self.takes}, not '{text}'", self.name) from None

    def _of_kind(self, value: Any) -> Any:
        if hasattr(value, "tolist"):  # numpy's and torch's numbers
            value = value.tolist()
        if self.kind is float and isinstance(value, Real) and not isinstance(value, bool):
            return _float(value)
        if self.kind is int and isinstance(value, Integral) and not isinstance(value, bool):
            return int(value)
        if self.kind is Path and isinstance(value, str | Path):
            return as_path(value)
        if self.kind is str and isinstance(value, str):
            _check_can_be_kept(value, self.name)
            return value
        if self.kind is bool and isinstance(value, bool):
            return value
        loop = "; for several, train them in a loop" if isinstance(value, list | tuple) and len(value) > 1 else ""
        raise UsageError(f"must be {self.takes}, not {value!r}{loop}", self.name)

    def _check_bounds(self, value: float) -> None:
        below = self.least is not None and value < self.least
        not_above = self.above is not None and value <= self.above
        beyond = self.most is not None and value > self.most
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"must be a finite number, not {value}", self.name)
        if below or not_above or beyond:
            raise UsageError(f"must be {self.bounds}, not {value}", self.name)

    @property
    def bounds(self) -> str:
        """What is allowed, in words: 'above 0 and at most 10'."""
        named = {"above": self.above, "at least": self.least, "at most": self.most}
        told = (f"{word} {_plain(bound)}" for word, bound in named.items() if bound is not None)
        return " and ".join(told)


_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", Path: "a path"}
_PARSERS: dict[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: {"true": True, "false": False}.__getitem__,
}


def _check_can_be_kept(text: str, name: str) -> None:
    """Refuse what a file of UTF-8 cannot hold, as the name of a folder may be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"must be UTF-8, for results to name it, not {text!r}: rename it", name) from None


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _plain(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() and abs(bound) < 1e15 else f"{bound:g}"


def setting(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    choices: Collection[str] | None = None,
    role: Role = "numbers",
    absent: Any = _LATER,
    benchmark: bool = False,
    tuned: bool = False,
    learner: bool = True,
    backends: tuple[str, ...] = (),
    read: Callable[[Any], Any] | None = None,
) -> Any:
    """A field of a dataclass that is a setting, with its default, its help and its bounds or choices.

    `absent` is what a file without the setting meant: give it where that is not the default, and once the default
    changes.
    """
    declared = Setting(
        name="", kind=object, optional=False,  # as the field says
        default=default, help=help, above=above, least=least, most=most, choices=choices, role=role,
        absent=default if absent is _LATER else absent, benchmark=benchmark, tuned=tuned, learner=learner,
        backends=backends, read=read,
    )  # fmt: skip
    return dataclasses.field(default=default, metadata={"setting": declared})


@dataclass(frozen=True)
class NoOptions:
    """The settings of a part of a run that has none of its own."""


@cache
def settings_of(declared: Any) -> dict[str, Setting]:
    """The settings that a dataclass declares, by name; its field `options`, of other parts' own ones, aside."""
    hints = get_type_hints(declared)
    found = {}
    for field in dataclasses.fields(declared):
        if field.name == "options":
            continue
        about: Setting = (field if "setting" in field.metadata else setting(field.default, "")).metadata["setting"]
        kind, optional = _kind(hints[field.name])
        found[field.name] = dataclasses.replace(about, name=field.name, kind=kind, optional=optional)
    return found


def _kind(hint: Any) -> tuple[type, bool]:
    """The type that an annotation names, and whether it may be None."""
    if get_origin(hint) not in (Union, UnionType):
        return hint if hint in _WORDS else object, False
    kinds = [each for each in get_args(hint) if each is not NoneType]
    return kinds[0] if len(kinds) == 1 and kinds[0] in _WORDS else object, NoneType in get_args(hint)


def check_all(declared: Any) -> None:
    """Check each setting of a frozen dataclass, in its `__post_init__`, and give it its own type."""
    for name, each in settings_of(declared.__class__).items():
        object.__setattr__(declared, name, each.checked(getattr(declared, name)))


def parsed_grid(each: Setting, text: str) -> list[Any]:
    """The values of a string with commas, which always mean a grid."""
    return list(dict.fromkeys(each.parsed(part.strip()) for part in text.split(",")))


def joined(values: Sequence[Any]) -> str:
    """Parts of one value, as a string: '5+5+10'."""
    return "+".join(map(str, values))


def with_underscores(table: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """The lines of a settings file by the names of settings, which it may also write with hyphens, once each."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        if (declared := str(name).replace("-", "_")) in values:
            raise UsageError(f"{where}{declared} is there twice, once as {declared.replace('_', '-')}: write it once")
        values[declared] = value
    return values
