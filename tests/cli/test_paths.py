"""Paths that cannot be, or may not be looked at: one line and exit code 2, wherever a command takes a path."""

import io
import os
import sys
from pathlib import Path

import pytest

from cler.cli import main
from cler.files import write_json
from cler.runs.results import make_result
from hostile import NEEDED, paths_of_commands

USES = sorted(paths_of_commands())
WRONG = {
    "long": ("x" * 5000, "File name too long"),
    "long folders": ("x/" * 2500 + "x", "File name too long"),
    "nobody's": ("~nosuchuser/x", "there is no such user"),
    "null": ("a\0b", "null"),
    "closed": ("closed", "Permission denied"),
    "in closed": ("closed/x", "Permission denied"),
}


@pytest.fixture
def cler(monkeypatch, capfd):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["cler", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return call


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a result, a folder of images, and one that may not be looked into, even by root."""
    rows = [[50.0], [40.0, 50.0]]
    settings = {"method": "er", "regularizer": "none", "dataset": "toy", "tasks": 2, "buffer": 9, "epochs": 1}
    result = make_result(settings, 0, {"class_il": rows, "task_il": rows}, 1.0, 9, {})
    write_json(tmp_path / "results" / "result.json", result)
    (tmp_path / "images").mkdir()
    (tmp_path / "closed").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def guarded(module, name, itself):
        real = getattr(module, name)

        def call(path, *arguments, **options):
            parts = () if isinstance(path, int) else Path(os.fsdecode(path)).absolute().relative_to("/").parts
            if "closed" in parts[:-1] or (itself and parts[-1:] == ("closed",)):
                raise PermissionError(13, "Permission denied", path)
            return real(path, *arguments, **options)

        monkeypatch.setattr(module, name, call)

    for name in ("scandir", "listdir", "open", "mkdir"):
        guarded(os, name, itself=True)
    for name in ("stat", "lstat"):
        guarded(os, name, itself=False)
    guarded(io, "open", itself=True)
    return tmp_path


def test_all_commands_are_walked_over():
    assert {name for name, _ in USES} == {
        "analyze", "bench", "check", "compare", "data check", "data get", "data list", "demo", "frontier", "learn",
        "methods", "report", "reproduce", "run", "tune",
    }  # fmt: skip
    assert len(USES) >= 20


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("command", "flag"), USES)
def test_a_path_that_cannot_be_is_refused_in_one_line(cler, folder, command, flag, wrong):
    value, says = WRONG[wrong]
    if ending := {"--import": ".py", "--figure": ".png"}.get(flag):
        value = f"{value}/x{ending}" if wrong == "closed" else f"{value}{ending}"
    given = [flag, value] if flag else [value]
    needed = NEEDED.get(command, []) if flag else []
    needed = [*needed, "--dataset", "cifar10"] if command in ("run", "tune") and flag == "--data-dir" else needed
    code, out, err = cler(*command.split(), *needed, *given)
    assert (code, out) == (2, "")
    assert err.startswith("cler: ")
    assert says in err or (wrong == "closed" and "Is a directory" in err)
    assert err.count("\n") == 1
    assert len(err) < 400
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["result.json"]


@pytest.mark.parametrize("variable", ["CLER_DATA", "XDG_CACHE_HOME"])
def test_so_is_one_of_the_environment(cler, folder, monkeypatch, variable):
    monkeypatch.setenv(variable, "~nosuchuser/x")
    code, _, err = cler("data", "list")
    assert code == 2
    assert "there is no such user" in err


def test_results_beside_a_folder_that_cannot_be_read_are_compared(cler, folder):
    (folder / "closed").rename(folder / "results" / "closed")
    code, out, err = cler("compare", "results")
    assert code == 0
    assert err == "skipped: cannot read results/closed: Permission denied\n"
    assert "40.00" not in err
    assert "45.00" in out


@pytest.fixture
def deep(folder):
    """Folders within folders, more than Python would call itself."""
    os.chdir("results")
    for _ in range(1200):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(folder)
    yield
    os.chdir(os.path.join("results", *["d"] * 1200))
    for _ in range(1200):
        os.chdir("..")
        os.rmdir("d")
    os.chdir(folder)


@pytest.mark.usefixtures("deep")
def test_folders_that_lead_into_themselves_and_very_deep_ones_are_no_trouble(cler, folder):
    (folder / "results" / "loop").symlink_to(folder / "results")
    (folder / "results" / "self").mkdir()
    (folder / "results" / "self" / "result.json").symlink_to("result.json")
    code, out, err = cler("compare", "results")
    assert code == 0
    assert err == "skipped: cannot read results/self/result.json: Too many levels of symbolic links\n"
    assert "45.00" in out


def test_a_system_without_a_place_for_temporary_files(cler, monkeypatch):
    def nowhere(*_, **__):
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("cler.runs.scan.Scan.update", nowhere)
    assert cler("report", ".") == (2, "", "cler: No usable temporary directory found in ['/tmp']\n")
