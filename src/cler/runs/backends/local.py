"""This machine: on every GPU of it, or in worker processes on its CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cler.config.machine import Machine
from cler.engine.bundles import MOST_AT_ONCE, release_memory
from cler.engine.events import Emit, Message
from cler.runs.backends.base import Backend, register
from cler.runs.custom import only_here
from cler.runs.jobs import Job
from cler.runs.loading import Loaded
from cler.runs.machine import find_device, gpus, workers_that_fit
from cler.runs.trainers import Bundle, in_bundles, train_bundles
from cler.runs.workers import Workers


@register
class Local(Backend):
    """A process per GPU, or some on a CPU; a single one is this process. They keep the images until it is closed."""

    name = "local"

    def __init__(self, machine: Machine) -> None:
        self._loaded, self._workers = Loaded(), Workers()

    def device(self, name: str) -> torch.device:
        """The device of that name here; 'auto' is the GPU where there is one."""
        return find_device(name)

    def train(self, jobs: Sequence[Job], machine: Machine, emit: Emit) -> None:
        """Train the jobs; what no other process can import is trained in this one, and a message says so."""
        bundles, seen = _shared_out(jobs, machine)
        if len(seen) > 1 and (strange := only_here(jobs, machine)):
            on_gpu = machine.device == "cuda"
            bundles, seen, told = ([jobs], seen[:1], "on one GPU") if on_gpu else (bundles, seen[:1], "in turn")
            emit(Message(f"{', '.join(strange)}: no other process can import this, so this one trains all runs {told}"))
        if len(seen) > 1:
            self._workers.train(bundles, machine, seen, emit)
        else:
            train_bundles(bundles, machine, emit, loaded=self._loaded)

    def close(self) -> None:
        """End the processes, let the images go, and give the memory of a GPU back."""
        self._workers.close()
        self._loaded.clear()
        release_memory()


def _shared_out(jobs: Sequence[Job], machine: Machine) -> tuple[Sequence[Bundle], Sequence[str | None]]:
    """The jobs in bundles, and for each process the GPU that it sees, None for whatever there is.

    One GPU gets all the jobs, several get as many each.
    """
    if machine.device == "cpu":
        count = min(machine.workers or workers_that_fit(max(job.settings.threads for job in jobs)), len(jobs))
        return [[job] for job in jobs], [None] * count
    there = gpus()
    if len(there) < 2:
        return [jobs], [None]
    bundles = in_bundles(jobs, min(machine.at_once or MOST_AT_ONCE, math.ceil(len(jobs) / len(there))))
    return bundles, there[: len(bundles)]
