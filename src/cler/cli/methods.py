"""`cler methods`: what there is to choose from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from cler.cli.app import AsJson, app, console


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods, the settings that only one of them has, and the regularizers they can be combined with."""
    from cler.methods import METHODS
    from cler.regularizers import REGULARIZERS

    regularizers = {"none": "the method alone"} | {name: each.summary for name, each in REGULARIZERS.items()}
    if as_json:
        about = {
            name: {
                "summary": method.about.summary,
                "memory": method.replays,
                "learns_without_tasks": method.task_free,
                "settings": _own_settings(name),
            }
            for name, method in METHODS.items()
        }
        print(json.dumps({"methods": about, "regularizers": regularizers}, indent=1))
        return
    _show(("method", "what it does"), [(name, method.about.summary) for name, method in METHODS.items()])
    _show(("regularizer", "what it does"), list(regularizers.items()))
    own = [
        (name, f"{setting}={about['default']}", about["help"])
        for name in METHODS
        for setting, about in _own_settings(name).items()
    ]
    _show(("method", "--set, and default", "settings of a method alone; some are tuned for an image set"), own)


def _own_settings(method: str) -> dict[str, dict[str, Any]]:
    from cler.config.settings import own_settings

    return {name: {"default": each.default, "help": each.help} for name, each in own_settings(method).items()}


def _show(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(*headings, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    console.print()
