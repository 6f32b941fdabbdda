"""The settings that distinguish the rows of a table, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cler.config.comparing import benchmark_settings, is_addition, is_tuned, of_a_row
from cler.config.making import has_width
from cler.config.protocols import protocol_defaults
from cler.config.registry import NETWORKS
from cler.config.schema import settings_of
from cler.config.settings import CUSTOM, Settings
from cler.runs.series import Series

SHOWN_ANYWAY = frozenset({"method", "regularizer", "teacher", "dataset", "buffer", "precision"})
"""Settings that tables show for every row."""


def distinguishing_settings(group: Series, groups: Sequence[Series], *, shown: Sequence[str] = ()) -> str:
    """The settings, other than those `shown`, that distinguish a group from others with the same label; usually none.

    Settings of the benchmark come first, where groups on the same dataset differ in them, then those of the network and
    its training, where groups with the same method there differ; groups that differ in these need no further settings.
    What a protocol says of the benchmark and of training goes without saying beside its name.
    """

    def look(one: Series) -> list[Any]:
        return [one.label, *(one.settings.get(key) for key in shown)]

    def differing(keys: Iterable[str], among: list[dict[str, Any]]) -> list[str]:
        return [key for key in keys if any(one.get(key) != among[0].get(key) for one in among)]

    own = group.settings
    beside = [one.settings for one in groups if one.settings["dataset"] == own["dataset"]]
    method = [one for one in beside if one["method"] == own["method"]]
    benchmark = ["protocol", *benchmark_settings()]
    training = [name for name in of_a_row(own) if not (is_tuned(name, own["method"]) or is_addition(name))]
    told = differing(benchmark, beside)
    told += differing([name for name in training if name not in SHOWN_ANYWAY | set(told)], method)
    alike = [
        one.settings
        for one in groups
        if look(one) == look(group) and (one.settings["dataset"] != own["dataset"] or agree(one, group, told))
    ]
    told += differing(dict.fromkeys(key for settings in alike for key in settings if key not in told), alike)
    told = [name for name in told if name != "width" or not _is_without_width(str(own.get("network")))]
    of_protocols = _set_by_protocols(beside)
    return ", ".join(filter(None, (_told(key, own.get(key)) for key in told if not _implied(key, own, of_protocols))))


def _is_without_width(network: str) -> bool:
    """Whether the width in settings means nothing to a network: to a user's own, or one that is known to have none."""
    return network.startswith(CUSTOM) or (network in NETWORKS and not has_width(network))


def _implied(name: str, own: Mapping[str, Any], of_protocols: Collection[str]) -> bool:
    """Whether runs have a setting from their protocol; or from none, where others have it from theirs."""
    declared = settings_of(Settings).get(name)
    if declared is None or declared.tuned or is_addition(name) or name not in of_protocols:
        return False
    return bool(own.get(name) == protocol_defaults(*_protocol_and_parts(own)).get(name, declared.default))


def _set_by_protocols(several: Iterable[Mapping[str, Any]]) -> set[str]:
    """The names of the settings that the protocols of some runs decide."""
    return {name for each in set(map(_protocol_and_parts, several)) for name in protocol_defaults(*each)}


def _protocol_and_parts(settings: Mapping[str, Any]) -> tuple[Any, str, str, str]:
    """What the defaults of a protocol depend on."""
    method, regularizer, teacher = (str(settings.get(name, "none")) for name in ("method", "regularizer", "teacher"))
    return settings.get("protocol"), method, regularizer, teacher


_EXPECTED = {"protocol": None, "epochs": 1, "stream": "class-incremental", "validate": 0.0, "class_order": None}
"""Benchmark settings that rows only name where they are otherwise: one pass, new classes in each task, all images."""


def _told(setting: str, value: Any) -> str:
    """A setting and its value, in words; nothing for what a reader expects."""
    if _EXPECTED.get(setting, ()) == value:
        return ""
    if setting == "protocol":
        return str(value)
    return f"{value} epochs" if setting == "epochs" else f"{setting} {'–' if value is None else value}"


def agree(first: Series, second: Series, keys: Iterable[str]) -> bool:
    """Whether runs have the same values of these settings; one that both lack is the same."""
    return all(first.settings.get(key) == second.settings.get(key) for key in keys)
