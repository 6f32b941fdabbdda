"""Where bundles are trained: on this machine, by SLURM, by Ray. A backend is a file.

To add one, add it here, and its name in `cler.config.cluster`, which imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable

from cler.config.settings import Machine
from cler.runs.backends.base import Backend
from cler.runs.backends.local import Local
from cler.runs.backends.ray import OnRay
from cler.runs.backends.slurm import OnSlurm

__all__ = ["BACKENDS", "Backend", "find_backend"]

BACKENDS: dict[str, Callable[[Machine], Backend]] = {"local": Local, "slurm": OnSlurm, "ray": OnRay}


def find_backend(machine: Machine) -> Backend:
    """The backend that `machine.on` names."""
    return BACKENDS[machine.on.partition(":")[0]](machine)
