"""The files in CONTRIBUTING.md work as they stand, in a project outside the package that is installed beside it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import cler

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
FILES = dict(
    zip(
        ("dark_replay.py", "small_features.py", "small_cnn.py", "squares.py"),
        re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL),
        strict=True,
    )
)
(PROJECT,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The files in a folder, as an installed distribution with an entry point for each; on the path, not in cler's."""
    folder = tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    about = tomllib.loads(PROJECT)["project"]
    points = about["entry-points"]["cler.plugins"]
    assert points == {"mine": "dark_replay"}
    points |= {Path(name).stem: Path(name).stem for name in FILES if name != "dark_replay.py"}
    information = folder / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    lines = "".join(f"{name} = {module}\n" for name, module in points.items())
    (information / "entry_points.txt").write_text(f"[cler.plugins]\n{lines}")
    return folder


@pytest.fixture
def command(project, tmp_path):
    """Run Python with these arguments, beside the project if that is installed."""

    def run(*arguments, installed=True):
        path = [str(Path(cler.__file__).parents[1]), *([str(project)] if installed else [])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
        started = [sys.executable, *map(str, arguments)]
        done = subprocess.run(started, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_what_is_installed_is_listed(command):
    listed = json.loads(command("-m", "cler", "methods", "--json"))
    assert listed["methods"]["dark-replay"]["settings"]["alpha"]["default"] == 0.5
    assert listed["methods"]["dark-replay"]["learns_without_tasks"]
    assert "small-features" in listed["regularizers"]
    assert "small-cnn" in listed["networks"]


def test_all_of_it_is_trained_in_two_worker_processes(command, tmp_path):
    parts = ["--regularizer", "small-features", "--network", "small-cnn", "--dataset", "squares", "--buffer", 40]
    usual = ["--batch", 40, "--seeds", 2, "--workers", 2, "--device", "cpu"]
    assert "Dark replay" in command("-m", "cler", "run", "dark-replay", *parts, *usual, "--set", "alpha=0.3")
    results = [json.loads(path.read_text()) for path in tmp_path.glob("runs/**/result.json")]
    assert sorted(each["seed"] for each in results) == [0, 1]
    assert all(each["settings"]["alpha"] == 0.3 and each["settings"]["augment"] == "crop" for each in results)


def test_method_and_regularizer_keep_their_promises(command):
    told = command("-c", "import cler; print(cler.check('dark-replay'), cler.check('small-features'), sep='\\n')")
    assert "✗" not in told
    for name in ("dark-replay", "small-features"):
        assert f"{name} keeps all of its" in told


def test_the_network_keeps_its_promises_and_need_not_be_installed(command, project):
    check = ["-m", "cler", "check", "small-cnn", "--import", project / "small_cnn.py", "--json"]
    report = json.loads(command(*check, installed=False))
    assert report["passed"]
    assert all(each["kept"] for each in report["promises"])
    assert (report["kind"], report["name"]) == ("network", "small-cnn")
