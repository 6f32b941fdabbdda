"""A dataset, a run that is tracked, and event files as TensorBoard itself reads them."""

from __future__ import annotations

import importlib
import json

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.data import images
from cler.engine.events import Message, Progress
from cler.runs.execute import execute
from cler.runs.jobs import make_jobs, restart
from cler.tracking import listening
from toys import Toy


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(images.DATASETS._entries, "toy", Toy())


@pytest.fixture(autouse=True)
def every_report(monkeypatch):
    """A point of every report of progress, for short runs to have some."""
    monkeypatch.setattr(listening, "POINT_SECONDS", 0.0)
    monkeypatch.setattr(importlib.import_module("cler.engine.train"), "REPORT_SECONDS", 0.0)


@pytest.fixture
def make_job(tmp_path):
    """Makes a run that takes a moment."""

    def make(out="runs", **changes):
        options = {"method": "er-ace", "dataset": "toy", "tasks": 2, "width": 2, "batch": 5, "replay_batch": 5}
        (job,) = make_jobs(make_settings(**options | {"buffer": 10} | changes), [0], tmp_path / out)
        return job

    return make


@pytest.fixture
def train(make_job):
    """Trains a run under trackers, in this process; gives its folder and what was said."""

    def train(track, *, out="runs", callbacks=(), start_over=False, **changes):
        job, said = make_job(out, **changes), []
        if start_over:
            restart([job])

        def hear(event):
            if isinstance(event, Message):
                said.append(event.text)

        machine = Machine(workers=1, device="cpu", track=track, checkpoint_every=1e-9)
        execute([job], machine, callbacks=[hear, *callbacks])
        return job.folder, said

    return train


class StoppedError(Exception):
    """Stands for Ctrl-C."""


@pytest.fixture
def stopped(train):
    """Trains a run until after the third step of its second task."""

    def stop(event):
        if isinstance(event, Progress) and (event.task, event.step) == (1, 3):
            raise StoppedError

    def stopped(track, **changes):
        with pytest.raises(StoppedError):
            train(track, callbacks=[stop], **changes)

    return stopped


@pytest.fixture
def facts():
    """What of a run's result is the same however long it took."""

    def facts(folder):
        result = json.loads((folder / "result.json").read_text("utf-8"))
        return {name: value for name, value in result.items() if name != "seconds"}

    return facts


@pytest.fixture
def points():
    """The scalars in the event files of a folder, a list of steps and values by name, in the order of writing."""

    def points(folder):
        found = {}
        for path in sorted(folder.glob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime_ns):
            for event in EventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    if value.metadata.plugin_data.plugin_name in ("", "scalars") and value.tensor.float_val:
                        found.setdefault(value.tag, []).append((event.step, value.tensor.float_val[0]))
        return found

    return points
