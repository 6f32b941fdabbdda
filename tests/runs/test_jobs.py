"""Which finished runs count: found by their settings, whatever their folders are called, and by what made them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cler.config.making import make_settings
from cler.engine import checkpoint
from cler.engine.events import Elsewhere
from cler.files import read_json, write_json
from cler.methods import METHODS
from cler.methods.er_ace import ErAce
from cler.paper import settings as paper
from cler.runs.jobs import (
    Index,
    claimed,
    finished,
    make_jobs,
    outdated,
    redo,
    remaining,
    restart,
    same_run,
    to_do_and_ended,
)
from cler.runs.results import find_results, make_result

RESULTS = Path(__file__).parent.parent.parent / "results"
ROWS = {"class_il": [[80.0], [20.0, 30.0]], "task_il": [[80.0], [90.0, 70.0]]}


def settings_of(**changes):
    return make_settings(**{"method": "er-ace", "dataset": "cifar10-sample", "tasks": 2, "buffer": 50} | changes)


def end(job, **changes):
    """Leave what a finished run leaves."""
    result = make_result(job.settings.to_dict(), job.seed, ROWS, 1.0, 10, {}, **changes)
    write_json(job.folder / "result.json", result)
    return job


def test_a_run_is_found_whatever_its_folder_is_called(tmp_path):
    first, second = (end(job) for job in make_jobs(settings_of(), [0, 1], tmp_path))
    first.folder.rename(tmp_path / "first")
    (tmp_path / "deep").mkdir()
    second.folder.parent.rename(tmp_path / "deep" / "elsewhere")
    jobs = make_jobs(settings_of(), [0, 1, 2], tmp_path)
    assert [job.folder for job in jobs] == [tmp_path / "first", tmp_path / "deep/elsewhere/seed-1",
                                            second.folder.with_name("seed-2")]  # fmt: skip
    assert remaining(jobs) == jobs[2:]


def test_a_corrected_paper_setting_changes_nothing(tmp_path, monkeypatch):
    """The names of folders have what differs from the paper's settings; runs are known by all of theirs."""
    chosen = {"dataset": "cifar100", "tasks": None, "buffer": 500}
    settings = settings_of(**chosen)
    (job,) = make_jobs(settings, [0], tmp_path)
    write_json(job.folder / "settings.json", {"settings": settings.to_dict(), "seed": 0})
    before = paper.defaults
    monkeypatch.setattr(paper, "defaults", lambda *chosen: before(*chosen) | {"lr": 0.5})
    (again,) = make_jobs(settings, [0], tmp_path)
    assert again.folder == job.folder
    (new,) = make_jobs(settings_of(**chosen), [0], tmp_path)
    assert new.settings.lr == 0.5
    assert new.folder == job.folder.parent.with_name(f"{job.folder.parent.name}_2") / "seed-0"
    write_json(new.folder / "settings.json", {"settings": new.settings.to_dict(), "seed": 0})
    assert make_jobs(new.settings, [0], tmp_path)[0].folder == new.folder


def test_new_runs_whose_folders_would_have_the_same_name_get_one_each(tmp_path):
    index = Index(tmp_path)
    settings = [settings_of(dataset=f"folder:{path}", tasks=None) for path in ("a/b", "a-b")]
    for _ in range(2):
        folders = [make_jobs(one, [0], tmp_path, index=index)[0].folder for one in settings]
        assert [folder.parent.name for folder in folders] == ["er-ace_folder-a-b_m50", "er-ace_folder-a-b_m50_2"]


def test_of_two_folders_with_the_same_run_that_where_it_ended_counts(tmp_path):
    (job,) = make_jobs(settings_of(), [0], tmp_path)
    write_json(job.folder / "settings.json", {"settings": job.settings.to_dict(), "seed": 0})
    ended = end(replace(job, folder=tmp_path / "copy"))
    assert make_jobs(settings_of(), [0], tmp_path) == [ended]


def test_files_that_tell_nothing_are_nobody_s(tmp_path):
    for number, text in enumerate(("{", "[]", "{}", '{"settings": 3, "seed": 0}', '{"settings": {}, "seed": "x"}')):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "result.json").write_text(text)
    (job,) = make_jobs(settings_of(), [0], tmp_path)
    assert job.folder == tmp_path / "er-ace_cifar10-sample_m50_tasks-2" / "seed-0"


def test_a_run_whose_result_cannot_be_read_is_still_found_by_its_settings(tmp_path):
    (job,) = make_jobs(settings_of(), [0], tmp_path)
    job = replace(job, folder=tmp_path / "other")
    write_json(job.folder / "settings.json", {"settings": job.settings.to_dict(), "seed": 0})
    (job.folder / "result.json").write_text("{")
    assert make_jobs(settings_of(), [0], tmp_path) == [job]


def test_what_a_file_lacks_is_what_its_absence_meant(tmp_path):
    settings = settings_of().to_dict()
    without = {name: value for name, value in settings.items() if name != "compile"}
    assert same_run(without, settings | {"compile": False})
    assert not same_run(without, settings | {"compile": True})
    assert not same_run(None, settings)
    write_json(tmp_path / "run" / "settings.json", {"settings": settings | {"compile": False}, "seed": 0})
    assert make_jobs(settings_of(), [0], tmp_path)[0].folder == tmp_path / "run"


@pytest.mark.parametrize(
    ("other", "data", "same"),
    [
        ({}, (None, None), True),
        ({"dataset": "folder:b"}, ("1a", "1a"), True),
        ({"dataset": "folder:b", "size": 16}, ("1a", "1a"), True),  # the pixels are as they are, however they are read
        ({"dataset": "folder:b"}, ("1a", "2b"), False),
        ({"dataset": "folder:b"}, (None, None), False),
        ({"dataset": "folder:b"}, ("1a", None), False),
        ({"dataset": "folder:b"}, (None, "1a"), False),
        ({"dataset": "folder:b", "lr": 0.5}, ("1a", "1a"), False),
        ({"dataset": "cifar10-sample", "size": None}, ("1a", "1a"), False),
    ],
)
def test_runs_on_the_same_pixels_at_other_paths_are_the_same(other, data, same):
    first, second = (settings_of(**({"dataset": "folder:a", "size": 12} | each)).to_dict() for each in ({}, other))
    assert same_run(first, second, data) == same
    assert same_run(second, first, data[::-1]) == same


def test_what_is_claimed_says_which_run_it_is_and_what_has_ended_is_not_done_again(tmp_path):
    job, other = make_jobs(settings_of(), [0, 1], tmp_path)
    heard, job = [], replace(job, data="1a")
    with claimed(job, heard.append) as todo:
        assert todo
        about = {"settings": job.settings.to_dict(), "seed": 0, "data": "1a"}
        assert read_json(job.folder / "settings.json") == about
        with claimed(job, heard.append) as again:
            assert not again
    with claimed(other, heard.append):
        assert read_json(other.folder / "settings.json") == {"settings": about["settings"], "seed": 1}
    assert heard == [Elsewhere(job.name, complete=False)]
    end(job)
    assert to_do_and_ended([job, other]) == ([other], [job])
    with claimed(job, heard.append) as todo:
        assert not todo
    assert heard[1:] == [Elsewhere(job.name, complete=True)]


def test_a_run_that_stops_after_some_tasks_has_ended_when_it_got_as_far(tmp_path):
    (job,) = make_jobs(settings_of(tasks=5), [0], tmp_path)
    end(job, complete=False)
    assert [finished(replace(job, until_task=tasks)) for tasks in (None, 1, 2, 3)] == [False, True, True, False]


def test_one_look_serves_many_jobs(tmp_path, monkeypatch):
    index = Index(tmp_path)
    monkeypatch.setattr(Path, "rglob", lambda *_: pytest.fail("looked again"))
    assert make_jobs(settings_of(), [0], tmp_path, index=index)


@pytest.mark.skipif(not RESULTS.exists(), reason="results/ is not in the source distribution")
def test_every_committed_result_is_still_the_run_of_its_settings():
    found, _ = find_results([RESULTS])
    assert len(found) >= 739
    for result in found:
        given = dict(result.settings)
        if not METHODS[given["method"]].replays:
            del given["buffer"], given["replay_batch"]
        assert same_run(make_settings(**given).to_dict(), json.loads(result.path.read_text())["settings"])


# -- what made them ----------------------------------------------------------------------------------------------------


def no_data(name):
    pytest.fail("nobody needs the data")


def test_runs_of_another_revision_count_as_finished_and_are_told_of(tmp_path, monkeypatch):
    jobs = [end(job, revisions={"engine": 1, "method": 1}) for job in make_jobs(settings_of(), [0, 1, 2], tmp_path)]
    assert outdated(jobs, no_data) == []
    monkeypatch.setattr(ErAce, "revision", 2)
    assert outdated(jobs, no_data) == [
        f"3 runs in {jobs[0].folder.parent} were made by er-ace revision 1, this is 2: "
        "--redo (in Python redo=True) repeats them"
    ]
    (other,) = make_jobs(settings_of(lr=0.5), [0], tmp_path)
    (line,) = outdated([*jobs, end(other, revisions={"method": 1})], no_data)
    assert line.startswith(f"4 runs in {tmp_path} were made by er-ace revision 1, this is 2: ")
    assert outdated(jobs[:1], no_data) == [
        f"1 run in {jobs[0].folder.parent} was made by er-ace revision 1, this is 2: "
        "--redo (in Python redo=True) repeats it"
    ]
    assert remaining(jobs) == []


def test_runs_on_other_data_are_told_of(tmp_path):
    (job,) = make_jobs(settings_of(), [0], tmp_path)
    end(job, data="aa")
    assert outdated([job], lambda name: "aa") == []
    assert outdated([job], lambda name: None) == []
    assert outdated([job], lambda name: "bb") == [
        f"1 run in {job.folder.parent} was made on data with fingerprint aa, today's has bb: "
        "--redo (in Python redo=True) repeats it"
    ]


def test_a_result_that_does_not_say_what_made_it_is_the_same(tmp_path, monkeypatch):
    (job,) = make_jobs(settings_of(), [0], tmp_path)
    end(job)
    value = json.loads((job.folder / "result.json").read_text())
    old = {name: value[name] for name in value if name not in ("counts", "data", "revisions")}
    write_json(job.folder / "result.json", old | {"format": 1, "steps_per_second": 3.0})
    monkeypatch.setattr(ErAce, "revision", 2)
    assert outdated([job], no_data) == []
    assert finished(job)


def test_restart_drops_checkpoints_and_redo_results_too(tmp_path):
    jobs = make_jobs(settings_of(), [0, 1], tmp_path)
    end(jobs[0])
    kept = ["buffer.png", "log.jsonl", "network.safetensors", "probe-1.json", "result.json"]  # of the run as it was
    for name in (checkpoint.NAME, checkpoint.PREVIOUS, *kept[:-1]):
        (jobs[0].folder / name).write_text("")
    restart(jobs)
    assert sorted(path.name for path in jobs[0].folder.iterdir()) == kept
    redo(jobs)
    assert [path.name for path in jobs[0].folder.iterdir()] == ["log.jsonl"]
    assert remaining(jobs) == jobs
    assert not jobs[1].folder.exists()
