"""Write down the code that decides the numbers of runs, once you have decided whether they come out differently.

`tests/revisions.json` holds the revision of every method, regularizer, teacher, network and stream and of the engine,
and a hash of every file that decides numbers, which comments, docstrings, messages and renames do not change. A test
compares both with the code as it is.

    python tools/revisions.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cler.config.registry import METHODS, NETWORKS, REGULARIZERS, STREAMS, TEACHERS
from cler.config.settings import CUSTOM
from cler.engine import REVISION
from cler.runs.revisions import revision_of
from cler.runs.syntax import defined_names, fingerprint

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "cler"
FILE = ROOT / "tests" / "revisions.json"
DECIDING = (
    "pretext.py", "data/*views.py", "streams/*.py", "memory/*.py", "nets/*.py", "regularizers/*.py",
    "teachers/*.py", "methods/*.py", "engine/run.py", "engine/evaluate.py", "runs/build.py",
)  # fmt: skip
"""What decides the numbers of runs, below `src/cler`."""
SHARED = (
    "about.py", "base.py", "distillation.py", "loss.py", "nearest_mean.py", "optimizers.py", "setup.py", "tasks.py",
)  # fmt: skip
"""Files among the methods and other parts that register none."""


def as_it_is() -> dict[str, Any]:
    """What the file should hold."""
    paths = sorted(path for pattern in DECIDING for path in SOURCE.glob(pattern) if path.name != "__init__.py")
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in paths}
    names = defined_names(texts.values())
    tables = ((METHODS, ""), (REGULARIZERS, ""), (TEACHERS, ""), (NETWORKS, "network "), (STREAMS, "stream "))
    entries = {kind + name: entry for table, kind in tables for name, entry in table.items() if CUSTOM not in name}
    parts = {name: revision_of(entry) for name, entry in entries.items()}
    known = {"engine": REVISION, **{name: number for name, number in parts.items() if isinstance(number, int)}}
    return {"revisions": known, "files": {name: fingerprint(text, names) for name, text in texts.items()}}


def as_written() -> dict[str, Any]:
    """What the file holds."""
    content: dict[str, Any] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {"revisions": {}, "files": {}}
    return content


def changes() -> list[str]:
    """A line for each difference between the code and what is written down, with what to do about it."""
    now, before = as_it_is(), as_written()
    lines = [
        f"src/cler/{name} has changed: if runs that use it come out differently, raise {_whose(name)}"
        for name in sorted(now["files"].keys() | before["files"].keys())
        if now["files"].get(name) != before["files"].get(name)
    ]
    lines += [
        f"the revision of {name} is {now['revisions'].get(name)} and was {before['revisions'].get(name)}"
        for name in sorted(now["revisions"].keys() | before["revisions"].keys())
        if now["revisions"].get(name) != before["revisions"].get(name)
    ]
    return lines


def _whose(name: str) -> str:
    """The revision that stands for a file."""
    room, _, file = name.partition("/")
    if room in ("methods", "regularizers", "teachers", "streams") and file not in SHARED:
        return "`revision` of what it registers"
    if room == "nets":
        return "`revision` of the network, or of the methods and regularizers that it is for"
    return "`cler.engine.REVISION`"


if __name__ == "__main__":
    for line in changes():
        print(line)
    FILE.write_text(json.dumps(as_it_is(), indent=1) + "\n", "utf-8")
    print(f"written: {FILE.relative_to(ROOT)}")
