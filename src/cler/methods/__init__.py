"""Continual learners. A new one is a new file here, named in `_FILES`."""

from importlib import import_module

from cler.methods.base import METHODS, Method, find_method
from cler.methods.setup import Setup

_FILES = (
    "finetune", "joint", "er", "er_ace", "derpp", "gsa", "pcr", "cope", "xder", "dualnet", "ccl_dc", "mose", "lwf_mc",
    "rdfcil",
)  # fmt: skip
for _file in _FILES:
    import_module(f"cler.methods.{_file}")

__all__ = ["METHODS", "Method", "Setup", "find_method"]
