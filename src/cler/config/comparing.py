"""How the settings of runs compare: which make the same run, the same row of a table, the same method with an addition.

Results hold the settings of their runs as plain values; here they are read by what the schema says of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from cler.config.machine import Machine
from cler.config.registry import METHODS
from cler.config.schema import Setting, settings_of
from cler.config.settings import PARTS, Settings, own_settings
from cler.config.values import is_own_network


def completed(written: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a file, completed: a setting that the file lacks has the value of its `absent`.

    An option of a part that this version does not know stays as it is.
    """
    return {name: each.absent for name, each in _declared(written).items()} | _own_network(written) | dict(written)


def default_settings(written: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of all the settings that runs with these parts have."""
    return {name: each.default for name, each in _declared(written).items()} | _own_network(written)


def _declared(written: Mapping[str, Any]) -> dict[str, Setting]:
    """Every setting of a run with these parts, by name; of a method that this version does not know, those of all."""
    declared = dict(settings_of(Settings))
    if str(written.get("method")) in METHODS:
        absent = {name: declared[name].absent for name in PARTS}
        declared |= own_settings(absent | _own_network(written) | dict(written))
    return declared


def _own_network(written: Mapping[str, Any]) -> dict[str, str]:
    method = str(written.get("method"))
    return {"network": method} if is_own_network(method) else {}


def role_of(name: str) -> str:
    """The role of a setting, by its name; settings that only one part has decide the numbers."""
    each = settings_of(Settings).get(name) or settings_of(Machine).get(name)
    return each.role if each else "numbers"


def of_a_row(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that runs in the same row of a table share: all but those that change only rounding."""
    left_out = _of_no_row()
    return {name: value for name, value in settings.items() if name not in left_out}


@cache
def _of_no_row() -> frozenset[str]:
    """The settings in which runs in the same row of a table may differ."""
    return frozenset(
        name for name in settings_of(Settings) | settings_of(Machine) if role_of(name) in ("bits", "machine")
    )


def is_addition(name: str) -> bool:
    """Whether a setting is what a gain is measured of: the regularizer, and what belongs to it."""
    return role_of(name) == "addition"


def is_tuned(name: str, method: str) -> bool:
    """Whether a setting is tuned for each combination: the learning rate, and a method's own numbers."""
    if name in (declared := settings_of(Settings)):
        return declared[name].tuned
    own = settings_of(METHODS[method].Options) if method in METHODS else {}
    return own[name].choices is None if name in own else True


def benchmark_settings() -> list[str]:
    """Settings that make another benchmark of a dataset, whose accuracies are not to be compared."""
    return [name for name, each in settings_of(Settings).items() if each.benchmark]
