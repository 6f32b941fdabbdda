"""Settings as a person writes them: in a TOML file, as options, after `--set`, after `--seeds`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from numbers import Integral
from pathlib import Path
from typing import Any

from cler.config.machine import Machine
from cler.config.registry import METHODS
from cler.config.schema import Setting, parsed_grid, settings_of, with_underscores
from cler.config.settings import PARTS, Settings, elsewhere, own_settings, usual_stream
from cler.errors import UsageError, hint, unknown
from cler.files import read_text

LARGEST_SEED = 999_999
IMPORT = "import"
"""In a file of settings: the user's own code that they need, as behind `--import`."""


def read_config(path: Path, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Settings from a TOML file, checked, of runs and of the machine; a list, or a string with commas, is a grid.

    `given` are those of the command line, which win: they decide which method's own settings the file may have.
    """
    config = {name: value for name, value in _content(path).items() if name != IMPORT}
    named = {name: value for name, value in config.items() if isinstance(value, str | list)}
    known: dict[str, Setting] = settings_of(Settings) | _own_of(named | dict(given or {}))
    return {name: _value(path, name, value, known) for name, value in config.items()}


def imports_in(path: Path) -> list[str]:
    """What a TOML file of settings has imported first: `import = "mine.py"`, or a list of files and modules."""
    named = _content(path).get(IMPORT, [])
    named = [named] if isinstance(named, str) else named
    if not isinstance(named, list) or not all(isinstance(each, str) and each for each in named):
        raise UsageError(f'{path}: {IMPORT} must be a file or module, as in {IMPORT} = "mine.py", or a list of them')
    return named


def _content(path: Path) -> dict[str, Any]:
    text = read_text(path)
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    return with_underscores(content, f"{path}: ")


def _value(path: Path, name: str, value: Any, known: Mapping[str, Setting]) -> Any:
    if name in ("seeds", "seed"):
        return value if isinstance(value, int | str) and not isinstance(value, bool) else _seed_list(path, name, value)
    if name == "tuned":
        if not is_stamp(value):
            raise UsageError(f"{path}: [tuned] is not what `cler tune` writes: leave it out")
        return value
    if name == "set":
        raise UsageError(f"{path}: write a method's own settings like the others, as in: alpha = 0.8")
    of_the_machine = settings_of(Machine)
    if name not in known and name not in of_the_machine:
        if isinstance(value, dict):
            raise UsageError(f"{path}: settings stand at the top level: leave the line [{name}] out")
        meant = hint(name, [*known, *of_the_machine, "seeds", "seed", IMPORT])
        raise UsageError(
            f"unknown setting in {path} '{name}'{meant}; `cler run --help` lists those of all runs, "
            "`cler methods` those of its parts"
        )
    try:
        if name in of_the_machine:
            return of_the_machine[name].checked(value)
        if isinstance(value, str) and (known[name].kind is str or "," in value):
            return one_or_more(parsed_grid(known[name], value))
        if isinstance(value, list):
            return one_or_more([known[name].checked(each) for each in value]) if value else known[name].checked(value)
        return known[name].checked(value)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def is_stamp(value: Any) -> bool:
    """Whether a value says how settings were tuned, as `cler tune` writes it and results keep it."""
    if not isinstance(value, dict) or value.keys() != {"names", "select_on", "dataset", "trials", "seeds"}:
        return False
    names, seeds = value["names"], value["seeds"]
    return (
        isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and isinstance(seeds, list)
        and all(type(seed) is int for seed in seeds)
        and isinstance(value["dataset"], str)
        and type(value["trials"]) is int
        and isinstance(value["select_on"], str)
        and re.fullmatch(r"first-tasks:[1-9]\d{0,4}|other-dataset:.+|whole-stream", value["select_on"]) is not None
    )


def _seed_list(path: Path, name: str, value: Any) -> Any:
    if name == "seeds" and isinstance(value, list) and value and all(type(each) is int for each in value):
        return ",".join(map(str, value)) if len(value) > 1 else f"{value[0]}..{value[0]}"
    allowed = "a number of seeds, or a list of them" if name == "seeds" else "a whole number"
    raise UsageError(f"{path}: {name} must be {allowed}, not {value!r}")


def one_or_more(values: list[Any]) -> Any:
    """A single value instead of a list of one."""
    return values[0] if len(values) == 1 else values


def _own_of(chosen: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings that only the chosen method and other parts have; for a grid, those of all its values."""

    def values(name: str) -> list[str]:
        value = chosen.get(name) or getattr(Settings, name)
        return [str(each).strip() for each in (value if isinstance(value, list) else str(value).split(","))]

    own: dict[str, Setting] = {}
    if not chosen.get("stream"):
        chosen = {**chosen, "stream": [usual_stream(each) for each in values("dataset")]}
    for names in product(*map(values, PARTS)):
        parts = dict(zip(PARTS, names, strict=True))
        own |= own_settings(parts) if parts["method"] in METHODS else {}
    return own


def parse_settings(texts: Mapping[str, str]) -> dict[str, Any]:
    """Values from the strings of command-line options, by setting; a string with commas is several values."""
    declared = settings_of(Settings)
    return {name: one_or_more(parsed_grid(declared[name], text)) for name, text in texts.items()}


def parse_options(texts: Iterable[str], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the chosen method, or another part, from strings such as 'alpha=0.8'; commas mean several values."""
    own = _own_of(chosen)
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"--set '{text}' is not understood: write NAME=VALUE")
        if name not in own:
            if name in settings_of(Settings):
                raise UsageError(
                    f"--set '{text}': {name} is a setting of every run; write --{name.replace('_', '-')} {value}"
                )
            method = chosen.get("method", Settings.method)
            method = ", ".join(method) if isinstance(method, list) else method
            if not own:
                raise UsageError(f"{method} has no settings of its own: leave --set out{elsewhere(name)}")
            raise UsageError(f"{unknown(f'setting of {method}', name, own)}{elsewhere(name)}")
        if name in options:
            raise UsageError(f"--set {name} is given twice: give it once; several values are NAME=1,2")
        options[name] = one_or_more(parsed_grid(own[name], value))
    return options


def parse_seeds(seeds: int | str | Sequence[int], parameter: str = "seeds") -> list[int]:
    """Which seeds are meant: 10 is ten of them, from 0; '3,7' and '0..9' are lists, and so is a list of numbers."""
    if isinstance(seeds, Integral) and not isinstance(seeds, bool):
        seeds = str(int(seeds))
    if not isinstance(seeds, str):
        numbers = _whole(seeds, parameter)
        if not numbers or min(numbers) < 0 or max(numbers) > LARGEST_SEED:
            raise UsageError(f"must be at least one, each from 0 to {LARGEST_SEED}, not {seeds!r}", parameter)
        return list(dict.fromkeys(numbers))
    text = seeds.strip()
    if text.isdecimal():
        if len(text) > 9 or not 1 <= int(text) <= LARGEST_SEED + 1:
            raise UsageError(f"{seeds} must be a number of seeds from 1 to {LARGEST_SEED + 1}", parameter)
        return list(range(int(text)))
    found: list[int] = []
    wanted = 0
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not (first.isdecimal() and (last.isdecimal() or not dots)):
            raise UsageError(f"'{seeds}' is not understood: write 10 for ten seeds, 0..9 or 3,7 for these", parameter)
        if max(len(first), len(last)) > 9 or int(last or first) > LARGEST_SEED:
            raise UsageError(f"'{seeds}': seeds go up to {LARGEST_SEED}", parameter)
        numbers = list(range(int(first), int(last or first) + 1))
        if not numbers:
            raise UsageError(f"'{seeds}' runs backwards: write {last}..{first}", parameter)
        wanted += len(numbers)
        if wanted > LARGEST_SEED + 1:
            raise UsageError(f"asks for more than all {LARGEST_SEED + 1} seeds: write 10, 0..9 or 3,7", parameter)
        found += numbers
    return list(dict.fromkeys(found))


def parse_counts(text: str, parameter: str) -> list[int]:
    """Whole numbers above zero from a string such as '1,5,10'."""
    counts = parse_seeds(f"{text},{text}" if text.isdecimal() else text, parameter)
    if min(counts) < 1:
        raise UsageError(f"must be above zero, not '{text}'", parameter)
    return counts


def _whole(seeds: Any, parameter: str) -> list[int]:
    try:
        numbers = list(seeds)
    except TypeError:
        numbers = [None]
    if not all(isinstance(each, Integral) and not isinstance(each, bool) for each in numbers):
        raise UsageError(f"must be a number of seeds, or a list of seeds, not {seeds!r}", parameter)
    return [int(each) for each in numbers]
