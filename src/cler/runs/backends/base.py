"""What a backend is: it takes bundles of jobs to devices, and brings the events of training back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Protocol

import torch

from cler.config.machine import Machine
from cler.config.registry import BACKENDS
from cler.engine.events import Emit
from cler.runs.jobs import Job


class Backend(ABC):
    """Trains jobs, here or elsewhere, as often as it is asked to, until it is closed."""

    name: ClassVar[str]
    """As `--on` has it."""
    takes_address: ClassVar[bool] = False
    """Whether its name may be followed by ':' and the address of a cluster that is running."""

    @abstractmethod
    def __init__(self, machine: Machine) -> None:
        """For these settings of the machine; nothing is begun yet."""

    @abstractmethod
    def device(self, name: str) -> torch.device:
        """The device that a name of the command line stands for, where training will be."""

    def check(self, jobs: Sequence[Job] = ()) -> None:  # noqa: B027 - some can be used from anywhere, by any job
        """Refuse, before anything is written or downloaded, a backend that does not work here or for these jobs."""

    @abstractmethod
    def train(self, jobs: Sequence[Job], machine: Machine, emit: Emit) -> None:
        """Train all the jobs that no other process is training, on the machine's device; `emit` hears every event.

        What runs on each device is `train_bundles`, with locks, checkpoints and results made there.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """End what was started to train, such as a cluster on this machine."""


register = BACKENDS.add
"""Registers a backend for the command line."""


AttemptState = Literal["waiting", "running", "there", "cancelled"]
"""State of an attempt: waits for a machine; has one; may have one, the cluster does not say; was canceled."""


class Cluster(Protocol):
    """What the driver needs from a cluster. An attempt is named by its folder."""

    name: str
    lasting: bool
    """Whether attempts stay when the driver ends, for another driver to find."""
    poll: float
    """Seconds between two calls of `states`."""
    silence: str
    """Why `states` gave None when it was last called."""
    reasons: Mapping[str, str]
    """Why attempts wait for a machine, by their names, as of the last call of `states`; some reasons may be unknown."""

    def submit(self, attempt: Path, cores: int, avoid: Collection[str]) -> None:
        """Have `train_attempt` called with this folder on a machine, if possible none of those to avoid."""

    def states(self) -> dict[str, AttemptState] | None:
        """The attempts that have not ended, by name; None if the cluster cannot tell now."""

    def cancel(self, names: Collection[str]) -> None:
        """End these attempts, if they can be reached."""

    def last_words(self, attempt: Path) -> str:
        """Why an attempt ended without saying so itself, in a line; empty if unknown."""

    def ending(self, names: Collection[str]) -> str:
        """How a user can end the attempts that stay, in words."""
