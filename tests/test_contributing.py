"""The files in CONTRIBUTING.md work as they stand, in a project outside the package that is installed beside it."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import cler
from cler.config.registry import load_plugins

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
FILES = dict(
    zip(
        ("dark_replay.py", "small_features.py", "mean_teacher.py", "small_cnn.py", "returning.py", "squares.py"),
        re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL),
        strict=True,
    )
)
(PROJECT,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The files in a folder, as an installed distribution with an entry point for each but the dataset."""
    folder = tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    about = tomllib.loads(PROJECT)["project"]
    points = about["entry-points"]["cler.plugins"]
    assert points == {"mine": "dark_replay"}
    points |= {
        "regularizer": "small_features",
        "teacher": "mean_teacher",
        "network": "small_cnn",
        "stream": "returning",
    }
    information = folder / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    lines = "".join(f"{name} = {module}\n" for name, module in points.items())
    (information / "entry_points.txt").write_text(f"[cler.plugins]\n{lines}")
    return folder


@pytest.fixture
def beside(project, monkeypatch):
    """This process with the project on its path, and nothing of it registered yet."""
    monkeypatch.syspath_prepend(project)
    load_plugins.cache_clear()
    yield
    load_plugins.cache_clear()
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)


@pytest.mark.usefixtures("beside")
def test_what_is_installed_is_listed(cler_here):
    listed = json.loads(cler_here("methods", "--json").out)
    assert listed["methods"]["dark-replay"]["settings"]["alpha"]["default"] == 0.5
    assert listed["methods"]["dark-replay"]["learns_without_tasks"]
    assert "small-features" in listed["regularizers"]
    assert "mean-teacher" in listed["teachers"]
    assert "small-cnn" in listed["networks"]
    assert "returning" in listed["streams"]


PROGRAM = """
import cler, squares

print("the program runs")
runs = cler.train(
    "dark-replay", regularizer="small-features", network="small-cnn", dataset="squares", buffer=40, batch=40, alpha=0.3,
    stream="returning", spread=0.2, seeds=2, workers=2, device="cpu",
)
print(len(runs))
"""


def test_a_program_without_a_guard_trains_all_of_it_in_two_worker_processes(project, tmp_path):
    """They know what is installed, and import the module of the dataset, but do not run the program again."""
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(Path(cler.__file__).parents[1]), str(project)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "the program runs\n2\n"), done.stderr
    assert "no other process can import" not in done.stderr
    results = [json.loads(path.read_text()) for path in tmp_path.glob("runs/**/result.json")]
    assert sorted(each["seed"] for each in results) == [0, 1]
    assert all(each["settings"]["alpha"] == 0.3 and each["settings"]["augment"] == "crop" for each in results)


def test_a_plug_in_that_fails_is_told_in_a_line_and_the_command_goes_on(project, tmp_path):
    shutil.copytree(project, tmp_path / "site")
    (tmp_path / "site" / "small_cnn.py").write_text("1 / 0\n")
    path = os.pathsep.join([str(Path(cler.__file__).parents[1]), str(tmp_path / "site")])
    command = [sys.executable, "-m", "cler", "methods", "--json"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    told = "cler: the plug-in network (small_cnn) cannot be imported: ZeroDivisionError: division by zero\n"
    assert (done.returncode, done.stderr) == (0, told)
    listed = json.loads(done.stdout)
    assert "dark-replay" in listed["methods"]
    assert "small-cnn" not in listed["networks"]


@pytest.mark.usefixtures("beside", "shallow")
@pytest.mark.parametrize("name", ["dark-replay", "small-features", "mean-teacher"])
def test_method_regularizer_and_teacher_keep_their_promises(name):
    told = str(cler.check(name))
    assert "✗" not in told
    assert f"{name} keeps all of its" in told


@pytest.mark.usefixtures("beside")
def test_the_network_keeps_its_promises_and_need_not_be_installed(cler_here, project, monkeypatch):
    monkeypatch.setattr("cler.config.registry.entry_points", lambda group: [])
    answer = cler_here("check", "small-cnn", "--import", project / "small_cnn.py", "--json")
    report = json.loads(answer.out)
    assert (answer.code, report["passed"]) == (0, True)
    assert all(each["kept"] for each in report["promises"])
    assert (report["kind"], report["name"]) == ("network", "small-cnn")


@pytest.mark.usefixtures("beside")
def test_classes_come_back_in_the_stream_and_no_image_twice(project):
    plan = importlib.import_module("returning").Returning(importlib.import_module("squares").Squares().load(project), 2)
    first, second = (plan.train(task) for task in range(2))
    assert set(first.labels.tolist()) == {0, 1}
    assert second.labels.bincount().tolist()[2:] == [200, 200]
    assert int((second.labels < 2).sum()) == 20
    assert len(torch.cat([first.members, second.members]).unique()) == 800
    with pytest.raises(cler.UsageError, match=r"^returning is a stream: check tests methods, regul"):
        cler.check("returning")
