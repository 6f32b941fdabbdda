import dataclasses
import json
import sys
from pathlib import Path

import pytest

import toys
from cler.config.machine import Machine
from cler.config.registry import METHODS, import_code
from cler.engine import RunName
from cler.engine.events import Event, Progress
from cler.files import HOST, read_json, write_json
from cler.runs.backends.attempts import ATTEMPTS, EVENTS, Attempt, _jobs, find_attempts, train_attempt
from cler.runs.backends.wire import Begun, Ended, line_of, plain_job, plain_machine, read_job, read_line, read_machine
from cler.runs.custom import code_of, only_here
from cler.runs.folders import ATTEMPT
from cler.tracking import TRACKERS, Tracker

NAMES = [RunName("er, seed 0", "er", 0, Path("a")), RunName("er, seed 1", "er", 1, Path("b"))]
VALUES = {
    "run": NAMES[1], "runs": (NAMES[1], NAMES[0]), "task": 1, "tasks": 5, "step": 3, "steps": 9, "done": 0.25,
    "steps_per_second": 12.5, "losses": {"stream": 0.1}, "sums": ({"stream": (0.5, 5)}, {}), "complete": True,
    "text": "Grüße\nan alle", "why": "“loss” is not finite", "how": "done", "host": "node-1",
    "dataset": "folder:photos", "decoded": 64, "images": 200,
    "schedule": (3, 4), "settings": {"lr": 0.1, "weight_decay": None}, "metrics": {"accuracy": {"class_il": 1.5}},
}  # fmt: skip


def events():
    """One of each kind that there is."""
    for kind in (*Event.__subclasses__(), Begun, Ended):
        values = {field.name: VALUES.get(field.name) for field in dataclasses.fields(kind)}
        if "accuracy" in values:
            rows = {"class_il": (50.0, 60.0), "task_il": (70.0,)}
            values["accuracy"] = rows if kind.__name__.startswith("Evaluated") else 31.25
        yield kind(**values)


@pytest.mark.parametrize("event", [*events()], ids=lambda event: type(event).__name__)
def test_every_event_arrives_as_it_was_sent(event):
    line = line_of(event, NAMES)
    assert line.count("\n") == 1
    assert read_line(line, NAMES) == event


@pytest.mark.parametrize(
    "line", ["", "{", '["Progress", {}]', '["Nothing", {"run": 0}]', "[1, 2]", "null", '["Path", {}]', "[" * 100_000]
)
def test_a_line_that_is_not_whole_is_nothing(line):
    assert not isinstance(read_line(line, NAMES), Event)


@pytest.mark.parametrize("name", ["backend", "tries", "jobs"])
@pytest.mark.parametrize("value", [None, "x", -1, [{}], {"folder": 3}])
def test_a_description_that_is_not_ours_is_no_attempt(tmp_path, machine, toy_jobs, name, value):
    (job,) = toy_jobs()
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", [job], machine, "here", 0)
    write_json(attempt.folder / ATTEMPT, read_json(attempt.folder / ATTEMPT) | {name: value})
    found = find_attempts(tmp_path / ATTEMPTS, {job.folder.absolute(): job}, machine, "here")
    assert bool(found) == (name == "tries" and value == -1)


def test_attempts_are_found_that_the_same_backend_makes_at_some_of_the_runs(tmp_path, machine, toy_jobs):
    """With all of their runs, those included that nobody asked for."""
    wanted, beside, unwanted = toy_jobs([0, 1, 2])
    parent = tmp_path / ATTEMPTS / "driver"
    ours = Attempt.make(parent, [beside, wanted], machine, "here", 2)
    Attempt.make(parent, [wanted], machine, "there", 0)
    Attempt.make(parent, [unwanted], machine, "here", 0)
    found = find_attempts(tmp_path / ATTEMPTS, {wanted.folder.absolute(): wanted}, machine, "here")
    assert list(found) == [parent]
    (attempt,) = found[parent]
    assert (attempt.folder, attempt.tries) == (ours.folder, 2)
    assert attempt.jobs[0].name == beside.name
    assert attempt.jobs[1] is wanted


def test_who_makes_an_attempt_again_is_heard_though_the_one_before_never_finished_its_line(tmp_path, machine, toy_jobs):
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", toy_jobs(), machine, "here", 0)
    (attempt.folder / EVENTS).write_text('["Progress", {"ru')
    train_attempt(attempt.folder, signals=[])
    assert next(attempt.news()) == Begun(HOST)
    assert attempt.host == HOST


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Progress", {"done": "x"}),
        ("Progress", {"step": 10**30}),
        ("Progress", {"step": True}),
        ("Progress", {"losses": {"stream": "x"}}),
        ("Progress", {"losses": 3}),
        ("Progress", {"sums": [{"stream": [1.0]}]}),
        ("Progress", {"accuracy": "31"}),
        ("Message", {"text": 3}),
        ("Ended", {"how": "well"}),
        ("Begun", {"host": ["node"]}),
        ("Evaluated", {"accuracy": [3]}),
    ],
)
def test_a_line_with_other_values_than_the_event_has_is_nothing(kind, changes):
    (event,) = (each for each in events() if type(each).__name__ == kind)
    name, values = json.loads(line_of(event, NAMES))
    assert read_line(json.dumps([name, values]), NAMES) == event
    assert read_line(json.dumps([name, values | changes]), NAMES) is None


def test_a_line_that_is_too_deep_is_nothing():
    assert read_line("[" * 100_000, NAMES) is None


def test_a_line_that_was_never_finished_hides_no_other(tmp_path, machine, toy_jobs):
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", toy_jobs([0, 1]), machine, "here", 0)
    progress = next(event for event in events() if isinstance(event, Progress))
    names = [job.name for job in attempt.jobs]
    progress = dataclasses.replace(progress, runs=tuple(names))
    line = line_of(progress, names)
    with (attempt.folder / "events.jsonl").open("a") as file:
        file.write(line + line[:20])
        file.flush()
        assert list(attempt.news()) == [progress]
        file.write("\n" + line)
        file.flush()
        assert list(attempt.news()) == [progress]
    assert list(attempt.news()) == []


@pytest.mark.parametrize("method", [*METHODS])
def test_every_job_arrives_as_it_was_sent(toy_jobs, method):
    replays = METHODS[method].replays
    changes = {} if replays else dict.fromkeys(("buffer", "replay_batch"))
    (job,) = toy_jobs([3], method=method, batch=8, **changes)
    job = dataclasses.replace(job, tuned={"names": ["lr"]}, data="ab", until_task=1)
    assert read_job(plain_job(job)) == job
    assert read_job(plain_job(dataclasses.replace(job, unaided=job))).unaided == job


def test_a_machine_arrives_with_all_that_matters_there():
    kept = {"checkpoint_every": 7.0, "save_network": True, "save_buffer_images": 4, "track": "tensorboard"}
    machine = Machine(device="cpu", data_dir=Path("there").absolute(), at_once=3, images="host", graph=False, **kept)
    assert read_machine(json.loads(json.dumps(plain_machine(machine)))) == machine
    own = dataclasses.replace(machine, data_dir=None)
    of_the_driver = dataclasses.replace(own, workers=2, out=Path("here"), give_up_after=1.0)
    assert read_machine(plain_machine(of_the_driver)) == own


def test_a_tracker_of_a_user_is_imported_on_the_other_machine(toy_jobs, monkeypatch):
    own = type("Own", (Tracker,), {"__module__": "toys"})
    monkeypatch.setitem(TRACKERS._entries, "own", own)
    (job,) = toy_jobs()
    assert "toys" in code_of(job, Machine(track="tensorboard+own")).modules
    own.__module__ = "__main__"
    assert only_here([job], Machine(track="own")) == ["the tracker own"]
    assert only_here([job], Machine()) == []


def test_code_of_a_user_is_imported_on_the_other_machine(tmp_path, machine, toy_jobs, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "elsewhere_mine.py").write_text(
        "from cler.methods.base import register\nfrom cler.methods.er import ExperienceReplay\n\n\n"
        "@register\nclass Mine(ExperienceReplay):\n    name = 'elsewhere-mine'\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))
    import_code(str(folder / "elsewhere_mine.py"))
    (job,) = toy_jobs(method="elsewhere-mine")
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", [job], machine, "here", 0)
    about = read_json(attempt.folder / ATTEMPT)
    assert about["path"] == [str(folder.resolve()), str(Path(toys.__file__).parent)]  # not what is installed: torch
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(folder.resolve())])
    del sys.modules["elsewhere_mine"], METHODS._entries["elsewhere-mine"]
    monkeypatch.chdir(folder)
    assert [each.settings.method for each in _jobs(about | {"folder": str(tmp_path)})] == ["elsewhere-mine"]
    assert Path.cwd() == tmp_path  # relative paths are from where the driver is
    assert {str(folder.resolve()), str(Path(toys.__file__).parent)} < set(sys.path)
    del sys.modules["elsewhere_mine"]
