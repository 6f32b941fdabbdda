"""`cler tune` in this process, with a sampler of our own: from a space to stamped results."""

import json
import re

import pytest

import cler
import toys
from cler.config.reading import imports_in
from cler.tune import sampler

QUICK = ("--width", 1, "--device", "cpu", "--workers", 1)
OF_RUN = ("--dataset", "toy", "--tasks", 4, "--batch", 5, *QUICK)


@pytest.fixture
def command(cler_here, monkeypatch):
    toys.register()
    monkeypatch.setattr(sampler, "propose", lambda space, before, count: [{"lr": 0.1 / (n + 1)} for n in range(count)])
    return cler_here


def test_results_of_tuned_settings_say_so_and_tell_the_tasks_that_tuning_did_not_see(command, tmp_path):
    arguments = ("tune", "finetune", *OF_RUN, "--space", "lr=1e-3..0.3:log", "--trials", 2)
    code, out, err = command(*arguments)
    assert code == 0, err
    assert out.splitlines()[-1] == "cler run --config tune/best.toml --seeds 1..10"  # not seed 0, of the trials
    assert re.search(
        r"^trials 1 to 2 of 2 after 2 tasks; best so far: lr [\d.]+: [\d.]+ % on held-out images$", err, re.M
    )
    assert "1 of 2 trials continues to task 3" in err.splitlines()
    again = command(*arguments, "--json")
    found = json.loads(again.out)
    assert found["rungs"] == [2, 3]
    assert sorted(len(trial["scores"]) for trial in found["trials"]) == [1, 2]
    assert "2 of 2 trials are already in tune" in again.err
    assert re.search(r"^\d+ steps: [\d.]+ per second", err, re.MULTILINE)
    assert "per second" not in again.err
    assert (tmp_path / "tune" / "study.png").stat().st_size > 0

    code, out, err = command("run", "--config", "tune/best.toml", *QUICK)
    assert code == 0, err
    (path,) = (tmp_path / "runs").rglob("result.json")
    result = json.loads(path.read_text())
    assert result["tuned"]["select_on"] == "first-tasks:3"
    assert result["settings"]["validate"] == 0
    lr = result["settings"]["lr"]
    last = {name: rows[-1][3] for name, rows in result["accuracy"].items()}
    told = (
        f"Finetune: lr {lr} tuned on first-tasks:3 of toy (2 trials, seed 0); on the tasks from 4 on, which tuning "
        f"did not see, accuracy is {last['class_il']:.2f} class-incremental, {last['task_il']:.2f} task-incremental"
    )
    assert told in out.replace("\n", " ")
    group = json.loads(command("compare", "runs", "--json").out)["groups"][0]
    assert group["tuned"] == result["tuned"]
    assert {name: group[name]["unseen_by_tuning"]["mean"] for name in last} == last
    assert told in command("compare", "runs", "--markdown").out
    assert command("report", "runs", "-o", "report").code == 0
    for name in ("index.html", "report.md", "report.tex"):
        assert told.replace("_", r"\_" if name.endswith("tex") else "_") in (tmp_path / "report" / name).read_text()
    assert (
        f"lr {lr} tuned on first-tasks:3 of toy (2 trials, seed 0)" in (tmp_path / "report" / "results.csv").read_text()
    )
    table = cler.results(tmp_path / "runs")
    assert told in " ".join(repr(table).split())
    assert told in table._repr_html_()

    result["settings"]["class_order"] = "seed"
    path.write_text(json.dumps(result))
    out = " ".join(command("compare", "runs").out.split())
    assert "tuning may have seen classes of every task here, because each seed orders them differently" in out
    assert "which tuning did not see" not in out

    code, _, err = command("run", "--config", "tune/best.toml", *QUICK, "--tasks", 2)
    assert (code, err.splitlines()[-1]) == (
        2,
        "cler: --tasks decides which tasks the tuning of tune/best.toml has seen: leave it out, or tune with it",
    )
    code, out, err = command("run", "--config", "tune/best.toml", *QUICK, "--lr", f"0.2,{lr}", "--out", "other")
    assert code == 0, err
    found = [json.loads(path.read_text()) for path in (tmp_path / "other").rglob("result.json")]
    assert {each["settings"]["lr"]: "tuned" in each for each in found} == {0.2: False, lr: True}
    assert out.count("tuned on") == 1


def test_the_settings_file_of_the_winner_names_the_parts_of_a_user(command, tmp_path, monkeypatch):
    (tmp_path / "tuned mine.py").write_text(
        "import cler\nfrom cler.methods.er import ExperienceReplay\n\n\n"
        "@cler.register\nclass Mine(ExperienceReplay):\n    name = 'tuned-mine'\n"
    )
    (tmp_path / "tuned_module.py").write_text("")
    own = ("tune", "tuned-mine", "--import", "tuned mine.py", "--import", "tuned_module")
    own += ("--buffer", 10, "--select-on", "first-tasks:1")
    code, out, err = command(*own, *OF_RUN, "--space", "lr=1e-3..0.3:log", "--trials", 1)
    assert code == 0, err
    assert out.splitlines()[-1] == "cler run --config tune/best.toml --seeds 1..10"
    best = tmp_path / "tune" / "best.toml"
    assert imports_in(best) == [str(tmp_path / "tuned mine.py"), "tuned_module"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command("run", "--config", best, *QUICK).code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--space", "lr=1..2", "--lr", 0.1], "--space lr is given twice"),
        (["--space", "lr=1..2", "--buffer", "100,200"], "--buffer takes one value; to tune it, write --space"),
        (["--space", "lr=1..2", "--validate", 0], "--validate must be above 0"),
        (["--space", "lr=1..2", "--select-on", "luck"], "--select-on must be first-tasks:3"),
        (["--space", "lr=1..2", "--select-on", "first-tasks:9"], "--select-on first-tasks:9: toy has 4 tasks here"),
        (["--space", "buffer=5..50,replay_batch=4..20"], "--buffer 5 is smaller than the replay batch of 20"),
        ([], "Missing option '--space'"),
    ],
)
def test_mistakes_are_told_in_one_line(command, arguments, says):
    code, _, err = command("tune", "er", *OF_RUN, *arguments)
    assert code == 2
    assert says in err
    assert len(err.splitlines()) == 1
