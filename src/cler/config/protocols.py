"""Named protocols: batch sizes, optimizers and the like that runs of a published comparison share."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

PROTOCOLS: dict[str, dict[str, Any]] = tomllib.loads(
    (files("cler.config") / "protocols.toml").read_text(encoding="utf-8")
)
"""The content of `protocols.toml`, by name."""


def protocol_defaults(protocol: str | None, method: str, regularizer: str, teacher: str = "none") -> dict[str, Any]:
    """What a protocol takes for a method with a regularizer and a teacher, the most specific value there is."""
    about = PROTOCOLS.get(protocol or "", {})
    values = {name: value for name, value in about.items() if name not in ("summary", "methods")}
    for name in (method, f"{method}+{regularizer}", f"{method}+{regularizer}+{teacher}"):
        values |= about.get("methods", {}).get(name, {})
    return values
