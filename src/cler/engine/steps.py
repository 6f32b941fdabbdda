"""How a group of runs takes a step: one run after the other, or all as branches of one CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cler.engine.run import Run


class Stepper(Protocol):
    """Takes steps of one task."""

    def step(self) -> None:
        """One step of every run."""
        ...


class InTurn:
    """Each run takes its step after the one before it: on a CPU."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs

    def step(self) -> None:
        """One step of every run."""
        for run in self.runs:
            run.step()


def make_stepper(runs: Sequence[Run]) -> Stepper:
    """The right way for where the runs live."""
    return InTurn(runs)
