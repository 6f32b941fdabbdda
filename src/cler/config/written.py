"""Settings as a person writes them: in a TOML file, behind `--set`, behind `--seeds`."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cler.config.settings import LARGEST_SEED, Settings, option_kinds
from cler.errors import UsageError, unknown

ON_THE_COMMAND_LINE = (
    "device",
    "workers",
    "at_once",
    "data_dir",
    "out",
    "resume",
    "restart",
    "checkpoint_every",
    "json",
)
"""Options of `cler run` that do not decide what a run computes."""


def read_config(path: Path, method: str | None = None) -> dict[str, Any]:
    """Options from a TOML file, checked for names and kinds; `method` comes before the one that the file names."""
    try:
        config = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    kinds = {each.name: str(each.type) for each in dataclasses.fields(Settings) if each.name != "options"}
    method = method or config.get("method", Settings.method)
    kinds |= {"seeds": "str"} | (option_kinds(method) if isinstance(method, str) else {})
    options = {}
    for key, value in config.items():
        name = key.replace("-", "_")
        if name == "set":
            raise UsageError(f"{path}: a method's own settings stand beside the others, as in: alpha = 0.8")
        if name in ON_THE_COMMAND_LINE:
            raise UsageError(
                f"{path}: '{key}' is not a setting of a run: give --{name.replace('_', '-')} with the command"
            )
        if name not in kinds:
            raise unknown(f"option in {path}", key, kinds)
        if name == "seeds" and type(value) is int:
            value = str(value)
        elif name == "seeds" and isinstance(value, list) and value and all(type(each) is int for each in value):
            value = ",".join(map(str, value))
        options[name] = _of_kind(f"{path}: '{key}'", value, kinds[name])
    return options


def _of_kind(what: str, value: Any, kind: str) -> Any:
    """A value from a settings file as the kind that the option has."""
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1e300 else math.inf
    allowed = {"str": str, "float": float, "bool": bool}.get(kind, int)
    if isinstance(value, bool) != (allowed is bool) or not isinstance(value, allowed):
        raise UsageError(f"{what} is {value!r}, but has to be {_KIND_NAMES[allowed]}")
    return value


def parse_options(method: str | None, texts: list[str]) -> dict[str, Any]:
    """'alpha=0.8' and the like to the settings that only this method has."""
    method = method or Settings.method
    kinds = option_kinds(method)
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set '{text}' is not understood; write NAME=VALUE")
        if name not in kinds:
            raise (
                unknown(f"setting of {method}", name, kinds)
                if kinds
                else UsageError(f"{method} has no settings of its own: leave --set out")
            )
        try:
            options[name] = _READERS.get(kinds[name], str)(value)
        except ValueError:
            raise UsageError(f"--set {name} needs a number, not '{value}'") from None
        except KeyError:
            raise UsageError(f"--set {name} needs true or false, not '{value}'") from None
    return options


_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": {"true": True, "false": False}.__getitem__,
}
_KIND_NAMES = {str: "a text in quotes", float: "a number", int: "a whole number", bool: "true or false"}


def parse_seeds(text: str, flag: str = "--seeds") -> list[int]:
    """'0..9', '3', '0,2,5' or a mixture, to a list without repetition."""
    seeds: list[int] = []
    wanted = 0
    for part in str(text).split(","):
        first, dots, last = part.strip().partition("..")
        if not (first.isdecimal() and (last.isdecimal() or not dots)):
            raise UsageError(f"{flag} '{text}' is not understood; write 0..9, or 0,1,5")
        if max(len(first), len(last)) > 9 or int(last or first) > LARGEST_SEED:
            raise UsageError(f"{flag} '{text}': numbers go up to {LARGEST_SEED}")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            raise UsageError(f"{flag} '{text}' runs backwards; write {last}..{first}")
        wanted += len(numbers)
        if wanted > LARGEST_SEED + 1:
            raise UsageError(f"{flag} asks for more than all {LARGEST_SEED + 1} seeds; write 0..9, or 0,1,5")
        seeds += numbers
    return list(dict.fromkeys(seeds))
