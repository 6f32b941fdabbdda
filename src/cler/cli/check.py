"""`cler check`: does a method, regularizer, teacher or network keep its promises?"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cler.cli.app import AsJson, Imports, app, console
from cler.cli.options import command


@command(app)
def check(
    name: Annotated[str, typer.Argument(help="A method, regularizer, teacher or network; `cler methods` lists them.")],
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Test whether a method, regularizer, teacher or network does what it has to, on a small made-up stream on the CPU.

    One line for each promise says whether it was kept and, if not, why; a step that looks at a tensor's value is
    reported with its file and line. The exit code is 1 if a promise was broken.
    """
    from cler.promises import check as check_promises

    report = check_promises(name, each=None if as_json else lambda outcome: _print(str(outcome)))
    if as_json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        _print(report.summary)
    if not report.passed:
        raise typer.Exit(1)


def _print(text: str) -> None:
    console.print(text, soft_wrap=True)
