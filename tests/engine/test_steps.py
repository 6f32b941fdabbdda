"""The order of plain, recorded and replayed steps, with a stand-in for CUDA."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from cler.engine.steps import IN_FLIGHT, WARM_UP, EagerStepper, GraphStepper, make_stepper


class FakeGenerator:
    """Knows whether it has been given a state that no recording has touched."""

    state = "as it was registered"

    def clone_state(self):
        return "a new one"

    def graphsafe_set_state(self, state):
        self.state = state


class FakeRun:
    """Notes when and where its steps are taken."""

    def __init__(self, cuda, name, key="same"):
        self.cuda, self.name = cuda, name
        self.device = torch.device("cuda")
        self.generator = FakeGenerator()
        self.recording_key = key
        self.method = SimpleNamespace(settled=True)
        self.error = None

    def step(self):
        if self.cuda.capturing and self.error:
            raise self.error
        kind = "record" if self.cuda.capturing else "plain"
        self.cuda.log.append((kind, self.name, self.cuda.stream))


class FakeCuda:
    """As much of torch.cuda as the stepper uses."""

    def __init__(self):
        self.log, self.waits, self.generators = [], [], []
        self.capturing, self.stream, self.unfinished = False, "main", 0
        self.streams, self.unjoined, self.error_at_the_end = 0, set(), None
        self.default_generators = [FakeGenerator()]
        fake = self

        class Stream:
            def __init__(self, device):
                fake.streams += 1
                self.name = f"stream {fake.streams}"

            def wait_stream(self, other):
                fake.wait(self.name, other.name)

        class Graph:
            def register_generator_state(self, generator):
                fake.generators.append(generator)

            def replay(self):
                fake.log.append(("replay",))

        class Event:
            def __init__(self, blocking):
                assert blocking

            def record(self):
                fake.unfinished += 1

            def synchronize(self):
                fake.unfinished -= 1

        self.Stream, self.CUDAGraph, self.Event = Stream, Graph, Event

    def current_stream(self):
        return SimpleNamespace(name="main", wait_stream=lambda other: self.wait("main", other.name))

    def wait(self, name, other):
        self.waits.append((name, other))
        if self.capturing and other == "main":
            self.unjoined.add(name)
        elif self.capturing and other not in self.unjoined:
            raise RuntimeError("dependency created on uncaptured work in another stream")
        elif self.capturing:
            self.unjoined.remove(other)

    def synchronize(self):
        pass

    def current_device(self):
        return 0

    @contextmanager
    def graph(self, graph):
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False
            if self.unjoined:
                raise RuntimeError("capture has unjoined work")
            if self.error_at_the_end:
                raise self.error_at_the_end

    def use(self, stream):
        @contextmanager
        def manager():
            before, self.stream = self.stream, stream.name
            try:
                yield
            finally:
                self.stream = before

        return manager()


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    names = (
        "Stream",
        "CUDAGraph",
        "Event",
        "current_stream",
        "current_device",
        "default_generators",
        "synchronize",
        "graph",
    )
    for name in names:
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(torch.cuda, "stream", fake.use)
    return fake


def kinds(cuda):
    return [entry[0] for entry in cuda.log]


def test_warm_up_then_one_recording_then_replays(cuda):
    runs = [FakeRun(cuda, "a"), FakeRun(cuda, "b")]
    stepper = GraphStepper(runs, pytest.fail)
    stepper.prepare()
    for _ in range(WARM_UP + 4):
        stepper.step()
    assert kinds(cuda) == ["plain"] * 2 * WARM_UP + ["record"] * 2 + ["replay"] * 4
    assert cuda.generators == [run.generator for run in runs]


def test_every_run_has_a_stream_of_its_own_between_two_points_of_the_main_one(cuda):
    runs = [FakeRun(cuda, "a"), FakeRun(cuda, "b")]
    stepper = GraphStepper(runs, pytest.fail)
    stepper.prepare()
    stepper.step()
    assert cuda.log == [("plain", "a", "stream 1"), ("plain", "b", "stream 2")]
    assert cuda.waits == [("stream 1", "main"), ("stream 2", "main"), ("main", "stream 1"), ("main", "stream 2")]


def test_the_recording_serves_a_task_with_the_same_key_and_no_other(cuda):
    run = FakeRun(cuda, "a", key=("first task", 5))
    stepper = GraphStepper([run], pytest.fail)
    for key in ("first", "later", "later"):
        run.recording_key = key
        stepper.prepare()
        for _ in range(WARM_UP + 2):
            stepper.step()
    recorded = ["plain"] * WARM_UP + ["record", "replay", "replay"]
    assert kinds(cuda) == recorded * 2 + ["replay"] * (WARM_UP + 2)


def test_nothing_is_recorded_before_every_method_has_been_settled_for_a_step(cuda):
    runs = [FakeRun(cuda, "a"), FakeRun(cuda, "b")]
    runs[1].method.settled = False
    stepper = GraphStepper(runs, pytest.fail)
    stepper.prepare()
    for _ in range(WARM_UP + 3):
        stepper.step()
    assert set(kinds(cuda)) == {"plain"}
    runs[1].method.settled = True
    cuda.log.clear()
    for _ in range(WARM_UP + 1):
        stepper.step()
    assert kinds(cuda) == ["plain"] * 2 * WARM_UP + ["record", "record", "replay"]


def test_where_recording_fails_the_steps_go_on_and_it_is_said_once(cuda):
    run = FakeRun(cuda, "a")
    run.error = RuntimeError("operation not permitted when stream is capturing\nmore lines")
    said = []
    stepper = GraphStepper([run], said.append)
    for _ in range(2):
        stepper.prepare()
        for _ in range(WARM_UP + 3):
            stepper.step()
    assert kinds(cuda) == ["plain"] * 2 * (WARM_UP + 3)
    assert len(said) == 1
    assert "not permitted" in said[0]
    assert "\n" not in said[0]
    assert [generator.state for generator in (run.generator, *cuda.default_generators)] == ["a new one"] * 2


@pytest.mark.parametrize("over_it", [None, RuntimeError("capture was invalidated")])
def test_running_out_of_memory_while_recording_is_passed_on(cuda, over_it):
    runs = [FakeRun(cuda, name) for name in "abc"]
    runs[1].error, cuda.error_at_the_end = torch.OutOfMemoryError("no more"), over_it
    stepper = GraphStepper(runs, pytest.fail)
    stepper.prepare()
    for _ in range(WARM_UP):
        stepper.step()
    with pytest.raises(torch.OutOfMemoryError, match="no more"):
        stepper.step()
    assert not cuda.unjoined
    assert cuda.default_generators[0].state == "a new one"


def test_the_host_stays_a_few_steps_ahead_and_no_more(cuda):
    stepper = GraphStepper([FakeRun(cuda, "a")], pytest.fail)
    stepper.prepare()
    for _ in range(50):
        stepper.step()
        assert cuda.unfinished <= IN_FLIGHT


def test_the_device_decides_how_steps_are_taken(cuda):
    run = FakeRun(cuda, "a")
    assert isinstance(make_stepper([run], print), GraphStepper)
    assert isinstance(make_stepper([run], print, graph=False), EagerStepper)
    run.device = torch.device("cpu")
    assert isinstance(make_stepper([run], print), EagerStepper)
