"""How runs that are trained side by side take a step: one run after the other, or all as branches of one CUDA graph."""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch

from cler.engine.run import Run

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
"""Queues of the GPU, of which CUDA uses 8 by default: fewer than there are runs side by side."""
WARM_UP = 1
"""Steps of a kind that are taken one kernel at a time before one is recorded: in the first, kernels are compiled and
optimizers and loss sums make what they keep. They are real steps."""
IN_FLIGHT = 8
"""Recorded steps that may wait on the GPU: enough to keep it busy, few enough for the host to know where it stands."""


def make_stepper(
    runs: Sequence[Run], message: Callable[[str], None], *, graph: bool = True
) -> EagerStepper | GraphStepper:
    """The stepper for runs side by side on their device; without `graph`, for debugging, it records nothing."""
    return GraphStepper(runs, message) if graph and runs[0].device.type == "cuda" else EagerStepper(runs)


class EagerStepper:
    """Takes the steps of the runs one after the other, without recording: on a CPU, or for debugging."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs

    def prepare(self) -> None:
        """Called when the runs have begun a task or a phase; there is nothing to prepare here."""

    def step(self) -> None:
        """One step of every run."""
        for run in self.runs:
            run.step()


class GraphStepper:
    """Takes the steps of runs side by side on a GPU, each on its own stream: first eagerly, then as one recorded graph.

    Recording turns a step of every run into one CUDA graph with a branch per run. Replaying it costs the host one
    launch, and the GPU finds ten runs to fill itself with. The graph serves as long as the methods' `recording_key`
    stays the same, over several tasks where it does.
    """

    def __init__(self, runs: Sequence[Run], message: Callable[[str], None]) -> None:
        self.runs, self.message = runs, message
        self.streams = [torch.cuda.Stream(run.device) for run in runs]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.missing = WARM_UP
        """Steps until one can be recorded."""
        self._keys: list[Hashable] = []
        self.can_record = True
        self._waiting: deque[torch.cuda.Event] = deque()

    def prepare(self) -> None:
        """Drop the graph unless it still matches what the methods would do."""
        keys = [run.recording_key for run in self.runs]
        if keys != self._keys:
            self.missing = WARM_UP
            self._keys, self.graph = keys, None

    def step(self) -> None:
        """One step of every run."""
        if self.graph is None and all(run.method.settled for run in self.runs):
            if self.missing <= 0 and self.can_record:
                self._record()
            self.missing -= 1
        if self.graph is None:
            self._side_by_side()
        else:
            self.graph.replay()
        self._keep_pace()

    def _side_by_side(self) -> None:
        """A step of every run, each on its stream, between two points of the current stream."""
        current = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(current)
        try:
            for run, stream in zip(self.runs, self.streams, strict=True):
                with torch.cuda.stream(stream):
                    run.step()
        finally:
            for stream in self.streams:
                current.wait_stream(stream)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for run in self.runs:
            graph.register_generator_state(run.generator)
        torch.cuda.synchronize()
        try:
            with uncollected(), torch.cuda.graph(graph):
                self._side_by_side()
        except RuntimeError as error:
            default = torch.cuda.default_generators[torch.cuda.current_device()]
            for generator in (default, *(run.generator for run in self.runs)):
                generator.graphsafe_set_state(generator.clone_state())  # else it waits for a recording that is over
            if shortage := lack_of_memory(error):
                raise shortage from None
            self.can_record = False
            reason = str(error).splitlines()[0]
            self.message(f"a step could not be recorded as a CUDA graph ({reason}); continuing without, more slowly")
        else:
            self.graph = graph

    def _keep_pace(self) -> None:
        event = torch.cuda.Event(blocking=True)
        event.record()
        self._waiting.append(event)
        if len(self._waiting) > IN_FLIGHT:
            self._waiting.popleft().synchronize()


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside, Python collects no garbage: CUDA aborts the process if an old graph is freed while a new one is recorded.

    Garbage is collected before.
    """
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def synchronize(device: torch.device) -> None:
    """Wait for the steps that a GPU has yet to take."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def lack_of_memory(error: BaseException | None) -> BaseException | None:
    """The out-of-memory error behind an error, if any: a recording that it ends may raise another error on top of it.

    PyTorch has a class for errors of its own GPU allocator; all others are recognized by their messages.
    """
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        if any(words in str(error) for words in ("out of memory", "STATUS_ALLOC_FAILED", "can't allocate memory")):
            return error
        error = error.__context__
    return error
