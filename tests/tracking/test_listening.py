"""Trackers that fail, and how they are asked for."""

import itertools
import json
import threading
from typing import ClassVar

import pytest

import cler
from cler.config.machine import Machine
from cler.engine.events import Message
from cler.errors import UsageError
from cler.runs import record
from cler.runs.backends.wire import plain_machine, read_machine
from cler.runs.trainers import train_bundles
from cler.tracking import TRACKERS, Tracker, listening


class Fragile(Tracker):
    """Keeps what it is told, and fails where it is told to."""

    name = "fragile"
    package = "json"
    where, error, said = "", RuntimeError("out of order"), []

    def __init__(self, run):
        self.said.append(("begin", run))
        self.fail("begin")

    def log(self, step, figures):
        self.said.append(("log", step))
        self.fail("log", step == 12)

    def end(self, step, metrics):
        self.said.append(("end", metrics))
        self.fail("end", metrics is not None)

    def fail(self, where, now=True):
        if self.where == where and now:
            raise self.error


class Plain(Tracker):
    """Has nothing to begin."""

    name = "plain"
    said: ClassVar[list] = []

    def log(self, step, figures):
        self.said.append((self.run.seed, step))

    def end(self, step, metrics):
        self.said.append((self.run.seed, "end"))


def test_one_that_has_nothing_to_begin_knows_its_run(train, monkeypatch):
    monkeypatch.setattr(TRACKERS, "_entries", dict(TRACKERS))
    monkeypatch.setattr(Plain, "said", [])
    cler.register(Plain)
    _, said = train("plain")
    assert said == []
    assert Plain.said[0][0] == Plain.said[-1][0]
    assert Plain.said[-1][1] == "end"


@pytest.fixture
def fragile(monkeypatch):
    monkeypatch.setitem(TRACKERS._entries, "fragile", Fragile)
    for name in ("said", "where", "error"):
        monkeypatch.setattr(Fragile, name, [] if name == "said" else getattr(Fragile, name))
    return Fragile


def release(released):
    """Let trackers that hang end, so that they say nothing in the tests that follow."""
    released.set()
    for thread in threading.enumerate():
        if thread.name == "tracker fragile":
            thread.join()


@pytest.fixture
def plain(train, facts):
    return facts(train(None, out="plain")[0])


@pytest.mark.parametrize(
    ("where", "error"), [("begin", SystemExit(3)), ("log", RuntimeError("out of\norder")), ("end", KeyboardInterrupt())]
)
def test_one_that_fails_is_left_out_and_changes_nothing(
    where, error, train, fragile, plain, facts, points, monkeypatch
):
    monkeypatch.setattr(Fragile, "where", where)
    monkeypatch.setattr(Fragile, "error", error)
    folder, said = train("fragile+tensorboard")
    why = f"{type(error).__name__}: {error}".replace("\n", " ")
    assert said == [f"fragile failed and records nothing more; runs are not affected: {why}"]
    assert facts(folder) == plain
    assert [step for step, _ in points(folder)["loss/stream"]] == list(range(1, 17))


def test_one_that_fails_is_told_nothing_more(train, fragile):
    fragile.where = "log"
    train("fragile")
    assert ("log", 12) in Fragile.said
    assert ("log", 13) not in Fragile.said
    assert Fragile.said[-1] == ("end", None)


@pytest.mark.parametrize("where", ["begin", "log", "end"])
def test_one_that_hangs_is_not_waited_for(where, train, fragile, plain, facts, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(Fragile, "fail", lambda self, at, now=True: released.wait() if at == where and now else None)
    monkeypatch.setattr(listening, "END_SECONDS", 0.01)
    folder, said = train("fragile")
    release(released)
    assert said == ["fragile failed and records nothing more; runs are not affected: it did not end within 0 s"]
    assert facts(folder) == plain


def test_one_that_falls_behind_is_left_out(train, fragile, plain, facts, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(Fragile, "fail", lambda self, at, now=True: released.wait() if at == "begin" else None)
    monkeypatch.setattr(listening, "MOST_WAITING", 3)
    folder, said = train("fragile")
    release(released)
    assert said == ["fragile failed and records nothing more; runs are not affected: it is 3 events behind"]
    assert facts(folder) == plain


def test_what_a_tracker_is_told(train, fragile):
    folder, _ = train("fragile", evaluate_every=3)
    (_, run), *logged, (_, metrics) = Fragile.said
    assert (run.label, run.group, run.folder, run.seed) == ("er-ace buffer 10, seed 0", folder.parent.name, folder, 0)
    assert run.settings == json.loads((folder / "settings.json").read_text("utf-8"))["settings"]
    assert not run.resumed
    assert sorted(step for _, step in logged) == sorted([*range(1, 17), 3, 6, 8, 11, 14, 16])
    assert metrics["accuracy"].keys() == {"class_il", "task_il"}
    assert metrics["average_anytime_accuracy"]["class_il"] > 0


def test_a_run_that_diverges_has_no_metrics(train, fragile):
    train("fragile", lr=1e20)
    assert Fragile.said[-1] == ("end", None)


def test_a_run_that_another_process_has_taken_over_is_not_followed_any_more(train, fragile, monkeypatch):
    asked = itertools.count()
    monkeypatch.setattr(record, "still_ours", lambda folder: next(asked) < 5)
    with pytest.raises(UsageError, match="was taken over by another process"):
        train("fragile")
    assert Fragile.said[0][0] == "begin"
    assert ("end", None) not in Fragile.said


def test_a_damaged_memory_starts_over(train, stopped, fragile):
    stopped("fragile")
    (memory,) = {run.folder / "tracking-fragile.json" for kind, run in Fragile.said if kind == "begin"}
    memory.write_text('{"id": 3, "last": []}')
    train("fragile")
    first, second = (run for kind, run in Fragile.said if kind == "begin")
    assert not second.resumed
    assert second.id != first.id


@pytest.mark.parametrize(
    ("track", "says"),
    [
        ("tensorbord", "unknown tracker 'tensorbord' .*did you mean 'tensorboard'"),
        ("tensorboard+tensorboard", "track must name different trackers, not 'tensorboard.tensorboard'"),
        ("tensorboard, wandb", "track must join several trackers by '.', as tensorboard.wandb, not by a comma"),
        ("", "unknown tracker ''"),
        (3, "track must be the name of a tracker, or several as tensorboard.wandb, not 3"),
    ],
)
def test_what_cannot_be_a_tracker(track, says):
    with pytest.raises(UsageError, match=says):
        Machine(track=track)


def test_a_package_that_is_missing_is_named_before_anything_is_done(cler_here, fragile, monkeypatch, tmp_path):
    monkeypatch.setattr(Fragile, "package", "no_such_package")
    answer = cler_here("run", "er-ace", "--dataset", "toy", "--track", "tensorboard+fragile", "--out", "there")
    assert answer == (2, "", "cler: --track fragile needs the package no_such_package: pip install no_such_package\n")
    assert not (tmp_path / "there").exists()


def test_one_of_your_own_is_made_known_as_other_parts_are_and_needs_no_package(fragile):
    mine = type("Mine", (Tracker,), {"name": "mine"})
    try:
        assert cler.register(mine) is mine
        assert Machine(track="fragile+mine").track == "fragile+mine"
    finally:
        TRACKERS._entries.pop("mine", None)
    with pytest.raises(UsageError, match="a tracker cannot be named 'none'"):
        cler.register(type("Mine", (Tracker,), {"name": "none"}))


def test_a_settings_file_may_name_trackers_and_the_command_line_wins(cler_here, fragile, tmp_path):
    (tmp_path / "settings.toml").write_text("track = 'fragile'\ntasks = 2\nwidth = 2\nworkers = 1\ndevice = 'cpu'\n")
    run = ("run", "er-ace", "--dataset", "toy", "--config", "settings.toml")
    assert cler_here(*run, "--track", "none", "--out", "without").code == 0
    assert Fragile.said == []
    assert cler_here(*run, "--out", "with").code == 0
    assert Fragile.said[-1][0] == "end"


@pytest.mark.parametrize("command", ["run", "reproduce", "tune"])
def test_commands_that_train_can_be_tracked(command, cler_here):
    assert "--track" in cler_here(command, "--help").out


def test_from_python(fragile, tmp_path):
    runs = cler.train(
        "er-ace", dataset="toy", tasks=2, width=2, device="cpu", workers=1, track="fragile", out=tmp_path, verbose=False
    )
    assert Fragile.said[-1][1]["accuracy"]["class_il"] == pytest.approx(runs.metric("accuracy")[0])


def test_one_that_is_not_known_where_a_run_is_trained_stops_no_training(make_job, plain, facts):
    """As on another machine, which is told how to train in plain values."""
    job, heard = make_job(), []
    machine = read_machine(plain_machine(Machine(device="cpu")) | {"track": "elsewhere"})
    train_bundles([[job]], machine, heard.append)
    assert [event.text for event in heard if isinstance(event, Message)] == [
        "elsewhere failed and records nothing more; runs are not affected: UsageError: unknown tracker 'elsewhere' "
        "(known: tensorboard, wandb)"
    ]
    assert facts(job.folder) == plain
