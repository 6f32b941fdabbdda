"""What a tracker has to do, and the table of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cler.config.registry import TRACKERS

Table = Mapping[str, Mapping[str, float]]
"""Metrics by name and scenario."""


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker follows."""

    id: str
    """Letters and digits that no other run has; a run that is resumed keeps its own."""
    label: str
    """A short name."""
    group: str
    """What runs with the same settings share: the name of the folder that has one for each seed."""
    folder: Path
    """Where the tracker may keep files."""
    seed: int
    settings: Mapping[str, Any]
    resumed: bool
    """Whether the same tracker has followed it before, up to where it was stopped."""


class Tracker(ABC):
    """Follows one run, from its start or from where it is resumed, in a thread that training does not wait for.

    Whatever it raises, it is left out from then on, of the other runs too, and training continues. It is made when the
    run starts, and imports its package then and not before.
    """

    name: ClassVar[str]
    """The tracker's name on the command line, after `--track`."""
    package: ClassVar[str | None] = None
    """The package that has to be installed; None where it needs none."""

    def __init__(self, run: TrackedRun) -> None:
        """Begin, or continue what an earlier process has begun; by itself it only keeps the run."""
        self.run = run

    @abstractmethod
    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a point to some curves, after so many steps of the run; steps never decrease."""

    @abstractmethod
    def end(self, step: int, metrics: Table | None) -> None:
        """Add the final metrics and close; None for a run that has not come to its end, and may be resumed."""


register = TRACKERS.add
"""Registers a tracker for the command line."""
