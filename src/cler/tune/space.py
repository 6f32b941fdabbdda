"""The space that settings are drawn from, as a person writes it: lr=1e-3..0.3:log,optimizer=sgd|adam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cler.config.schema import Setting, settings_of
from cler.config.settings import OF_READING, PARTS, Settings, own_settings
from cler.errors import UsageError, unknown

FIXED = frozenset({*PARTS, *OF_READING, "protocol", "dataset", "precision"})
"""Settings that say what is tuned, or on what; beside them, all that make another benchmark or only change bits."""


@dataclass(frozen=True)
class Range:
    """The values that a setting may have."""

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that are furthest from each other: both ends, or all choices."""
        return self.choices or (self.low, self.high)

    def holds(self, value: Any) -> bool:
        """Whether it is one of the values."""
        if self.choices:
            return any(type(value) is type(each) and value == each for each in self.choices)
        number = type(value) is int if self.whole else type(value) in (int, float)
        return number and self.low <= value <= self.high

    def rounded(self, value: Any) -> Any:
        """A drawn value with four digits, which is as good and can be read."""
        if self.choices or self.whole:
            return value
        return min(max(float(f"{value:.4g}"), self.low), self.high)


def parse_space(text: str, chosen: Mapping[str, Any]) -> tuple[Range, ...]:
    """The ranges that a string gives; `chosen` are the settings that are given, of which none is tuned."""
    declared = settings_of(Settings)
    own = own_settings(chosen)
    fixed = FIXED.union(name for name, each in declared.items() if each.benchmark or each.role == "bits")
    known = {name: each for name, each in declared.items() if name not in fixed} | own
    found: dict[str, Range] = {}
    for piece in text.split(","):
        name, equals, values = (part.strip() for part in piece.partition("="))
        name = name.replace("-", "_")
        if not equals or not values:
            raise UsageError(f"'{piece}' is not understood: write lr=1e-3..0.3:log or optimizer=sgd|adam", "space")
        if name in fixed:
            raise UsageError(f"{name} cannot be tuned; these can: {', '.join(known)}", "space")
        if name not in known:
            raise unknown("setting to tune", name, known)
        if name in found or name in chosen:
            raise UsageError(f"{name} is given twice: give it once", "space")
        found[name] = _parse_range(known[name], values)
    return tuple(found.values())


def _parse_range(each: Setting, text: str) -> Range:
    if ".." not in text:
        return Range(each.name, choices=tuple(dict.fromkeys(each.parsed(part.strip()) for part in text.split("|"))))
    values, colon, scale = text.partition(":")
    low, _, high = values.partition("..")
    if colon and scale != "log":
        raise UsageError(f"'{scale}' is not a scale: leave it out, or write {values}:log", "space")
    first, last = each.parsed(low.strip()), each.parsed(high.strip())
    if not {type(first), type(last)} <= {int, float}:
        raise UsageError(f"{each.name} takes no range: write {each.name}=first|second", "space")
    if not first < last or (scale and not first > 0):
        raise UsageError(f"{values} must rise{', from above 0' * bool(scale)}", "space")
    return Range(each.name, first, last, bool(scale), each.kind is int)
