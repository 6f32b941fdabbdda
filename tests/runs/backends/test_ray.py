import socket
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch

from cler.config.machine import Machine
from cler.engine.events import Finished, Message, ignore
from cler.errors import UsageError
from cler.files import read_json
from cler.runs import trainers
from cler.runs.backends import driver, find_backend
from cler.runs.backends import ray as backend
from cler.runs.backends.attempts import ATTEMPTS
from cler.runs.backends.ray import OnRay, RayCluster


class StandIn:
    """The few calls of Ray that are made; a task is done when it is waited for, or lost as its node is."""

    def __init__(self, lost=0, gpus=0.0):
        self.lost, self.gpus = lost, gpus
        self.error = RuntimeError("the node died\nlately")
        self.inits, self.options, self.cancelled, self.connected = [], [], [], False

    def init(self, **how):
        self.inits.append(how)
        self.connected = True

    def is_initialized(self):
        return self.connected

    def shutdown(self):
        self.connected = False

    def cluster_resources(self):
        return {"CPU": 8.0, "GPU": self.gpus} if self.gpus else {"CPU": 8.0}

    def nodes(self):
        return [{"Alive": True, "Resources": self.cluster_resources()}, {"Alive": False, "Resources": {"CPU": 64.0}}]

    def remote(self, **options):
        self.options.append(options)
        return lambda function: SimpleNamespace(remote=lambda *given: (function, given, len(self.options)))

    def wait(self, tasks, *, num_returns, timeout):
        assert (num_returns, timeout) == (len(tasks), 0)
        function, given, number = tasks[0]
        if number > self.lost:
            function(*given)
        return tasks[:1], tasks[1:]

    def get(self, task):
        _, _, number = task
        if number <= self.lost:
            raise self.error

    def cancel(self, task, *, force):
        self.cancelled.append(task)


@pytest.fixture
def ray(monkeypatch):
    def stand_in(**how):
        made = StandIn(**how)
        monkeypatch.setitem(sys.modules, "ray", made)
        return made

    monkeypatch.setattr(driver, "LOOK", 0.0)
    monkeypatch.setattr(backend.RayCluster, "poll", 0.0)
    monkeypatch.setattr(backend, "_check_reachable", lambda address: None)
    return stand_in


def test_tasks_are_spread_and_give_the_same_numbers(tmp_path, ray, machine, toy_jobs):
    made, heard = ray(), []
    plain, jobs = toy_jobs([0, 1], tmp_path / "plain"), toy_jobs([0, 1])
    trainers.train_bundles([plain], machine, ignore)
    with closing(find_backend(Machine(on="ray"))) as found:
        found.train(jobs, machine, heard.append)
    results = [[read_json(job.folder / "result.json")["accuracy"] for job in each] for each in (jobs, plain)]
    assert results[0] == results[1]
    assert sum(isinstance(event, Finished) for event in heard) == 2
    assert made.options == [{"num_cpus": 1, "num_gpus": 0, "max_retries": 0, "scheduling_strategy": "SPREAD"}] * 2
    assert not made.connected
    assert not (tmp_path / ATTEMPTS).exists()


def test_no_more_cores_are_asked_for_than_a_node_has(ray, machine, toy_jobs):
    made = ray(lost=99)
    with pytest.raises(UsageError, match="a job of ray was lost"):
        OnRay(Machine(on="ray")).train(toy_jobs(threads=9), machine, ignore)
    assert [each["num_cpus"] for each in made.options] == [8, 8, 8]


def test_a_lost_nodes_bundle_is_tried_again(ray, machine, toy_jobs):
    made, jobs = ray(lost=2), toy_jobs()
    find_backend(Machine(on="ray")).train(jobs, machine, ignore)
    assert len(made.options) == 3
    assert read_json(jobs[0].folder / "result.json")["complete"]


@pytest.mark.parametrize("in_the_task", [False, True])
def test_what_ray_says_of_a_lost_task_is_told(ray, machine, toy_jobs, in_the_task):
    made, heard = ray(lost=1), []
    if in_the_task:
        made.error = RuntimeError("ray::_train()\n  Traceback:\nImportError: no cler")
        made.error.cause = ImportError("no cler")
    find_backend(Machine(on="ray")).train(toy_jobs(), machine, heard.append)
    why = "ImportError: no cler" if in_the_task else "the node died"
    assert Message(f"a job of ray was lost ({why}): its run is resumed elsewhere") in heard


def test_a_bundle_on_a_gpu_asks_for_one(tmp_path, ray, toy_jobs):
    made = ray(lost=99)
    with pytest.raises(UsageError, match="a job of ray was lost"):
        OnRay(Machine(on="ray")).train(toy_jobs(range(10)), Machine(device="cuda", out=tmp_path), ignore)
    assert [options["num_gpus"] for options in made.options] == [1, 1, 1]


@pytest.mark.parametrize(
    ("on", "address"), [("ray", "local"), ("ray:head:6379", "head:6379"), ("ray:ray://h:10001", "ray://h:10001")]
)
def test_no_cluster_is_used_but_the_one_that_was_named(ray, monkeypatch, on, address):
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:1234")
    made = ray()
    RayCluster(OnRay(Machine(on=on)).address)
    assert [how["address"] for how in made.inits] == [address]
    with pytest.raises(UsageError, match="connected to a Ray cluster already"):
        RayCluster(None)


@pytest.mark.parametrize("on", ["ray", "ray:head:6379"])
def test_one_cluster_serves_until_the_backend_is_closed(ray, machine, toy_jobs, on):
    made = ray()
    with closing(find_backend(Machine(on=on))) as found:
        for seed in range(3):
            assert found.device("auto") == torch.device("cpu")
            found.train(toy_jobs([seed]), machine, ignore)
        assert made.connected
    assert not made.connected
    assert len(made.inits) == (1 if on == "ray" else 2)  # of which one was to ask for its GPUs


@pytest.mark.parametrize(("gpus", "device"), [(0.0, "cpu"), (4.0, "cuda")])
def test_the_device_is_that_of_the_cluster(ray, gpus, device):
    made = ray(gpus=gpus)
    assert OnRay(Machine(on="ray:head:6379")).device("auto") == torch.device(device)
    assert OnRay(Machine(on="ray:head:6379")).device("cuda") == torch.device("cuda")
    assert not made.connected


@pytest.mark.parametrize(
    ("mode", "remedy"), [(None, "; if it asks for a token, set RAY_AUTH_MODE=token"), ("token", "")]
)
def test_a_cluster_that_refuses_is_told_in_one_line(ray, monkeypatch, mode, remedy):
    def refuse(**how):
        raise ConnectionError("failed to connect\nat all")

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setattr(ray(), "init", refuse)
    with pytest.raises(UsageError, match=rf"^on ray:head:6379 cannot be reached: failed to connect{remedy}$"):
        RayCluster("head:6379")


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "[::1]:{}"])
def test_nobody_is_waited_for_where_nobody_listens(monkeypatch, address):
    made = StandIn()
    monkeypatch.setitem(sys.modules, "ray", made)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and not listening
        address = address.format(bound.getsockname()[1])
        with pytest.raises(UsageError, match=r"cannot be reached: \[Errno [^;]*$"):
            RayCluster(address)
        with pytest.raises(UsageError, match=r"cannot be reached: \[Errno"):
            OnRay(Machine(on=f"ray:{address}")).check()
    assert not made.inits


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"ray needs Ray: pip install ray"):
        RayCluster(None)
