import shutil
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch

from cler.errors import UsageError
from cler.paper import cost, reproduce
from cler.paper.tables import find_table
from cler.runs.bench import MOST_UNTIMED
from cler.runs.machine import environment
from cler.streams import Stream
from small_table import cell_of, look, pair_of, results, store

CPU = torch.device("cpu")


def test_costs_are_measured_once_for_each_pair_and_grow_with_the_epochs(table, tmp_path, monkeypatch):
    measured = []

    def step(run, phase):
        measured.append((type(run.method).name, phase))
        return 0.002

    monkeypatch.setattr(cost, "_time_of_a_step", step)
    missing = look(table, tmp_path).missing
    costs = cost.seconds_per_run(missing, CPU, at_once=2)
    assert measured == [("er-ace", "observe")] * 2
    assert [costs[work.cell] for work in missing] == pytest.approx([5.0, 5.0, 15.0])


def test_each_phase_counts_with_the_time_of_its_own_steps(tmp_path, monkeypatch):
    times = {"invert": 0.001, "observe": 0.01, "refine": 0.002}
    monkeypatch.setattr(cost, "_time_of_a_step", lambda run, phase: times[phase])
    table = find_table("data-free")
    cells = reproduce.select(table, only=["r-dfcil+none"], datasets=["cifar100"])
    (work,) = look(table, tmp_path, cells=cells, seeds=1).missing
    seconds = 10 * 30 * 500 * 0.01 + 9 * (5000 * 0.001 + 40 * 500 * 0.002)
    assert cost.seconds_per_run([work], CPU, at_once=1)[work.cell] == pytest.approx(seconds)


def test_a_cost_is_that_of_earlier_runs_where_there_are_some(table, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "_seconds_per_step", lambda *_: {"observe": 0.0})
    hardware = environment(CPU)["hardware"]
    for seed, (seconds, made_on) in enumerate([(30.0, hardware), (50.0, hardware), (400.0, hardware), (1.0, "other")]):
        (run,) = results(cell_of(table, "er-ace+jigsaw"), [25.0])
        run["settings"] |= {"an option": 0.1 * seed, "buffer": 30}  # as long, whatever they are
        store(tmp_path, [run | {"seed": seed, "seconds": seconds, "environment": {"hardware": made_on}}])
    state = look(table, tmp_path, seeds=5)
    costs = cost.seconds_per_run(state.missing, CPU, 2, state.groups)
    assert {(pair_of(work.cell), work.cell.epochs): costs[work.cell] for work in state.missing} == {
        ("er-ace", 1): 0, ("er-ace+jigsaw", 1): 25, ("er-ace", 3): 0
    }  # fmt: skip


def test_what_earlier_runs_tell_is_known_at_once(table, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "_seconds_per_step", lambda *_: pytest.fail("nothing is to be timed"))
    (run,) = results(cell_of(table, "er-ace"), [20.0])
    gpu = {"device": "cuda", "hardware": "a GPU"}
    store(tmp_path, [run | {"seconds": 40.0, "at_once": 2, "environment": gpu}])
    state = look(table, tmp_path)
    seconds, hardware = cost.known_seconds(state.missing, CPU, 2, state.groups)
    told = {(pair_of(cell), cell.epochs): each for cell, each in seconds.items()}
    assert (told, hardware) == ({("er-ace", 1): 20, ("er-ace", 3): 60}, "a GPU")
    here = {"device": "cpu", "hardware": environment(CPU)["hardware"]}
    store(tmp_path, [run | {"seconds": 10.0, "at_once": 1, "environment": here}])
    state = look(table, tmp_path)
    seconds, hardware = cost.known_seconds(state.missing, CPU, 2, state.groups)
    assert (set(seconds.values()), hardware) == ({5.0, 15.0}, here["hardware"])
    assert cost.known_seconds(state.missing, CPU, 2, ()) == ({}, here["hardware"])
    (other,) = results(cell_of(table, "er-ace+jigsaw"), [20.0])
    store(tmp_path, [other | {"seed": 1, "seconds": 40.0, "at_once": 2, "environment": gpu}])
    store(tmp_path, [run | {"seed": 2, "seconds": 40.0, "at_once": 2, "environment": gpu}])
    state = look(table, tmp_path, seeds=5)
    seconds, hardware = cost.known_seconds(state.missing, CPU, 2, state.groups)
    assert (len(seconds), hardware) == (3, "a GPU")  # of which more is known


def test_costs_are_measured_on_images_of_the_right_size(tmp_path, monkeypatch):
    measured = {}

    def step(settings, data, at_once):
        measured[settings.dataset] = data.image_size, Stream(data, settings.tasks, batch=settings.batch).schedule[1]
        return {"observe": 0.001}

    monkeypatch.setattr(cost, "_seconds_per_step", step)
    table = find_table("table1")
    cells = reproduce.select(table, only=["er-ace"], buffers=[2000])
    cost.seconds_per_run(look(table, tmp_path, cells=cells).missing, CPU, at_once=1)
    assert {name: size for name, (size, _) in measured.items()} == {"cifar100": 32, "mini-imagenet": 84}
    assert min(steps for _, steps in measured.values()) >= cost.MOST_STEPS + MOST_UNTIMED


class Slow:
    """A run whose steps take these seconds of a clock that stands still otherwise."""

    schedule, task = (1, 100), 0
    method, stream = SimpleNamespace(setup=SimpleNamespace(replay_batch=10)), SimpleNamespace(batch=10)

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds = 0.0, iter(seconds)
        monkeypatch.setattr(cost.time, "perf_counter", lambda: self.now)

    def begin_task(self, task):
        self.task = task

    end_task = begin_task

    def begin_phase(self, phase):
        pass

    def step(self):
        self.now += next(self.seconds)


@pytest.mark.parametrize(
    ("seconds", "shortest"), [((9.0, 0.2, 0.1, 0.3), 0.1), ((9.0, 2.0, 1.0), 1.0), ((9.0, 30.0), 30.0)]
)
def test_a_cost_is_the_shortest_of_three_steps_or_three_seconds_in_the_second_task(monkeypatch, seconds, shortest):
    run = Slow(monkeypatch, seconds)
    assert cost._time_of_a_step(run, "observe") == pytest.approx(shortest)
    assert run.task == 1
    assert list(run.seconds) == []


def test_a_step_is_really_measured(table, tmp_path):
    (work, *_) = look(table, tmp_path).missing
    assert cost.seconds_per_run([work], CPU, at_once=1)[work.cell] > 0


def test_too_little_disk_is_said_before_anything_is_trained(table, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9))
    missing = look(table, tmp_path, seeds=50).missing
    cost.check_disk(tmp_path, missing, at_once=1)
    with pytest.raises(UsageError, match=r"has 1.00 GB of free disk space, and these runs may need 6.01 GB: free some"):
        cost.check_disk(tmp_path, missing, at_once=10)
