"""Regularizers: losses that any method adds to its own. A new one is a new file here, named in `_FILES`."""

from __future__ import annotations

from importlib import import_module

from cler.regularizers.base import REGULARIZERS, Entry, Regularizer
from cler.regularizers.equivariant import Equivariant

_FILES = ("equivariant", "barlow_twins")
for _file in _FILES:
    import_module(f"cler.regularizers.{_file}")

__all__ = ["REGULARIZERS", "Entry", "Equivariant", "Regularizer"]
