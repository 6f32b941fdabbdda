"""Where bundles are trained: on this machine, by SLURM, by Ray. A new backend is a new file here, named in `_FILES`."""

from __future__ import annotations

from importlib import import_module

from cler.config.machine import Machine
from cler.config.registry import BACKENDS
from cler.runs.backends.base import Backend, register

_FILES = ("local", "slurm", "ray")
for _file in _FILES:
    import_module(f"cler.runs.backends.{_file}")

__all__ = ["BACKENDS", "Backend", "find_backend", "register"]


def find_backend(machine: Machine) -> Backend:
    """The backend that `machine.on` names."""
    found: Backend = BACKENDS.find(machine.on.partition(":")[0])(machine)
    return found
