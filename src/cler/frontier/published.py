"""What others have published, from `published.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from cler.config.labels import label_of, title_of
from cler.config.registry import REGULARIZERS
from cler.runs.series import Series


@dataclass(frozen=True)
class Contest:
    """What results are compared in: a protocol, such as 10+64, and a size of the buffer."""

    protocol: str
    buffer: int

    def __str__(self) -> str:
        return f"{self.protocol}, buffer {self.buffer}"


@dataclass(frozen=True)
class Number:
    """A published accuracy."""

    label: str
    contest: Contest
    mean: float
    source: str
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:g}" if self.std is None else f"{self.mean:g} ± {self.std:g}"

    @property
    def name(self) -> str:
        """The method as the page and the figure name it."""
        return without_puzzle(self.label)


def without_puzzle(label: str) -> str:
    """A method's label without the puzzle of CLER, which is the same in all contests."""
    return label.replace(title_of(REGULARIZERS, "jigsaw"), "CLER")


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads((files("cler.frontier") / "published.toml").read_text(encoding="utf-8"))


def sources() -> dict[str, str]:
    """Who published the numbers, by the name that entries use."""
    found: dict[str, str] = _file()["sources"]
    return found


def published() -> list[Number]:
    """The numbers of `published.toml`."""
    return [
        Number(_label(entry), Contest(protocol, int(buffer)), each["mean"], each["source"], each.get("std"))
        for protocol, entries in _file().items()
        if protocol != "sources"
        for entry in entries
        for buffer, each in entry["numbers"].items()
    ]


def contest_of(row: Series) -> Contest:
    """The contest that runs stand in."""
    return Contest(f"{row.settings['batch']}+{row.settings['replay_batch']}", row.settings["buffer"])


def _label(entry: dict[str, Any]) -> str:
    return str(entry.get("label") or label_of(entry["method"], "none", entry.get("teacher", "none")))
