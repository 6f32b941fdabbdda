"""`cler report` as a user types it, in this process."""

import csv
import errno
import json
import os
import re
import shutil
import signal
from functools import partial

import pytest

from cler.runs.results import make_result

FILES = ["index.html", "report.md", "report.tex", "results.csv", "runs.csv"]
PLAIN = {"method": "er-ace", "regularizer": "none", "dataset": "toy", "tasks": 2, "buffer": 50, "epochs": 1}


@pytest.fixture
def cler(cler_here):
    """The command `cler report`."""
    return partial(cler_here, "report")


def save(folder, settings=PLAIN, seed=0, final=30.0, **changes):
    accuracy = {"class_il": [[60.0], [final, final]], "task_il": [[80.0], [final + 20, final + 20]]}
    path = folder / settings["regularizer"] / f"seed-{seed}" / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(make_result(settings, seed, accuracy, 1.0, 1, {}) | changes))
    return path


@pytest.fixture
def results(tmp_path):
    for seed in range(3):
        save(tmp_path / "runs", PLAIN, seed, 30.0 + seed)
        save(tmp_path / "runs", PLAIN | {"regularizer": "jigsaw", "weight": 1.0}, seed, 40.0 + seed)
    return tmp_path / "runs"


def assert_refused(answer, says):
    code, out, err = answer
    assert code == 2
    assert out == ""
    assert err.startswith("cler: ")
    assert len(err.splitlines()) == 1
    assert says in err


def test_every_format_is_written_and_named(cler, results, tmp_path):
    code, out, err = cler(results, "-o", "docs/report")
    assert (code, err) == (0, "")
    assert out.split() == [f"docs/report/{name}" for name in FILES]
    assert sorted(path.name for path in (tmp_path / "docs" / "report").iterdir()) == FILES
    for name in FILES:
        assert "jigsaw" in (tmp_path / "docs" / "report" / name).read_text("utf-8")


def test_a_report_is_made_anew_and_the_same(cler, results, tmp_path):
    cler(results)
    before = {name: (tmp_path / "report" / name).read_bytes() for name in FILES}
    (tmp_path / "report" / "report.md").write_text("old")
    assert cler(results)[0] == 0
    assert {name: (tmp_path / "report" / name).read_bytes() for name in FILES} == before


def test_a_preface_comes_first(cler, results, tmp_path):
    (tmp_path / "why.txt").write_text("It differs because.\n")
    assert cler(results, "--preface", "why.txt")[0] == 0
    for name in FILES[:3]:
        assert "It differs because." in (tmp_path / "report" / name).read_text("utf-8")


def test_foreign_broken_and_newer_files_are_skipped_with_a_line_each(cler, results, tmp_path):
    for name, text in {"foreign": '{"answer": 42}', "broken": '{"format": 1, ', "binary": "\0\1"}.items():
        (results / name).mkdir()
        (results / name / "result.json").write_text(text)
    newer = save(results / "newer", format=99)
    (results / "notes.txt").write_text("not a result")
    code, _, err = cler(results)
    assert code == 0
    assert len(err.splitlines()) == 4
    assert all(line.startswith("skipped: ") for line in err.splitlines())
    assert f"{newer}: format 99 is newer than 2" in err
    page = (tmp_path / "report" / "index.html").read_text("utf-8")
    assert "Left out" in page
    assert "format 99 is newer than 2" in page


def test_names_that_are_not_utf_8_are_written_out(cler, tmp_path):
    odd = tmp_path / os.fsdecode(b"y\xff")
    save(odd)
    code, out, _ = cler(odd, "-o", odd / "report")
    assert code == 0
    assert out.split() == [rf"{tmp_path}/y\xff/report/{name}" for name in FILES]
    assert r"y\xff/none/seed-0/result.json" in (odd / "report" / "runs.csv").read_text("utf-8")


def test_a_run_that_is_not_complete_is_told_of_on_the_page(cler, results, tmp_path):
    begin(results / "more", seed=7)
    code, _, err = cler(results)
    assert (code, err) == (0, "1 run not finished: the page shows the progress\n")
    assert "Results of 6 runs" in (tmp_path / "report" / "report.md").read_text("utf-8")
    assert 'id="unfinished"' in (tmp_path / "report" / "index.html").read_text("utf-8")


def begin(folder, seed=0):
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"settings": PLAIN, "seed": seed}))


def test_runs_that_have_only_begun_have_a_page_alone(cler, tmp_path):
    begin(tmp_path / "runs")
    code, out, _ = cler("runs")
    assert (code, out) == (0, "report/index.html\n")
    assert "1 run under way" in (tmp_path / "report" / "index.html").read_text("utf-8")


@pytest.fixture
def between_looks(monkeypatch):
    """Let the steps of a generator happen between the looks, one each time."""
    return lambda steps: monkeypatch.setattr("cler.report.watch.sleep", lambda *_: next(steps))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watching_goes_on_until_it_is_asked_to_stop(cler, tmp_path, between_looks, number):
    page = tmp_path / "report" / "index.html"
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def steps():
        assert "No run is complete yet" in page.read_text("utf-8")
        assert "location.reload" in page.read_text("utf-8")
        begin(tmp_path / "here" / "a", seed=1)
        yield
        assert "1 run under way" in page.read_text("utf-8")
        save(tmp_path / "there")
        yield
        assert "Results of 1 run on toy" in page.read_text("utf-8")
        about = page.stat()
        yield
        assert page.stat().st_mtime_ns == about.st_mtime_ns  # nothing has changed
        save(tmp_path / "there", seed=1)
        signal.raise_signal(number)
        yield

    between_looks(steps())
    code, out, _ = cler("here", "there", "--watch", "--every", "2")
    assert code == 0
    first, *others = out.splitlines()
    assert first == "report/index.html follows the runs; Ctrl-C ends it"
    assert others == [f"report/{name}" for name in FILES]
    final = page.read_text("utf-8")
    assert "Results of 2 runs on toy" in final  # with what came last
    assert "location.reload" not in final
    assert 'id="unfinished"' in final
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == FILES
    assert {each: signal.getsignal(each) for each in before} == before


def test_watching_nothing_ends_well_too(cler, tmp_path, between_looks):
    between_looks(_stop())
    assert cler("nowhere", "--watch")[0] == 0
    assert "location.reload" not in (tmp_path / "report" / "index.html").read_text("utf-8")


def _stop():
    signal.raise_signal(signal.SIGINT)
    yield


@pytest.mark.parametrize(
    ("given", "says"), [(["--every", "2"], "is for --watch"), (["--watch", "--every", "0"], "from 0.1")]
)
def test_time_between_looks_that_makes_no_sense(cler, results, tmp_path, given, says):
    assert_refused(cler(results, *given), f"--every {says}" if "is for" in says else says)
    assert not (tmp_path / "report").exists()


def test_gains_over_other_runs_are_in_every_format_and_not_beside_those_of_the_paper(cler, results, tmp_path):
    for seed in range(3):
        save(results / "mine", PLAIN | {"method": "xder"}, seed, 35.0 + seed)
    assert cler(results, "--against", "er-ace").code == 0
    report = {name: (tmp_path / "report" / name).read_text("utf-8") for name in FILES}
    said = "accuracy is higher than that of ER-ACE in 2 of 2 rows"
    for name in FILES[:3]:
        assert said in report[name]
        assert "accuracy minus that of ER-ACE, in points" in report[name]
    with (tmp_path / "report" / "results.csv").open() as file:
        found = {line["label"]: line["p_student"] for line in csv.DictReader(file) if line["scenario"] == "class_il"}
    p_value = f"{float(found['X-DER']):.3f}"
    assert re.search(rf"X-DER & class-incremental & \+5\.00 & .* & {p_value} & ", report["report.tex"])
    assert_refused(cler(results, "--against", "er"), "--against must be one of those that are compared, er-ace, ")


def test_gains_over_runs_that_are_not_there_yet_are_waited_for(cler, tmp_path, between_looks):
    page = tmp_path / "report" / "index.html"

    def steps():
        save(tmp_path / "runs", PLAIN | {"method": "xder"}, final=35.0)
        yield
        assert "Results of 1 run on toy" in page.read_text("utf-8")
        save(tmp_path / "runs" / "er-ace")
        yield
        assert "accuracy is higher than that of ER-ACE in 1 of 1 row" in page.read_text("utf-8")
        signal.raise_signal(signal.SIGINT)
        yield

    between_looks(steps())
    assert cler("--watch", "--against", "er-ace")[::2] == (0, "")
    between_looks(_stop())
    said = "gains are not measured against er, of which no run has finished\n"
    assert cler("--watch", "--against", "er")[::2] == (0, said)
    assert "accuracy is higher" not in page.read_text("utf-8")


def test_before_any_run_it_says_what_to_do(cler_here):
    for command in (["report"], ["report", "runs"], ["compare"], ["compare", "runs"]):
        told = "no such file or folder: runs; train first with `cler run`, or give another folder"
        assert_refused(cler_here(*command), told)


def test_no_such_folder(cler, tmp_path):
    assert_refused(cler("nowhere"), "no such file or folder: nowhere")
    assert not (tmp_path / "report").exists()


def test_no_run_at_all(cler, tmp_path):
    (tmp_path / "empty").mkdir()
    assert_refused(cler("empty"), "there is no run in empty")
    (tmp_path / "empty" / "result.json").write_text("{")
    code, _, err = cler("empty")
    skipped, refused = err.splitlines()
    assert (code, refused) == (2, "cler: there is no run in empty")
    assert skipped.startswith("skipped: empty/result.json is not JSON")
    assert not (tmp_path / "report").exists()


def test_nothing_given(cler):
    code, _, err = cler()
    assert code == 2
    assert len(err.splitlines()) == 1


def test_a_file_where_the_folder_should_be(cler, results, tmp_path):
    (tmp_path / "taken").write_text("mine")
    assert_refused(cler(results, "-o", "taken"), "taken is a file: give another folder")
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot read why.txt: No such file"), (b"\xff\xfe\x00", "why.txt is not a UTF-8 text file")],
)
def test_a_preface_that_cannot_be_read(cler, results, tmp_path, content, says):
    if content:
        (tmp_path / "why.txt").write_bytes(content)
    assert_refused(cler(results, "--preface", "why.txt"), says)
    assert not (tmp_path / "report").exists()


def test_a_full_disk_leaves_the_old_report_whole(cler, results, tmp_path, monkeypatch):
    cler(results)
    before = {name: (tmp_path / "report" / name).read_bytes() for name in FILES}

    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    shutil.rmtree(results / "jigsaw")  # so that a new report would be another one
    assert_refused(cler(results), "cannot write to report/index.html: No space left on device")
    assert {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()} == before
