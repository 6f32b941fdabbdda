"""The paper's settings: what it takes for a method, with or without a regularizer, on a dataset."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from cler.config.registry import DATASETS
from cler.config.settings import Settings


@cache
def paper_file() -> dict[str, Any]:
    """The content of `paper.toml`."""
    return tomllib.loads((files("cler.paper") / "paper.toml").read_text("utf-8"))


def defaults(method: str, regularizer: str, dataset: str, buffer: int | None) -> dict[str, Any]:
    """What the paper, or this package where the paper does not say, takes; the most specific value there is."""
    about = paper_file().get(dataset, {}) if dataset in DATASETS else {}
    by_method = about.get("methods", {})
    values = {name: value for name, value in about.items() if name != "methods"}
    size = values.get("buffer", Settings.buffer) if buffer is None else buffer
    for name in (method, f"{method}+{regularizer}"):
        values |= by_method.get(name, {}) | by_method.get(f"{name}@{size}", {})
    return values
