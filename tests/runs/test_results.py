import json
import math
import os
from pathlib import Path

import pytest

from cler import files
from cler.errors import UsageError
from cler.metrics import Curve
from cler.runs import results

RESULTS = Path(__file__).parent.parent.parent / "results"
SETTINGS = {
    "method": "er-ace",
    "regularizer": "none",
    "dataset": "toy",
    "tasks": 2,
    "buffer": 50,
    "epochs": 1,
    "lr": 0.03,
}
ACCURACY = {"class_il": [[80.0], [20.0, 100 / 3]], "task_il": [[80.0], [90.0, 70.0]]}


def make(**changes):
    arguments = {"settings": SETTINGS, "seed": 3, "accuracy": ACCURACY, "seconds": 12.0, "steps": 414}
    return results.make_result(**arguments | {"environment": {"torch": "2.13.0"}} | changes)


@pytest.fixture
def folder(tmp_path):
    files.write_json(tmp_path / "run" / "result.json", make())
    return tmp_path / "run"


def rewrite(folder, change):
    value = json.loads((folder / "result.json").read_text())
    change(value)
    (folder / "result.json").write_text(json.dumps(value))


def as_format_1(value):
    """The same run as it was written before: with metrics, which nobody reads, and without much that is known now."""
    kept = {name: content for name, content in value.items() if name not in ("counts", "data", "revisions")}
    return kept | {"format": 1, "steps_per_second": 34.5, "faa": {"class_il": 99.0, "task_il": None}, "bwt": "x"}


CURVES = {
    "task": [0, 0, 1, 1],
    "step": [2, 4, 2, 4],
    "class_il": [[60.0], [80.0], [40.0, 10.0], [20.0, 30.0]],
    "task_il": [[70.0], [90.0], [50.0, 60.0], [90.0, 70.0]],
    "met_class_il": [60.0, 80.0, 30.0, 22.5],
    "met_task_il": [70.0, 90.0, 52.5, 85.0],
    "predicted": [[1, 2, 0, 8], [3, 6, 1, 16], [5, 10, 3, 24], [8, 12, 4, 32]],
    "ahead_class_il": [[5.0, 15.0], [25.0]],
    "ahead_task_il": [[45.0, 55.0], [65.0]],
    "tested": [30, 10],
}
"""What a run found that was evaluated twice in each of its two tasks."""


def test_what_was_found_within_tasks_is_read_for_each_scenario(folder):
    files.write_json(folder / "result.json", make(curves=CURVES))
    ((result,), _) = results.find_results([folder])
    assert result.curve("task_il") == Curve(
        task=[0, 0, 1, 1],
        rows=CURVES["task_il"],
        tested=[30, 10],
        ahead=[[45.0, 55.0], [65.0]],
        met=[70.0, 90.0, 52.5, 85.0],
        predicted=[(2, 0, 8), (6, 1, 16), (10, 3, 24), (12, 4, 32)],
    )
    assert result.curve("class_il").predicted == [(1, 0, 8), (3, 1, 16), (5, 3, 24), (8, 4, 32)]
    assert result.metrics["average_anytime_accuracy"]["class_il"] == pytest.approx((60 + 80 + 30 + 22.5) / 4)
    assert result.metrics["worst_case_accuracy"] == {"class_il": (20 + 30) / 2, "task_il": (50 + 70) / 2}
    assert result.metrics["forward_transfer"] == {"class_il": 10.0, "task_il": 10.0}
    assert result.metrics["prequential_accuracy"] == {"class_il": 25.0, "task_il": 37.5}
    cut = result.until(1)
    assert cut.accuracy == {"class_il": [[80.0]], "task_il": [[80.0]]}
    assert cut.curves == {
        name: values[: 1 if name.startswith("ahead") else 2] for name, values in CURVES.items()
    }  # of both tasks it is known how many images they are tested on


def test_a_result_is_facts_and_its_metrics_are_computed_when_it_is_read(folder):
    value = make(images=4140, data="5e", revisions={"engine": 1, "method": "a1.1"})
    assert set(value) == {
        "format", "settings", "seed", "complete", "accuracy", "counts", "seconds", "at_once", "environment", "data",
        "revisions",
    }  # fmt: skip
    assert value["accuracy"]["class_il"] == [[80.0], [20.0, 33.3333]]
    files.write_json(folder / "result.json", value)
    (result,), _ = results.find_results([folder])
    assert result.metrics["accuracy"] == {"class_il": pytest.approx(26.66665), "task_il": 80.0}
    assert result.metrics["incremental_accuracy"]["task_il"] == 80.0
    assert result.metrics["adjusted_forgetting"] == {"class_il": 75.0, "task_il": 0.0}
    assert result.metrics["forgetting"] == {"class_il": 60.0, "task_il": 0.0}
    assert result.metrics["backward_transfer"] == {"class_il": -60.0, "task_il": 10.0}
    assert (result.steps, result.images, result.steps_per_second) == (414, 4140, 34.5)
    assert (result.data, result.revisions) == ("5e", {"engine": 1, "method": "a1.1"})


def test_format_1_is_read_and_what_it_does_not_say_is_not_known(folder):
    files.write_json(folder / "result.json", as_format_1(make()))
    (result,), complaints = results.find_results([folder])
    assert complaints == []
    assert result.metrics["accuracy"] == {"class_il": pytest.approx(26.66665), "task_il": 80.0}
    assert result.steps_per_second == 34.5
    assert (result.steps, result.images, result.data, result.revisions) == (None, None, None, {})


@pytest.mark.skipif(not RESULTS.exists(), reason="results/ is not in the source distribution")
def test_every_committed_result_is_read_with_the_accuracy_of_its_last_row():
    found, complaints = results.find_results([RESULTS])
    assert (len(found), complaints) == (len(list(RESULTS.rglob("result.json"))), [])
    assert len(found) >= 739
    for result in found:
        stored = json.loads(result.path.read_text())
        for name, rows in stored["accuracy"].items():
            last = rows[-1] if rows else [math.nan]
            assert result.metrics["accuracy"][name] == pytest.approx(sum(last) / len(last), nan_ok=True)
            if stored["format"] == 1 and rows:
                assert result.metrics["accuracy"][name] == pytest.approx(stored["faa"][name], abs=1e-4)


def test_what_is_written_is_read_back(folder):
    assert results.read_result(folder) == make()
    assert results.read_result(folder / "result.json") == make()


def test_a_run_that_failed_at_once_can_be_read_back(folder):
    failed = make(accuracy={"class_il": [], "task_il": []}, complete=False, failure="out of memory")
    files.write_json(folder / "result.json", failed)
    (result,), complaints = results.find_results([folder])
    assert (result.failure, result.complete, complaints) == ("out of memory", False, [])
    assert all(math.isnan(value) for values in result.metrics.values() for value in values.values())


def test_json_never_holds_what_json_does_not_have(folder):
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(folder / "result.json", {"loss": float("nan")})
    assert results.read_result(folder) == make()


def drop(key):
    return lambda value: value.pop(key)


def put(key, new, *, inside=None):
    return lambda value: (value[inside] if inside else value).__setitem__(key, new)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (drop("format"), "not a result of cler"),
        (put("format", "1"), "not a result of cler"),
        (put("format", 0), "not a result of cler"),
        (put("format", 3), "format 3 is newer"),
        (drop("seed"), "'seed' is missing"),
        (put("seed", True), "'seed' is true, not a whole number"),
        (put("seconds", "12"), "'seconds' is \"12\", not a number"),
        (put("complete", 1), "'complete' is 1, not true or false"),
        (put("settings", []), r"'settings' is \[\], not an object"),
        (put("failure", 3), "'failure' is 3, not a string"),
        (put("confusion", [[1, 2], [3, -4]]), "'confusion' is not a matrix of counts"),
        (put("confusion", [[1, 2], [3]]), "'confusion' is not a matrix of counts"),
        (put("confusion", "x"), "'confusion' is not a matrix of counts"),
        (put("confusion", [[1, 2]]), "'confusion' has 1 rows for 2 tasks"),
        (put("tuned", {"select_on": "luck"}), "'tuned' does not say how the settings were tuned"),
        (lambda value: value["settings"].pop("buffer"), "'settings.buffer' is missing"),
        (put("method", 7, inside="settings"), "'settings.method' is 7, not a string"),
        (put("teacher", 3, inside="settings"), "'settings.teacher' is 3, not a string"),
        (drop("counts"), "'counts' is missing"),
        (lambda value: value["counts"].pop("steps"), "'counts.steps' is missing"),
        (put("steps", 3.5, inside="counts"), "'counts.steps' is 3.5, not a whole number"),
        (put("images", -1, inside="counts"), "'counts.images' is -1, which is out of range"),
        (drop("revisions"), "'revisions' is missing"),
        (put("engine", 1.5, inside="revisions"), "'revisions.engine' is neither"),
        (put("engine", True, inside="revisions"), "'revisions.engine' is neither"),
        (put("data", 7), "'data' is not the fingerprint"),
        (lambda value: value["accuracy"].pop("class_il"), "'accuracy.class_il' is not a list of rows"),
        (put("class_il", [80.0, 20.0], inside="accuracy"), "'accuracy.class_il' is not a list of rows"),
        (put("class_il", [[80.0], [20.0]], inside="accuracy"), "row 1 of an accuracy matrix needs 2"),
        (put("class_il", [[80.0], [20.0, 101]], inside="accuracy"), "not percentages"),
        (put("class_il", [[80.0], [20.0, "x"]], inside="accuracy"), "not percentages"),
        (put("class_il", [], inside="accuracy"), "at least one row"),
        (put("task_il", [[80.0]], inside="accuracy"), "differ in size"),
        (put("tasks", 3, inside="settings"), "does not have the size of a complete run with 3 tasks"),
        (put("method", "joint", inside="settings"), "does not have the size of a complete run with 2 tasks"),
        (put("tasks", 0, inside="settings"), "'settings.tasks' must be a number of tasks, .* not 0"),
        (put("buffer", -1, inside="settings"), "'settings.buffer' is -1, which is out of range"),
        (put("seed", -5), "'seed' is -5, which is out of range"),
        (put("seconds", -0.5), "'seconds' is -0.5, which is out of range"),
        (put("seconds", 1e300), r"'seconds' is 1e\+300, which is out of range"),
        (put("seconds", float("nan")), "not finite"),
        (put("seconds", 10**400), "too large"),
        (put("method", "\ud800", inside="settings"), "surrogates not allowed"),
        (put("lr", [[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]], inside="settings"), "more than 20 levels"),
    ],
)
def test_a_broken_result_is_named_with_what_is_wrong(folder, change, says):
    rewrite(folder, change)
    with pytest.raises(UsageError, match=says) as caught:
        results.read_result(folder)
    assert str(folder / "result.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("counts", "many"), ("counts", {}), ("revisions", [1])])
def test_what_an_older_result_need_not_have_is_checked_if_it_does(folder, name, value):
    files.write_json(folder / "result.json", as_format_1(make()) | {name: value})
    found, (complaint,) = results.find_results([folder])
    assert found == []
    assert f"'{name}" in complaint


ONE_ROW = {name: rows[-1:] for name, rows in ACCURACY.items()}


@pytest.mark.parametrize(("method", "complete"), [("joint", True), ("a method of tomorrow", True), ("er-ace", False)])
def test_one_row_is_a_complete_run_only_where_all_can_have_been_learned_at_once(folder, method, complete):
    files.write_json(folder / "result.json", make(accuracy=ONE_ROW, settings=SETTINGS | {"method": method}))
    found, complaints = results.find_results([folder])
    assert (len(found), len(complaints)) == ((1, 0) if complete else (0, 1))


def test_a_run_that_learned_all_tasks_at_once_was_never_only_after_the_first(folder):
    files.write_json(folder / "result.json", make(accuracy=ONE_ROW, settings=SETTINGS | {"method": "joint"}))
    (found,), _ = results.find_results([folder])
    assert found.until(1) is None
    assert found.until(2) is None


def test_the_confusion_between_tasks_is_kept_and_is_that_of_the_end(folder):
    files.write_json(folder / "result.json", make(confusion=[[8, 2], [5, 5]]))
    (found,), _ = results.find_results([folder])
    assert found.confusion == found.until(2).confusion == [[8, 2], [5, 5]]
    assert found.until(1).confusion is None


def test_a_run_that_was_stopped_may_have_fewer_rows(folder):
    half = {name: rows[:1] for name, rows in ACCURACY.items()}
    files.write_json(folder / "result.json", make(accuracy=half, complete=False))
    assert len(results.find_results([folder])[0]) == 1


def test_what_has_no_end_is_skipped(folder):
    for name, make_it in (
        ("pipe", os.mkfifo),
        ("zeros", lambda path: path.symlink_to("/dev/zero")),
        ("folder", lambda path: path.mkdir()),
    ):
        (folder / name).mkdir()
        make_it(folder / name / "result.json")
    files.write_json(folder / "large" / "result.json", make())
    os.truncate(folder / "large" / "result.json", files.LARGEST + 1)
    found, complaints = results.find_results([folder])
    assert [result.path for result in found] == [folder / "result.json"]
    folder_line, large, pipe, zeros = complaints
    assert "cannot read" in folder_line
    assert large.startswith(f"skipped: {folder / 'large' / 'result.json'} has ")
    assert large.endswith(f"more than the {files.LARGEST} that cler reads")
    assert pipe == f"skipped: {folder / 'pipe' / 'result.json'} is not a plain file"
    assert zeros == f"skipped: {folder / 'zeros' / 'result.json'} is not a plain file"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b'{"format": 1, "settings"', "not JSON"),
        (b"\xff\xfe\x00", "not a UTF-8 text file"),
        (b"[" * 100_000, "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b'{"format": 1, "seconds": 1e999}', "not finite"),
    ],
)
def test_a_file_that_is_no_result_is_named(folder, content, says):
    (folder / "result.json").write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        results.read_result(folder)
    assert str(folder / "result.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_result_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*result\.json: No such file"):
        results.read_result(tmp_path)


def test_results_are_found_at_any_depth_once_and_foreign_files_skipped(tmp_path):
    files.write_json(tmp_path / "a" / "b" / "result.json", make(seed=1))
    files.write_json(tmp_path / "c" / "result.json", make(seed=2))
    files.write_json(tmp_path / "foreign" / "result.json", {"score": 1})
    (tmp_path / "directory" / "result.json").mkdir(parents=True)
    found, complaints = results.find_results([tmp_path, tmp_path / "c", tmp_path / "c" / "result.json"])
    assert [result.seed for result in found] == [1, 2]
    assert found[1].path == tmp_path / "c" / "result.json"
    assert found[1].metrics["accuracy"]["task_il"] == 80.0
    assert len(complaints) == 2
    assert any("foreign" in line and "not a result of cler" in line for line in complaints)


def test_a_path_that_does_not_exist_is_the_users_mistake(tmp_path):
    with pytest.raises(UsageError, match=r"no such file or folder: .*nowhere"):
        results.find_results([tmp_path, tmp_path / "nowhere"])
