"""Making settings from what is given: the usual values for the rest, and grids."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cler.config.protocols import PROTOCOLS, protocol_defaults
from cler.config.registry import DATASETS, METHODS, NETWORKS, REGULARIZERS, STREAMS, TEACHERS
from cler.config.schema import settings_of
from cler.config.settings import (
    CUSTOM,
    OF_REPLAY,
    PARTS,
    Settings,
    no_such_option,
    own_settings,
    usual_on,
    usual_stream,
)
from cler.config.values import has_own_network, is_own_network, own_weight
from cler.errors import UsageError


def usual(
    *,
    method: str,
    regularizer: str,
    teacher: str,
    dataset: str,
    protocol: str | None,
    network: str | None,
    buffer: int | None = None,
) -> dict[str, Any]:
    """Values of settings that are not given: the defaults, the dataset's, the paper's, a protocol's, a network's."""
    values = {name: each.default for name, each in settings_of(Settings).items()}
    values |= usual_on(dataset)
    if has_own_network(METHODS.find(method)):
        values["network"] = method
    values["weight"] = own_weight(regularizer)
    values |= _of_the_paper(method, regularizer, dataset, buffer)
    values |= protocol_defaults(protocol, method, regularizer, teacher)
    if network is not None and network in NETWORKS:
        values |= {"network": network, **NETWORKS[network].defaults}
    return values | {"method": method, "regularizer": regularizer, "dataset": dataset}


def decided_by() -> dict[str, list[str]]:
    """For each setting, by name: the parts of a run that its usual value depends on."""
    choices: dict[str, list[Any]] = {
        "dataset": [*DATASETS],
        "method": [*METHODS],
        "regularizer": ["none", *REGULARIZERS],
        "network": [None, *NETWORKS],
        "protocol": [None, *PROTOCOLS],
        "teacher": ["none", *TEACHERS],
    }
    parts = list(choices)
    found = {each: usual(**dict(zip(parts, each, strict=True))) for each in itertools.product(*choices.values())}
    decided: dict[str, list[str]] = {}
    for place, part in enumerate(parts):
        first: dict[Any, dict[str, Any]] = {}
        differ: set[str] = set()
        for each, values in found.items():
            others = first.setdefault((each[:place], each[place + 1 :]), values)
            differ.update(name for name in values if name not in differ and values[name] != others.get(name))
        for name in differ - {part}:
            decided.setdefault(name, []).append(part)
    return decided


def _of_the_paper(method: str, regularizer: str, dataset: str, buffer: int | None) -> dict[str, Any]:
    """The paper's values; none where the package comes without `cler.paper`."""
    if find_spec("cler.paper") is None:
        return {}
    found: dict[str, Any] = import_module("cler.paper.settings").defaults(method, regularizer, dataset, buffer)
    return found


def make_settings(**given: Any) -> Settings:
    """Settings from the given values and the usual ones for the rest; None is not given, unless None is a value."""
    declared = settings_of(Settings)
    optional = {name for name, each in declared.items() if each.optional}
    given = {name: value for name, value in given.items() if value is not None or name in optional}
    given |= given.pop("options", {})
    method, dataset, regularizer, teacher, protocol = (
        declared[name].checked(given.get(name, declared[name].default))
        for name in ("method", "dataset", "regularizer", "teacher", "protocol")
    )
    parts = {"method": method, "regularizer": regularizer, "teacher": teacher}
    expected = usual(
        **parts, dataset=dataset, protocol=protocol, network=given.get("network"), buffer=given.get("buffer")
    )
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
    network = declared["network"].checked(merged["network"])
    if given.get("width") is not None and not has_width(network):
        which = "a network of your own" if network.startswith(CUSTOM) else network
        raise UsageError(f"{given['width']} has no effect on {which}: leave it out", "width")
    stream = declared["stream"].checked(merged["stream"])
    own = own_settings(merged | parts | {"network": network, "stream": stream})
    options = {name: merged.pop(name) for name in list(merged) if name in own}
    if "tasks" not in given:
        merged["tasks"] = _usual_tasks(dataset, stream, options, merged["tasks"])
    merged = {name: value for name, value in merged.items() if name in declared or name in given}  # not of other parts
    if strange := sorted(merged.keys() - declared.keys()):
        raise no_such_option(method, strange[0], own)
    return Settings(**merged, options=options)


def _usual_tasks(dataset: str, stream: str, options: Mapping[str, Any], tasks: Any) -> Any:
    """What is usual on a stream: its own number of tasks, or `tasks`, or what the dataset says for other streams."""
    own = STREAMS.find(stream).usual_tasks(options)
    if own is not None or stream == usual_stream(dataset):
        return tasks if own is None else own
    return usual_on(dataset).get("tasks_elsewhere", tasks)


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
            stream = one.get("stream") or usual_stream(one.get("dataset") or Settings.dataset)
            own = own_settings(one | {"stream": stream})
            one = {name: value for name, value in one.items() if name in own or name in settings_of(Settings)}
        made.append(make_settings(**one))
    return list({str(one.to_dict()): one for one in made}.values())


def unusual(settings: Settings) -> dict[str, Any]:
    """The settings that differ from the usual ones, except for method, regularizer, teacher, dataset and buffer."""
    network = None if is_own_network(settings.network) else settings.network
    same = {name: getattr(settings, name) for name in ("method", "regularizer", "teacher", "dataset", "protocol")}
    expected = usual(**same, network=network, buffer=settings.buffer)
    expected |= {name: each.default for name, each in own_settings(vars(settings)).items() if name not in expected}
    expected["tasks"] = _usual_tasks(settings.dataset, settings.stream, settings.options, expected["tasks"])
    if settings.network != Settings.network and network is not None:
        expected["network"] = Settings.network
    shown = {"method", "regularizer", "teacher", "dataset", "buffer"}
    return {name: value for name, value in settings.to_dict().items() if name not in shown and value != expected[name]}


def has_width(network: str) -> bool:
    """Whether the width of a network can be chosen: of ours, not of timm's and of a user's own."""
    return NETWORKS[network].width is not None if network in NETWORKS else is_own_network(network)
