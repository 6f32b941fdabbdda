"""`cler run` in this process: grids, held-out images, seeds, tasks of different sizes, options given twice."""

import importlib
import json
import sys

import pytest
import torch

import cler
import toys
from cler.config.making import make_settings
from cler.config.registry import METHODS
from cler.errors import UsageError
from cler.files import read_json, write_json
from cler.metrics import METRICS, Metric
from cler.runs.jobs import make_jobs


@pytest.fixture
def command(cler_here):
    """The command, which knows the dataset `toy`."""
    toys.register()
    return cler_here


QUICK = ("--dataset", "toy", "--tasks", 2, "--width", 1, "--device", "cpu", "--workers", 1, "--json")


def results(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("result.json"))]


def test_commas_are_a_grid(command, tmp_path):
    grid = ("--regularizer", "rotation", "--buffer", 20, "--normalize", "true,false", "--weight", "0.5,1")
    code, out, err = command("run", "er", *grid, *QUICK)
    assert code == 0, err
    chosen = sorted((one["settings"]["normalize"], one["settings"]["weight"]) for one in results(tmp_path / "runs"))
    assert chosen == [(False, 0.5), (False, 1.0), (True, 0.5), (True, 1.0)]
    groups = json.loads(out)["groups"]
    assert len(groups) == 4
    assert not any(group["best_by_validation"] for group in groups)  # there is only test accuracy
    code, again, err = command("run", "er", *grid, *QUICK)
    assert code == 0
    assert "4 of 4 runs are already in runs" in err
    assert again == out


@pytest.mark.parametrize("names", [["json.py"], ["one/mine.py", "other/mine.py"]])
def test_a_file_that_has_the_name_of_another_module_is_not_taken_for_it(command, tmp_path, monkeypatch, names):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    code, _, err = command("run", "er", *QUICK, *(part for name in names for part in ("--import", name)))
    stem = names[-1].rpartition("/")[2].removesuffix(".py")
    assert (code, err) == (
        2,
        f"cler: {names[-1]} cannot be imported: there is another module {stem}; rename the file\n",
    )


@pytest.mark.parametrize(("written", "given"), [('"filed_parts.py"', ()), ('["filed_parts"]', ("filed",))])
def test_a_settings_file_names_the_users_own_parts(written, given, command, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "filed_parts", raising=False)
    (tmp_path / "filed_parts.py").write_text(
        "import cler\nfrom cler.methods.finetune import Finetune\n"
        "@cler.register\nclass Filed(Finetune):\n    name = 'filed'\n"
    )
    (tmp_path / "my.toml").write_text(f'import = {written}\nmethod = "filed"\n')
    asked = caught(monkeypatch, "cler.runs.prepare", "prepare", 0)
    _, _, err = command("run", *given, *QUICK, "--config", "my.toml")
    assert [one.method for one in asked[0]] == ["filed"], err


@pytest.mark.parametrize(
    ("method", "task", "says"),
    [("er", 3, "3: toy has 2 tasks here"), ("joint", 1, "1: joint learns all tasks at once")],
)
def test_runs_cannot_stop_after_a_task_that_they_do_not_have(command, tmp_path, method, task, says):
    code, _, err = command("run", method, *QUICK, "--until-task", task)
    assert (code, err) == (2, f"cler: --until-task {says}; leave it out\n")
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_results_stay_where_they_cannot_be_redone(command, tmp_path):
    asked = ("run", "er", "--buffer", 20, "--precision", "fp32", *QUICK)
    assert command(*asked)[0] == 0
    before = results(tmp_path / "runs")
    code, _, err = command(*("cuda" if each == "cpu" else each for each in asked), "--redo")
    assert (code, "torch sees no GPU here" in err) == (2, True)
    with pytest.raises(UsageError, match="torch sees no GPU here"):
        cler.train("er", dataset="toy", tasks=2, width=1, buffer=20, precision="fp32", device="cuda", redo=True)
    assert results(tmp_path / "runs") == before


def test_a_run_stops_after_some_tasks_and_resumes_to_the_same_numbers(command, tmp_path):
    arguments = ("run", "er", "--buffer", 20, "--seeds", 2, *QUICK)
    assert command(*arguments, "--out", "whole")[0] == 0
    for _ in range(2):  # the second time there is nothing to do, and nothing is lost
        code, out, err = command(*arguments, "--out", "parts", "--until-task", 1)
        assert code == 0, err
        assert len(list((tmp_path / "parts").rglob("checkpoint*"))) == 2
    assert "2 of 2 runs are already in parts" in err
    (row,) = json.loads(out)["groups"]
    whole, parts = (results(tmp_path / name) for name in ("whole", "parts"))
    assert [one["complete"] for one in parts] == [False, False]
    firsts = [one["accuracy"]["class_il"][0][0] for one in whole]
    assert row["class_il"]["accuracy"]["mean"] == pytest.approx(sum(firsts) / 2)
    code, out, _ = command("compare", "whole", "--until-task", 1, "--json")
    assert (code, json.loads(out)["groups"][0]["class_il"]["accuracy"]) == (0, row["class_il"]["accuracy"])
    assert "no run that got as far as task 2 in parts" in command("compare", "parts", "--until-task", 2)[2]
    code, _, err = command(*arguments, "--out", "parts")
    assert code == 0
    assert "resuming from task 2, step 1" in err
    assert [one["accuracy"] for one in results(tmp_path / "parts")] == [one["accuracy"] for one in whole]


def test_the_best_row_is_marked_by_accuracy_on_held_out_images(command, tmp_path):
    grid = ("finetune", "--lr", "1e-9,0.05", "--validate", 0.25)
    code, out, err = command("run", *grid, *QUICK)
    assert code == 0, err
    groups = json.loads(out)["groups"]
    assert {group["best_by_validation"] for group in groups} == {True, False}
    (best,) = (group for group in groups if group["best_by_validation"])
    assert best["validation"]["mean"] == max(group["validation"]["mean"] for group in groups)
    for one in results(tmp_path / "runs"):
        assert [len(row) for row in one["validation"]["class_il"]] == [1, 2]
        steps = 2 * (2 * 15 // 10)  # of twenty images of each class five are held out
        assert one["counts"]["steps"] == steps
    code, table, _ = command("compare", "runs")
    assert table.count("★") == 2  # in the row, and in what explains it


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--lr", 1, "--lr", 2), "--lr is given twice: give it once"),
        (("--regularizer", "jigsaw", "--regularizer", "rotation"), "--regularizer is given twice"),
        (("--seeds", 1, "--seeds", 2), "--seeds is given twice"),
        (("--seeds", 1, "--seed", 2), "--seeds and --seed are given: give one of them"),
        (("--seed", "1,2"), "--seed must be one whole number from 0, not '1,2'; --seeds takes several"),
        (("--tasks", "3+2"), "classes"),
        (("--validate", 1), "--validate must be at least 0 and at most 0.9, not 1"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(options, says, command, tmp_path):
    usual = [each for each in QUICK if each != 2 and each != "--tasks"] if "--tasks" in options else QUICK
    code, out, err = command("run", "finetune", *usual, *options)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_tasks_of_different_sizes(command, tmp_path):
    usual = [each for each in QUICK if each not in ("--tasks", 2)]
    code, out, err = command("run", "er-ace", "--buffer", 20, "--tasks", "1+3", *usual)
    assert code == 0, err
    (one,) = results(tmp_path / "runs")
    assert one["settings"]["tasks"] == "1+3"
    assert [len(row) for row in one["accuracy"]["class_il"]] == [1, 2]
    assert one["accuracy"]["task_il"][0] == [100.0]  # the only class of its task
    assert one["counts"]["steps"] == 20 // 10 + 60 // 10
    assert json.loads(out)["groups"][0]["settings"]["tasks"] == "1+3"


@pytest.mark.parametrize(
    ("options", "seeds"),
    [
        ((), [0]),
        (("--seeds", 3), [0, 1, 2]),
        (("--seeds", "3,7"), [3, 7]),
        (("--seed", 3), [3]),
        (("--seeds", "2..3"), [2, 3]),
    ],
)
def test_seeds(options, seeds, command, monkeypatch):
    asked = caught(monkeypatch, "cler.runs.prepare", "prepare", 1)
    command("run", "finetune", *QUICK, *options)
    assert asked == [seeds]


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("seeds = 3\n", [0, 1, 2]),
        ("seed = 3\n", [3]),
        ('seeds = "3,7"\n', [3, 7]),
        ("seeds = [3, 7]\n", [3, 7]),
    ],
)
def test_seeds_of_a_settings_file(text, seeds, command, monkeypatch, tmp_path):
    (tmp_path / "my.toml").write_text(text)
    asked = caught(monkeypatch, "cler.runs.prepare", "prepare", 1)
    _, _, err = command("run", "finetune", *QUICK, "--config", "my.toml")
    assert asked == [seeds]
    assert len(err.splitlines()) == 1  # that the test stops it


@pytest.mark.parametrize(("text", "seeds"), [("2", [0, 1]), ("3,7", [3, 7]), ("4..5", [4, 5])])
def test_seeds_mean_the_same_to_demo_and_analyze(text, seeds, command, monkeypatch):
    asked = caught(monkeypatch, "cler.runs.demo", "demo_jobs", 0)
    command("demo", "--seeds", text, "--device", "cpu")
    assert asked == [seeds]
    asked = caught(monkeypatch, "cler.paper.analysis", "analysis_jobs", 3)
    command("analyze", "figure1", "--seeds", text, "--device", "cpu")
    assert asked == [seeds]


def short():
    return make_settings(method="finetune", dataset="toy", tasks=2, width=1, batch=5)


@pytest.fixture
def demo(command, monkeypatch):
    """The demo, of two short runs."""
    monkeypatch.setattr("cler.runs.demo.demo_jobs", lambda seeds, out, device: make_jobs(short(), seeds, out))
    return lambda: command("demo", "--seeds", 2, "--workers", 1, "--device", "cpu")


def test_the_demo_shows_its_table_where_it_cannot_draw(demo, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = demo()
    assert code == 0
    assert "Finetune" in out
    assert "Accuracy after each task" not in out
    assert "figures need matplotlib: pip install matplotlib" in err


def test_the_demo_tells_what_failed_before_and_what_was_made_by_another_revision(demo, tmp_path, monkeypatch):
    assert demo().code == 0
    path, _ = (tmp_path / "demo").rglob("result.json")
    write_json(path, read_json(path) | {"failure": "the loss is not finite"})
    monkeypatch.setattr(METHODS["finetune"], "revision", 1000)
    code, out, err = demo()
    assert code == 1
    assert "stopped: the loss is not finite (to try again, delete demo/" in err
    assert "this is 1000: another output folder repeats them" in err
    assert "Finetune" in out


def test_analyze_without_matplotlib_trains_and_deletes_nothing(demo, command, tmp_path, monkeypatch):
    assert demo().code == 0
    jobs = make_jobs(short(), [0], tmp_path / "demo")
    monkeypatch.setattr("cler.paper.analysis.analysis_jobs", lambda *_, **__: jobs)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = command("analyze", "figure1", "--dataset", "toy", "--device", "cpu", "--redo")
    assert (code, out, err) == (2, "", "cler: figures need matplotlib: pip install matplotlib\n")
    assert jobs[0].result.exists()


def test_analyze_tells_what_was_made_by_another_revision(demo, command, tmp_path, monkeypatch):
    assert demo().code == 0
    jobs = make_jobs(short(), [0], tmp_path / "demo")
    monkeypatch.setattr(METHODS["finetune"], "revision", 1000)
    monkeypatch.setattr("cler.paper.analysis.analysis_jobs", lambda *_, **__: jobs)
    caught(monkeypatch, "cler.paper.analysis", "read_subjects", 0)
    _, _, err = command("analyze", "figure1", "--device", "cpu")
    assert f"1 run in {jobs[0].folder.parent} was made by finetune revision" in err
    assert "this is 1000: --redo (in Python redo=True) repeats it" in err


def test_reproduce_takes_how_many_seeds(command, monkeypatch):
    asked = []

    def look(*_, seeds, **__):
        asked.append(seeds)
        raise UsageError("that is all")

    monkeypatch.setattr("cler.paper.reproduce.take_inventory", look)
    command("reproduce", "table1", "--seeds", 3, "--device", "cpu", "--dry-run")
    assert asked == [3]
    _, _, err = command("reproduce", "table1", "--seeds", "3,7")
    assert "--seeds is the number of runs of each cell" in err


def caught(monkeypatch, module, function, position):
    """What a function is asked for, by its place among the arguments; it does nothing else."""
    asked = []

    def stop(*arguments, **_):
        asked.append(arguments[position])
        raise UsageError("that is all")

    monkeypatch.setattr(importlib.import_module(module), function, stop)
    return asked


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "--method", "er"), "the method is an argument: cler run er"),
        (("run", "--metod=er", "--lr", 1), "the method is an argument: cler run er"),
        (("tune", "--space", "lr=1..2", "--method"), "the method is an argument: cler tune METHOD"),
        (("bench", "er-ac"), "unexpected extra argument 'er-ac': write --method er-ace"),
        (("train", "er"), "No such command 'train'. Did you mean 'run'?"),
        (("run", "er-ace+jigsaw"), "'er-ace+jigsaw' is not a method alone: write er-ace --regularizer jigsaw"),
        (
            ("run", "er+rotation+barlow-twins+ema"),
            "'er+rotation+barlow-twins+ema' is not a method alone: write er --regularizer rotation+barlow-twins "
            "--teacher ema",
        ),
        (("run", "er", "--regularizer", "cler"), "--regularizer cler: CLER is jigsaw or rotation"),
    ],
)
def test_what_is_written_in_another_way_is_told(cler_here, arguments, says):
    assert cler_here(*arguments) == (2, "", f"cler: {says}\n")


OWN = """
import cler
from cler.methods.finetune import Finetune
from cler.metrics import METRICS, Metric

@cler.register
class Broken(Finetune):
    name = "broken"

    def observe(self, batch):
        return {}["nothing"]

@cler.register
class Lost(cler.Stream):
    name = "lost"

    def plan(self, labels, images, tasks, class_order):
        return {}["nowhere"]

@cler.register
class Clashing(Finetune):
    name = "clashing"

    @__import__("dataclasses").dataclass(frozen=True)
    class Options:
        lr: float = cler.setting(0.1, "Mine.")
"""


@pytest.fixture
def own(command, tmp_path, monkeypatch):
    """A command with a file of a user's own parts, which are broken."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "broken_parts", raising=False)
    (tmp_path / "broken_parts.py").write_text(OWN)
    return lambda *arguments: command(*arguments, *QUICK, "--import", "broken_parts.py")


def test_a_plan_that_fails_is_told_in_one_line(own, tmp_path):
    line = next(number for number, each in enumerate(OWN.splitlines(), 1) if "nowhere" in each)
    where = f"{tmp_path / 'broken_parts.py'}:{line}"
    told = f"cler: the stream Lost fails with KeyError: 'nowhere' ({where})\n"
    assert own("run", "finetune", "--stream", "lost") == (2, "", told)


def test_an_option_named_like_a_setting_of_all_runs_is_to_be_renamed(own):
    told = "cler: lr is already a setting of all runs: rename that of the method clashing\n"
    assert own("run", "clashing") == (2, "", told)


@pytest.mark.parametrize(("method", "advised"), [("broken", True), ("finetune", False)])
def test_after_a_bug_of_a_method_of_ones_own_a_line_says_how_to_test_it(command, own, monkeypatch, method, advised):
    def observe(self, batch):
        raise KeyError("nothing")

    monkeypatch.setattr("cler.methods.finetune.Finetune.observe", observe)
    with pytest.raises(KeyError) as bug:
        own("run", method)
    notes = getattr(bug.value, "__notes__", [])
    assert notes == ["`cler check broken --import broken_parts.py` may say more"] * advised


def test_a_metric_that_fails_is_told_with_its_run(command, tmp_path, monkeypatch):
    assert command("run", "finetune", *QUICK).code == 0
    monkeypatch.setitem(METRICS, "third", Metric(lambda rows: rows[7][0], "", "higher", "%"))
    (file,) = (tmp_path / "runs").rglob("result.json")
    told = f"cler: {file.relative_to(tmp_path)}: the metric third fails with IndexError: list index out of range\n"
    for arguments in (("run", "finetune", *QUICK), ("compare",), ("report",)):
        code, _, err = command(*arguments)
        assert (code, err.splitlines(keepends=True)[-1]) == (2, told)
    code, _, err = command("run", "finetune", "--seed", 1, *QUICK)
    assert (code, err.endswith("the metric third fails with IndexError: list index out of range\n")) == (2, True)


def test_data_of_ones_own_that_is_there_is_not_said_to_be_missing(command, tmp_path):
    (tmp_path / "empty").mkdir()
    for verb in ("check", "get"):
        for folder, state in (("empty", "unusable"), ("nowhere", "missing")):
            code, out, _ = command("data", verb, f"folder:{folder}")
            assert (code, out.startswith(f"folder:{folder}: {state} - ")) == (1, True)
