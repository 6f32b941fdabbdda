import multiprocessing
import os
import signal
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import toys
from cler import data
from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.engine.events import Message, Progress, ignore
from cler.errors import UsageError
from cler.files import read_json
from cler.runs import workers
from cler.runs.jobs import make_jobs, remaining

CPU = torch.device("cpu")


def kill_one(event):
    """Kill one of the workers as soon as something is heard of them."""
    if isinstance(event, Progress):
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)


@pytest.mark.usefixtures("known_to_new_processes")
def test_a_worker_that_is_killed_ends_the_others_and_the_command_with_one_line(tmp_path):
    settings = make_settings(method="finetune", dataset="toy", tasks=2, width=2, batch=5, epochs=1000)
    jobs = make_jobs(settings, [0, 1], tmp_path)
    for job in jobs:
        job.folder.mkdir(parents=True)
    with pytest.raises(UsageError, match="a worker process was killed"):
        workers.Workers().train([[job] for job in jobs], Machine(device="cpu"), [None, None], kill_one)
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("known_to_new_processes")
def test_a_worker_starts_without_hearing_ctrl_c_sees_its_gpu_alone_and_trains_its_bundle(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,7")
    settings = make_settings(method="finetune", dataset="toy", tasks=2, width=2, batch=5)
    jobs = [replace(job, probe=toys.visible_gpus) for job in make_jobs(settings, [0, 1], tmp_path)]
    with closing(workers.Workers()) as starting:
        starting._start("7")
        (worker,) = multiprocessing.active_children()
        os.kill(worker.pid, signal.SIGINT)
        starting.train([jobs], Machine(device="cpu", at_once=2), ["7"], ignore)
        assert multiprocessing.active_children() == [worker]
    assert [read_json(job.finding(1)) for job in jobs] == [{"gpus": "7"}] * 2
    assert [read_json(job.folder / "result.json")["at_once"] for job in jobs] == [2, 2]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,7"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.usefixtures("known_to_new_processes")
def test_workers_stay_between_two_calls_others_join_them_and_one_that_went_is_told_of_in_one_line(tmp_path):
    settings = make_settings(method="finetune", dataset="toy", tasks=2, width=2, batch=5)
    jobs = make_jobs(settings, range(5), tmp_path)
    with closing(workers.Workers()) as staying:
        staying.train([[jobs[0]]], Machine(device="cpu"), [None], ignore)
        (first,) = multiprocessing.active_children()
        staying.train([[job] for job in jobs[1:4]], Machine(device="cpu"), [None, None], ignore)
        assert first in multiprocessing.active_children()
        assert len(multiprocessing.active_children()) == 2
        first.kill()
        first.join()
        with pytest.raises(UsageError, match="a worker process was killed"):
            staying.train([[jobs[4]]], Machine(device="cpu"), [None], ignore)
        staying.train([[jobs[4]]], Machine(device="cpu"), [None], ignore)
    assert not multiprocessing.active_children()
    assert not remaining(jobs)


class Ear:
    """An end of a pipe that is not a `Connection`, as on Windows."""

    def __init__(self, end):
        self.fileno, self.send, self.recv = end.fileno, end.send, end.recv


def test_workers_are_heard_whatever_kind_their_pipes_are_of():
    ear, mouth = multiprocessing.Pipe()
    with ear, mouth:
        heard = []
        for word in (Message("hello"), workers.Request("done")):
            mouth.send(word)
        workers._listen([Ear(ear)], Machine(device="cpu"), iter([]), heard.append)
        assert mouth.recv() == Machine(device="cpu")
    assert heard == [Message("hello")]


def test_a_worker_keeps_its_images_between_two_calls(tmp_path, monkeypatch):
    jobs = make_jobs(make_settings(method="finetune", dataset="toy", tasks=2, width=2, batch=5), range(2), tmp_path)
    heard, loads, load_for = [], [], data.load_for
    monkeypatch.setattr(data, "load_for", lambda *given: loads.append(given) or load_for(*given))
    monkeypatch.setattr(workers.signal, "signal", lambda *_: signal.SIG_DFL)
    told = [Machine(device="cpu"), ([], jobs[:1]), None, Machine(device="cpu"), ([], jobs[1:]), None]

    def recv():
        if not told:
            raise EOFError
        return told.pop(0)

    workers._work(SimpleNamespace(recv=recv, send=heard.append))
    assert heard.count(workers.Request("done")) == 2
    assert len(loads) == 1
    assert not remaining(jobs)
