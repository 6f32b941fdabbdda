import json
import os
from pathlib import Path

import pytest

from cler.errors import UsageError
from cler.files import HOST
from cler.runs import results
from cler.runs.folders import EXPIRY, OWNER, in_use
from cler.runs.logs import LOG, log_line
from cler.runs.results import make_result
from cler.runs.scan import Scan

SETTINGS = {"method": "er-ace", "regularizer": "none", "dataset": "toy", "tasks": 4, "buffer": 50, "epochs": 1}
ROWS = [[60.0], [50.0, 60.0], [40.0] * 3, [30.0] * 4]


def finish(folder, seed=0, tasks=4, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    accuracy = dict.fromkeys(("class_il", "task_il"), ROWS[:tasks])
    result = make_result(SETTINGS, seed, accuracy, 1.0, 1, {}, complete=tasks == 4)
    (folder / "result.json").write_text(json.dumps(result | changes))


def begin(folder, seed=0, settings=SETTINGS):
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"settings": settings, "seed": seed}))


def work_on(folder, host=HOST, process=None):
    (folder / OWNER).write_text(json.dumps({"host": host, "process": process or os.getpid(), "token": "x"}))


@pytest.fixture
def reads(monkeypatch):
    """The files that are read, in order."""
    read, found = results.read_result, []
    monkeypatch.setattr(results, "read_result", lambda path: found.append(path.parent.name) or read(path))
    return found


def test_finished_runs_failed_ones_and_those_under_way(tmp_path):
    finish(tmp_path / "a" / "one")
    finish(tmp_path / "a" / "failed", 1, tasks=2, failure="diverged")
    begin(tmp_path / "b" / "new", 2)
    begin(tmp_path / "b" / "half", 3)
    finish(tmp_path / "b" / "half", 3, tasks=2)
    for task in range(2):
        log_line(tmp_path / "b" / "half", {"event": "evaluated", "task": task, "class_il": ROWS[task]})
    line = {"event": "progress", "task": 2, "step": 3, "steps": 6, "losses": {"stream": 1.5}}
    log_line(tmp_path / "b" / "half", line)
    work_on(tmp_path / "b" / "half")
    scan = Scan([tmp_path / "a", tmp_path / "b"])
    assert scan.update()
    assert sorted((run.seed, run.failure) for run in scan.results) == [(0, None), (1, "diverged")]
    found = {one.seed: (one.task, one.tasks, one.done, one.log.accuracy, one.running) for one in scan.unfinished}
    assert found == {2: (1, 4, 0.0, None, False), 3: (3, 4, 2.5 / 4, 55.0, True)}
    assert scan.complaints == []


def test_what_is_learned_at_once_is_one_task(tmp_path):
    begin(tmp_path / "x", settings=SETTINGS | {"method": "joint", "buffer": 0})
    log_line(tmp_path / "x", {"event": "progress", "task": 0, "step": 3, "steps": 4, "losses": {}})
    scan = Scan([tmp_path])
    scan.update()
    assert [(one.task, one.tasks, one.done) for one in scan.unfinished] == [(1, 1, 0.75)]


def test_a_file_is_read_again_only_where_it_has_changed(tmp_path, reads):
    for seed in range(3):
        finish(tmp_path / f"seed-{seed}", seed)
    scan = Scan([tmp_path])
    assert scan.update()
    assert sorted(reads) == ["seed-0", "seed-1", "seed-2"]
    first = scan.results
    assert not scan.update()
    assert len(reads) == 3
    assert all(one is other for one, other in zip(first, scan.results, strict=True))
    finish(tmp_path / "seed-1", 1, seconds=77.125)
    assert scan.update()
    assert reads[3:] == ["seed-1"]
    assert sorted(run.seconds for run in scan.results) == [1.0, 1.0, 77.125]


def test_anything_new_is_a_change(tmp_path):
    scan = Scan([tmp_path])
    assert not scan.update()
    begin(tmp_path / "x")
    assert scan.update()
    work_on(tmp_path / "x")
    assert scan.update()
    log_line(tmp_path / "x", {"event": "progress", "task": 0, "step": 1, "losses": {"stream": 1.0}})
    assert scan.update()
    (tmp_path / "x" / OWNER).unlink()
    assert scan.update()
    finish(tmp_path / "x")
    assert scan.update()
    (tmp_path / "x" / "buffer.png").write_bytes(b"no picture")
    assert scan.update()
    assert scan.attachments[tmp_path / "x"].picture == tmp_path / "x" / "buffer.png"
    for file in (tmp_path / "x").iterdir():
        file.unlink()
    assert scan.update()
    assert (scan.results, scan.unfinished, scan.attachments) == ([], [], {})
    assert not scan.update()


def test_a_folder_that_is_not_there_is_refused_or_waited_for(tmp_path):
    scan = Scan([tmp_path / "later"])
    with pytest.raises(UsageError, match="no such file or folder"):
        scan.update()
    assert not scan.update(wait=True)
    begin(tmp_path / "later" / "x")
    assert scan.update(wait=True)
    assert len(scan.unfinished) == 1


def test_a_result_under_another_name_can_be_given(tmp_path):
    finish(tmp_path / "x")
    other = (tmp_path / "x" / "result.json").rename(tmp_path / "x" / "old.json")
    scan = Scan([other])
    scan.update()
    assert [run.path for run in scan.results] == [other]


@pytest.mark.parametrize(
    "content", ["", "{}", '{"settings": {}, "seed": 0}', json.dumps({"settings": SETTINGS | {"tasks": "x"}, "seed": 0})]
)
def test_settings_that_are_not_of_a_run_are_none_of_our_business(tmp_path, content):
    (tmp_path / "settings.json").write_text(content)
    scan = Scan([tmp_path])
    scan.update()
    assert (scan.unfinished, scan.complaints) == ([], [])


def test_a_broken_result_is_told_of_each_time(tmp_path):
    (tmp_path / "result.json").write_text("{")
    scan = Scan([tmp_path])
    for _ in range(2):
        scan.update()
        assert len(scan.complaints) == 1
        assert "is not JSON" in scan.complaints[0]


def test_whether_a_folder_is_in_use(tmp_path):
    assert not in_use(tmp_path)
    work_on(tmp_path)
    assert in_use(tmp_path)
    work_on(tmp_path, process=999_999_999)
    assert not in_use(tmp_path)
    work_on(tmp_path, host="elsewhere")
    assert in_use(tmp_path)
    old = (tmp_path / OWNER).stat().st_mtime - 2 * EXPIRY
    os.utime(tmp_path / OWNER, (old, old))
    assert not in_use(tmp_path)


def test_logs_of_committed_runs_are_read():
    folder = next(Path(__file__).parents[2].joinpath("results", "frontier").rglob(LOG)).parent
    scan = Scan([folder])
    scan.update()
    (beside,) = scan.attachments.values()
    assert beside.log.task == 10
    assert set(beside.log.losses) >= {"stream", "replay"}
