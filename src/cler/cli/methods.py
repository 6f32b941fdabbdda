"""`cler methods`: what there is to choose from."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.table import Table

from cler.cli.app import AsJson, app, console


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods and the regularisers that they can be combined with."""
    from cler.methods import METHODS
    from cler.regularizers import REGULARIZERS

    entries = {
        "methods": {name: method.summary for name, method in METHODS.items()},
        "regularizers": {"none": "the method alone"} | {name: r.summary for name, r in REGULARIZERS.items()},
    }
    if as_json:
        print(json.dumps(entries, indent=1, ensure_ascii=False))
        return
    for kind, table in entries.items():
        console.print(_two_columns(kind.rstrip("s"), "what it does", table))
        console.print()
    console.print("Settings of single methods, for --set: " + "; ".join(_own_settings()), highlight=False)


def _own_settings() -> Iterator[str]:
    from cler.experiments.settings import option_kinds
    from cler.methods import METHODS

    for name in METHODS:
        if kinds := option_kinds(name):
            yield f"{name}: {', '.join(kinds)}"


def _two_columns(left: str, right: str, rows: dict[str, str]) -> Table:
    table = Table(left, right, box=None, pad_edge=False)
    for row in rows.items():
        table.add_row(*row)
    return table
