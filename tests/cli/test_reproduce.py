"""`cler reproduce`, on a table of two cells over a small dataset."""

import json
import re
import signal
import time
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from cler.config.making import make_settings
from cler.data import images
from cler.engine.events import Evaluated
from cler.errors import UsageError
from cler.methods.er_ace import ErAce
from cler.paper import cost, reproduce, tables
from cler.paper import settings as paper_settings
from cler.paper.glance import count_marks
from cler.paper.report_section import lines_of_all_tables, printed_numbers
from cler.runs.compare import compare
from cler.runs.record import Recorder
from cler.runs.results import find_results, read_result
from toys import Toy

ROOT = Path(__file__).parents[2]
PAPER = paper_settings.paper_file() | tomllib.loads("""
[toy]
tasks = 2
width = 2
batch = 5
replay_batch = 5

[tables.small]
title = "A small table"

[[tables.small.columns]]
runs = { dataset = "toy", buffer = 20 }
class_il."er-ace" = { mean = 1.0, std = 0.5, adjusted_forgetting = 30.0 }
class_il."er-ace+jigsaw" = { mean = 2.0, std = 0.5, adjusted_forgetting = 20.0, p = 0.001 }

[[tables.small.columns]]
runs = { dataset = "imagenet-21k", buffer = 20 }
class_il."er-ace" = { mean = 3.0 }
""")


@pytest.fixture
def toy(monkeypatch):
    counted = type("Counted", (Toy,), {})
    monkeypatch.setitem(images.DATASETS._entries, "toy", counted())
    for module in (tables, paper_settings):
        monkeypatch.setattr(module, "paper_file", lambda: PAPER)
    monkeypatch.setattr(cost, "seconds_per_run", lambda missing, *_: {work.cell: 100.0 for work in missing})
    return counted


@pytest.fixture
def cler(cler_here):
    """The command `cler reproduce`."""
    return partial(cler_here, "reproduce")


QUICK = ("small", "--seeds", 2, "--workers", 1)


def accuracies(folder):
    read = {path.parent.relative_to(folder): read_result(path) for path in Path(folder).rglob("result.json")}
    return {name: value["accuracy"] for name, value in read.items() if value["complete"]}


def test_a_table_from_nothing_and_then_from_what_is_there(toy, cler):
    code, out, err = cler(*QUICK)
    assert code == 0, err
    assert "missing: toy, buffer 20: ER-ACE + CLER (jigsaw), 2 runs, about 3 min" in err
    assert "in all: 4 runs, about 7 min" in err
    assert toy.fetched == 1
    assert len(accuracies("reproduction")) == 4
    for text in ("A small table", "+ CLER (jigsaw)", "2.00±0.50", "+1.00", "p = 0.001"):
        assert text in out
    assert "\nnot in this version: imagenet-21k\nClass-incremental: CLER's gain is positive in " in out
    assert "imagenet-21k" not in out.replace("not in this version: imagenet-21k", "")
    assert err.index("in all: ") < err.index("stop with Ctrl-C at any time; --only and --seeds train fewer runs")
    code, again, err = cler(*QUICK)
    assert (code, again, err) == (0, out, "")
    assert toy.fetched == 1


def test_what_is_kept_of_runs_can_be_chosen(toy, cler, monkeypatch):
    given = []
    monkeypatch.setattr("cler.api.execute", lambda jobs, machine, **_: given.append(machine))
    assert cler(*QUICK, "--checkpoint-every", 7, "--save-buffer-images", 3).code == 0
    assert {(machine.checkpoint_every, machine.save_buffer_images) for machine in given} == {(7, 3)}


@pytest.mark.parametrize("option", ["--redo", "--restart"])
def test_a_dry_run_repeats_nothing(toy, cler, option):
    code, _, err = cler(*QUICK, "--dry-run", option)
    assert code == 2
    assert err == f"cler: {option} has no effect with --dry-run, which trains nothing: leave one of them out\n"


def test_results_stay_where_they_cannot_be_redone(toy, cler, monkeypatch):
    assert cler(*QUICK)[0] == 0
    before = accuracies("reproduction")

    def get(*_):
        raise UsageError("it cannot be downloaded")

    monkeypatch.setattr(toy, "get", get)
    code, out, err = cler(*QUICK, "--redo")
    assert (code, accuracies("reproduction")) == (1, before)
    assert "left out: all runs on toy (it cannot be downloaded)" in err
    assert "2.00±0.50" in out
    assert json.loads(cler(*QUICK, "--redo", "--json").out)["missing"] == []


def test_a_dry_run_writes_nothing(toy, cler, tmp_path):
    code, out, err = cler(*QUICK, "--dry-run")
    assert code == 0
    assert err.splitlines() == [
        "missing: toy, buffer 20: ER-ACE, 2 runs, time not known",
        "missing: toy, buffer 20: ER-ACE + CLER (jigsaw), 2 runs, time not known",
        "in all: 4 runs, time not known for 2 of 2 cells: --time measures it, or --out FOLDER reads it from results "
        "elsewhere",
    ]
    assert "A small table" in out
    assert toy.fetched == 0
    assert not any(tmp_path.iterdir())


def test_json_has_the_lines_and_what_is_missing(toy, cler):
    code, out, _ = cler(*QUICK, "--json", "--dry-run", "--time", "--only", "er-ace+jigsaw", "--pretext", "both")
    assert code == 0
    told = json.loads(out)
    assert told["table"] == "small"
    assert told["verdict"] is None
    (line,) = told["lines"]
    assert (line["label"], line["ours"], line["paper"]["mean"]) == ("ER-ACE + CLER (jigsaw)", None, 2.0)
    (missing,) = told["missing"]
    assert (missing["regularizer"], missing["seeds"]) == ("jigsaw", [0, 1])
    assert missing["seconds_per_run"] == 100


def test_all_tables_are_trained_counted_and_then_complete(toy, cler, monkeypatch):
    made = tables.paper_file()
    small = made["tables"]["small"]
    small |= {"columns": [column | {"seeds": 1} for column in small["columns"]]}
    monkeypatch.setattr(tables, "paper_file", lambda: made | {"tables": {"small": small}})
    code, out, err = cler("all", "--workers", 1)
    assert code == 0
    assert "in all: 2 runs, about 3 min" in err
    assert re.search(r"A small table +\d +\d +1\n", out)
    assert "nothing is missing" in out
    code, out, err = cler("all", "--dry-run", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["missing"] == []
    assert [table["table"] for table in told["tables"]] == ["small"]
    assert [line["ours"]["runs"] for line in told["tables"][0]["lines"] if line["ours"]] == [1, 1]
    assert "in all: 1 run, time not known for 1 of 1 cells" in cler("all", "--dry-run", "--pretext", "both")[2]
    assert "nothing is missing" not in cler("all", "--dry-run", "--seeds", 2)[1]


def test_every_missing_cell_has_a_line_of_its_own(cler):
    listed = [line for line in cler("all", "--dry-run").err.splitlines() if line.startswith("missing: ")]
    assert len(listed) == len(set(listed)) > 90
    assert "missing: cifar100, buffer 500: ER-ACE + CLER (jigsaw), weight 1.7, 10 runs, time not known" in listed


def test_each_number_of_all_tables_counts_once_in_the_end(cler):
    asked = ("all", "--dry-run", "--out", ROOT / "results" / "cifar100")
    once = re.search(r"^each number once +(\d+) +(\d+) +(\d+)$", cler(*asked).out, re.MULTILINE)
    counts = count_marks(printed_numbers(lines_of_all_tables(compare(find_results([asked[-1]])[0]).groups)))
    assert [int(number) for number in once.groups()] == list(counts.values())


def test_all_tables_of_the_paper_are_listed_without_training(cler):
    code, out, err = cler("all", "--dry-run", "--dataset", "cifar100", "--out", ROOT / "results" / "cifar100")
    assert code == 0
    assert "X-DER" not in err  # all of its runs are there
    assert re.search(r"Table 1: class-incremental \(oCIL\) +\d+ +\d+ +0\n", out)
    assert "Table 1, class-incremental: CLER's gain is positive in 8 of 8 cells" in " ".join(out.split())


def test_the_time_of_what_no_earlier_run_tells_is_not_known(cler):
    committed = ("--only", "er-ace", "--dry-run", "--out", ROOT / "results" / "cifar100")
    _, _, err = cler("all", *committed)
    said = r"^in all: \d+ runs, about .+ for \d+ of them, time not known for \d+ of \d+ cells: --time measures it$"
    assert re.search(said, err, re.MULTILINE)
    listed = [line for line in err.splitlines() if line.startswith("missing: ")]
    known = [", about " in line for line in listed]
    assert known == sorted(known, reverse=True)
    assert {*known} == {True, False}
    assert all(line.endswith(", time not known") for line, is_known in zip(listed, known, strict=True) if not is_known)


def test_both_pretext_tasks_and_the_rule_of_the_better_one(toy, cler):
    code, out, _ = cler(*QUICK, "--pretext", "both")
    assert code == 0
    assert len(accuracies("reproduction")) == 6
    assert "+ CLER (rotation)" in out
    assert "The paper prints the better of the two pretext tasks" in " ".join(out.split())


def test_out_of_time_it_says_what_is_left_and_goes_on_later(toy, cler):
    code, _, err = cler(*QUICK, "--seconds", 1e-9)
    assert code == 0
    assert "out of time, 4 runs still to do" in err
    assert not accuracies("reproduction")
    assert cler(*QUICK)[0] == 0
    assert len(accuracies("reproduction")) == 4


def test_out_of_time_within_a_run_it_stops_after_a_step_and_shows_the_table(toy, cler, monkeypatch):
    observe, now, steps, passed = ErAce.observe, time.monotonic, [], []

    def slowly(self, batch):
        steps.append(batch)
        if len(steps) == 10:  # of 16
            passed.append(1e6)
            signal.raise_signal(signal.SIGALRM)
        return observe(self, batch)

    monkeypatch.setattr(ErAce, "observe", slowly)
    monkeypatch.setattr(time, "monotonic", lambda: now() + sum(passed))
    code, out, err = cler(*QUICK, "--seconds", 1e6)
    assert code == 0
    assert "out of time, 4 runs still to do" in err
    assert "A small table" in out
    assert list(Path("reproduction").rglob("checkpoint*"))
    monkeypatch.setattr(ErAce, "observe", observe)
    code, _, err = cler(*QUICK)
    assert code == 0
    assert "resuming from task" in err
    assert not list(Path("reproduction").rglob("checkpoint*"))
    assert len(accuracies("reproduction")) == 4


@pytest.mark.parametrize(("device", "groups"), [("cpu", [4]), ("cuda", [3, 1])])
def test_a_cpu_has_one_queue_and_a_gpu_groups_and_the_cheapest_runs_come_first(toy, cler, monkeypatch, device, groups):
    given = []

    def train(jobs, *_):
        given.append([job.settings.regularizer for job in jobs])
        return []

    monkeypatch.setattr("cler.api.train_jobs", train)
    monkeypatch.setattr("cler.runs.backends.local.find_device", lambda _: torch.device(device))
    monkeypatch.setattr(cost, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(
        cost,
        "seconds_per_run",
        lambda missing, *_: {work.cell: 1.0 if work.cell.equivariant else 9.0 for work in missing},
    )
    assert cler(*QUICK)[0] == 0
    assert [len(group) for group in given] == groups
    assert [name for group in given for name in group] == ["jigsaw", "jigsaw", "none", "none"]


def test_the_verdict_is_in_the_table_and_in_json(cler):
    arguments = ("table1", "--only", "er-ace", "--dataset", "cifar100", "--dry-run")
    says = "Class-incremental: CLER's gain is positive in 2 of 2 cells and within 1.5 points of the paper's in 2."
    _, out, _ = cler(*arguments, "--out", ROOT / "results" / "cifar100")
    assert says in " ".join(out.split())  # however wide the terminal is
    _, out, _ = cler(*arguments, "--out", ROOT / "results" / "cifar100", "--json")
    assert json.loads(out)["verdict"] == says


COMMITTED = ("--device", "cpu", "--dry-run", "--seeds", 1, "--out", ROOT / "results" / "cifar100", "--json")


def test_a_choice_of_cells_does_not_change_their_numbers(cler, monkeypatch):
    """Of one of them there are as many runs in each of three precisions."""
    monkeypatch.setattr(cost, "seconds_per_run", lambda missing, *_: {work.cell: 1.0 for work in missing})
    whole = json.loads(cler("table1", *COMMITTED)[1])["lines"]
    for chosen in ("er-ace+jigsaw", "xder+jigsaw"):
        cell = ("--only", chosen, "--dataset", "cifar100", "--buffer", 500)
        (line,) = json.loads(cler("table1", *cell, *COMMITTED)[1])["lines"]
        assert line in whole
        assert line["precision"] == "bf16"
        assert line["gain"]["p_value"] < 0.01
        assert line["paper_gain"]["points"] > 3


def test_the_verdict_is_about_the_table_s_own_setting(cler):
    told = json.loads(cler("table2", "--only", "er-ace", "--dataset", "cifar100", *COMMITTED)[1])
    agree = [line["gain_agrees"] for line in told["lines"] if line["gain"]]
    assert {line["scenario"] for line in told["lines"]} == {"task_il"}
    assert re.fullmatch(rf"Task-incremental: .* of 2 cells and within 1.5 .* in {sum(agree)}\.", told["verdict"])
    told = json.loads(cler("cssl", "--only", "er-ace", *COMMITTED)[1])
    assert re.fullmatch(r"Class-incremental: .* 2 of 2 cells .* Task-incremental: .* 2 of 2 cells .*", told["verdict"])


def test_interrupted_it_goes_on_to_the_same_numbers(toy, cler, monkeypatch):
    assert cler(*QUICK, "--out", "whole")[0] == 0
    seen = []

    def stop_at_the_third(self, event, hear=Recorder.hear):
        seen.extend([event] if isinstance(event, Evaluated) else [])
        if len(seen) == 3:
            raise KeyboardInterrupt
        hear(self, event)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "hear", stop_at_the_third)
        code, out, err = cler(*QUICK, "--out", "parts")
    assert (code, out) == (130, "")
    assert "the same command resumes" in err
    assert len(accuracies("parts")) == 1
    assert cler(*QUICK, "--out", "parts")[0] == 0
    assert accuracies("parts") == accuracies("whole")


def test_a_run_that_fails_does_not_stop_the_others(toy, cler, monkeypatch):
    settings = tables.PaperCell.settings

    def diverging(self, precision="fp32"):
        made = settings(self, precision)
        return made if self.regularizer == "none" else make_settings(**made.to_dict() | {"lr": 1e30})

    monkeypatch.setattr(tables.PaperCell, "settings", diverging)
    code, out, err = cler(*QUICK)
    assert code == 1
    assert "the loss was not finite" in err
    assert "A small table" in out
    assert len(accuracies("reproduction")) == 2


def test_broken_and_foreign_files_are_skipped_with_a_line_each(toy, cler, tmp_path):
    assert cler(*QUICK)[0] == 0
    first, second, *_ = sorted(tmp_path.glob("reproduction/*/*/result.json"))
    first.write_text("{")
    second.write_text(second.read_text().replace('"format": 2', '"format": 99'))
    code, out, err = cler(*QUICK)
    assert code == 0
    assert [line.startswith("skipped: ") for line in err.splitlines()] == [True, True]
    assert "is not JSON" in err
    assert "format 99 is newer" in err
    assert all(f"; to do this run again, delete {one.parent.relative_to(tmp_path)}" in err for one in (first, second))
    assert "A small table" in out
    assert first.read_text() == "{"


def test_the_committed_results_are_shown_whole_on_a_narrow_terminal(cler, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ("--dataset", "cifar100", "--buffer", 500, "--pretext", "both", "--dry-run")
    methods = ("--only", "er-ace,xder")
    code, out, err = cler("table1", "--out", ROOT / "results" / "cifar100", *arguments, *methods)
    assert (code, err) == (0, "")
    for text in ("+ CLER (rotation)", "24.18±0.84", "24.53±1.43", "p < 0.001", "The paper contradicts itself"):
        assert text in out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_dry_run_tells_what_would_be_fetched(toy, cler, monkeypatch):
    assert "fetched" not in cler(*QUICK, "--dry-run")[2]
    monkeypatch.setattr(toy, "check", lambda self, folder: images.Status("missing", "not there", folder))
    assert "toy is missing here: without --dry-run it is downloaded first" in cler(*QUICK, "--dry-run")[2]
    assert toy.fetched == 0


def test_the_help_names_every_table(cler):
    code, out, _ = cler("--help")
    assert code == 0
    assert all(name in out for name in tables.table_names())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tabel1",), "unknown table 'tabel1'"),
        (("table1", "--only", "er-aec"), "did you mean 'er-ace'"),
        (("table1", "--dataset", "mnist"), "unknown dataset 'mnist'"),
        (("table1", "--buffer", 7), "unknown buffer size in table1 '7'"),
        (("table1", "--buffer", "many"), "--buffer must be a whole number"),
        (("table1", "--epochs", 7), "unknown number of epochs in table1 '7'"),
        (("table1", "--pretext", "all"), r"unknown pretext 'all' (known: paper, both)"),
        (("table1", "--seeds", 0), "--seeds is the number of runs of each cell, from 1 to 1000"),
        (("table1", "--seeds", "0..9"), "--seeds is the number of runs of each cell"),
        (("table1", "--seeds", "9" * 5000), "--seeds is the number of runs of each cell"),
        (("table1", "--seconds", "nan"), "--seconds must be above zero"),
        (("table1", "--time"), "--time has no effect without --dry-run"),
        (("table1", "--workers", 0), "--workers must be at least 1"),
        (("table1", "--device", "tpu"), "unknown device 'tpu'"),
    ],
)
def test_mistakes_are_one_line(cler, tmp_path, arguments, says):
    code, out, err = cler(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("cler: ")
    assert len(err.splitlines()) == 1
    assert says in err
    assert not any(tmp_path.iterdir())


def test_too_little_disk_or_no_folder_is_one_line(toy, cler, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ErAce, "about", replace(ErAce.about, running_bytes=10**18))
        code, _, err = cler(*QUICK)
    assert code == 2
    assert err.startswith("cler: reproduction has ")  # before anything is measured
    assert len(err.splitlines()) == 1
    (tmp_path / "file").write_text("")
    code, _, err = cler(*QUICK, "--out", tmp_path / "file" / "folder")
    assert code == 2
    assert "cannot write to" in err.splitlines()[-1]


def test_a_dataset_that_cannot_be_fetched_leaves_out_its_own_runs_only(toy, cler, monkeypatch):
    class Far(toy):
        name = "imagenet-21k"

        def get(self, folder, progress):
            raise reproduce.UsageError("cannot fetch it: try again")

    monkeypatch.setitem(images.DATASETS._entries, "imagenet-21k", Far())
    code, out, err = cler(*QUICK)
    assert code == 1
    assert "left out: all runs on imagenet-21k (cannot fetch it: try again)" in err.splitlines()
    assert len(accuracies("reproduction")) == 4
    assert "A small table" in out
    monkeypatch.setattr(toy, "get", Far.get)
    code, again, err = cler("small", "--workers", 1, "--seeds", 3, "--json")
    assert code == 1
    assert "left out: all runs on toy (cannot fetch it: try again)" in err
    assert "timing steps" not in err
    assert "stop with Ctrl-C" not in err
    assert [line["ours"] and line["ours"]["runs"] for line in json.loads(again)["lines"]] == [2, 2, None]
