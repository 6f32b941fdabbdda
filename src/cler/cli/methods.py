"""`cler methods`: what there is to choose from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from cler.cli.app import AsJson, Imports, app, console
from cler.cli.options import command


@command(app)
def methods(
    name: Annotated[str | None, typer.Argument(help="Only what has this name.", show_default=False)] = None,
    as_json: AsJson = False,
    imports: Imports = None,
) -> None:
    """List methods, regularizers, teachers, streams, networks, augmentations, optimizers and protocols."""
    from cler.config.registry import no_part

    known = _known()
    if name is not None:
        there = dict.fromkeys(each for entries in known.values() for each in entries)
        if name not in there:
            raise no_part("method or other part", name, there)
        known = {kind: {each: about for each, about in one.items() if each == name} for kind, one in known.items()}
    if as_json:
        print(json.dumps(known, indent=1))
        return
    rows = [
        (name, each["summary"], "yes" if each["buffer"] else "", "yes" if each["learns_without_tasks"] else "")
        for name, each in known["methods"].items()
    ]
    _show(("method", "what it does", "buffer", "for Learner"), rows)
    for kind in ("regularizers", "teachers", "streams", "networks", "augmentations", "optimizers", "protocols"):
        listed = [(name, each["summary"]) for name, each in known[kind].items()]
        _show((kind.removesuffix("s"), "what it does"), listed)
    own = [
        (name, f"{setting}={about['default']}", about["help"])
        for kind in ("methods", "regularizers", "teachers", "streams", "networks")
        for name, each in known[kind].items()
        for setting, about in each["settings"].items()
    ]
    if own:
        console.print("Settings for --set, with their defaults; some datasets have others:")
    _show(("of", "--set", "what it does"), own)


def _known() -> dict[str, Any]:
    """Everything that can be asked for by name, datasets aside, in plain values."""
    from cler.config.protocols import PROTOCOLS
    from cler.config.registry import METHODS, NETWORKS, OPTIMIZERS, REGULARIZERS, STREAMS, TEACHERS, VIEWS

    regularizers = {
        name: {"summary": each.summary, "weight": each.weight, "settings": _own_settings(each)}
        for name, each in REGULARIZERS.items()
    }
    networks = {
        name: {"summary": each.summary, "width": each.width, "settings": _own_settings(each)}
        for name, each in NETWORKS.items()
    }
    return {
        "methods": {
            name: {
                "summary": each.about.summary,
                "buffer": each.replays,
                "learns_without_tasks": each.task_free,
                "own_network": each.own_network is not None,
                "settings": _own_settings(each),
            }
            for name, each in METHODS.items()
        },
        "regularizers": {"none": {"summary": "the method alone", "weight": 0.0, "settings": {}}} | regularizers,
        "teachers": {"none": {"summary": "the network answers itself", "settings": {}}}
        | {name: {"summary": each.summary, "settings": _own_settings(each)} for name, each in TEACHERS.items()},
        "streams": {
            name: {"summary": each.summary, "boundaries": each.boundaries, "settings": _own_settings(each)}
            for name, each in STREAMS.items()
        },
        "networks": networks
        | {"timm:NAME": {"summary": "a network from the package timm", "width": None, "settings": {}}},
        "augmentations": {name: {"summary": _first_sentence(each)} for name, each in VIEWS.items()},
        "protocols": {name: {"summary": each["summary"]} for name, each in PROTOCOLS.items()},
        "optimizers": {
            name: {"summary": f"{each.build.__module__.partition('.')[0]}'s {each.build.__name__}"}
            for name, each in OPTIMIZERS.items()
        },
    }


def _own_settings(part: Any) -> dict[str, dict[str, Any]]:
    """Default and help of the settings that a part of a run declares in its `Options`."""
    from cler.config.schema import settings_of

    options = getattr(part, "Options", None)
    declared: Iterable[Any] = settings_of(options).values() if options else ()
    return {each.name: {"default": each.default, "help": each.help} for each in declared}


def _first_sentence(documented: Any) -> str:
    told = (documented.__doc__ or "").partition(".")[0].partition(";")[0].replace("`", "")
    is_name = any(map(str.isupper, told[1:].partition(" ")[0]))  # as RandAugment is
    return told if is_name else told[:1].lower() + told[1:]


def _show(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    table = Table(*headings, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()
