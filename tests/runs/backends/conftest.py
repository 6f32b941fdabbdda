"""A cluster in this process: what is submitted is done when the driver asks for the states."""

import pytest

from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.runs.backends import driver
from cler.runs.backends.attempts import train_attempt
from cler.runs.jobs import make_jobs


class Here:
    """Makes each attempt as its turn comes, or does to it what `fate` says, by its number."""

    name = "here"
    poll = 0.0
    words = ""

    def __init__(self, fate=None, *, lasting=False):
        self.fate, self.lasting, self.silence = fate or {}, lasting, "nobody is there"
        self.reasons = {}
        self.submitted, self.waiting, self.listed, self.cancelled, self.avoided = [], [], {}, [], []

    def submit(self, attempt, cores, avoid):
        self.submitted.append(attempt)
        self.waiting.append((len(self.submitted), attempt))
        self.listed[attempt.name] = "waiting"
        self.avoided.append(list(avoid))

    def states(self):
        if self.waiting and (turn := self.waiting.pop(0)):
            number, attempt = turn
            del self.listed[attempt.name]
            self.fate.get(number, lambda cluster, folder: train_attempt(folder, signals=[]))(self, attempt)
        return dict(self.listed)

    def cancel(self, names):
        self.cancelled += names
        for name in names:
            self.listed.pop(name, None)

    def last_words(self, attempt):
        return self.words

    def ending(self, names):
        return "nothing ends them"


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(driver, "LOOK", 0.0)
    return Here


@pytest.fixture
def machine(tmp_path):
    return Machine(device="cpu", out=tmp_path)


@pytest.fixture
def toy_jobs(tmp_path):
    """Jobs that take a moment."""

    def make(seeds=(0,), out=tmp_path, **changes):
        options = {"method": "er", "dataset": "toy", "tasks": 2, "width": 2, "batch": 4, "replay_batch": 4, "buffer": 8}
        return make_jobs(make_settings(**options | changes), seeds, out)

    return make
