"""The attack of `tools/attack.py`: how many cases it has, and whether it would notice."""

import importlib.util
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import cler.cli
from cler.data import images

SCRIPT = Path(__file__).parents[2] / "tools" / "attack.py"
pytestmark = [
    pytest.mark.skipif(not SCRIPT.exists(), reason="tools/ is not in the source distribution"),
    pytest.mark.skipif(os.name != "posix", reason="it needs the users, limits and signals of Unix"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # beside threads of other tests
]


@pytest.fixture
def attack(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.chdir(tmp_path)
    specification = importlib.util.spec_from_file_location("attack", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "attack", module)
    specification.loader.exec_module(module)
    return module


def test_there_are_thousands_of_cases_each_with_a_name(attack, monkeypatch):
    monkeypatch.setattr(images.DATASETS, "_entries", dict(images.DATASETS._entries))
    names = {family: [case.name for case in cases()] for family, cases in attack.FAMILIES.items()}
    assert sum(map(len, names.values())) > 4000
    wanted = {"signals", "limits", "pairs", "streams", "paths", "archives", "datasets", "records", "watching"}
    assert wanted <= names.keys()
    assert all(len(set(each)) > 0.95 * len(each) > 0 for each in names.values())


def fail():
    raise KeyError("x")


MISBEHAVING = {
    "a traceback": (fail, "KeyError"),
    "another code": (lambda: sys.exit(120), "ended with 120"),
    "an order to the terminal": (lambda: print("\x1b[2J"), "printed ['\\x1b']"),
    "no line of ours": (lambda: sys.exit(print("oh", file=sys.stderr) or 2), "no line of ours at the end: 'oh'"),
    "a changed file": (lambda: Path("precious").write_text("x"), "the precious file was changed"),
    "a temporary file": (lambda: Path("x.tmp").touch(), "left x.tmp"),
    "a file beside": (lambda: Path("../x").touch(), "left {'x'} beside its folder"),
}


@pytest.mark.parametrize("wrong", MISBEHAVING)
def test_it_would_notice(wrong, attack, tmp_path):
    main, says = MISBEHAVING[wrong]
    guard = SimpleNamespace(on=nullcontext, noted=[])
    outcome, said = attack.try_case(attack.Case("x", ()), tmp_path, guard, main)
    assert outcome == "found"
    assert says in said


def test_nothing_is_found_where_nothing_is_wrong(attack, monkeypatch, tmp_path):
    guard = SimpleNamespace(on=nullcontext, noted=[])
    assert attack.try_case(attack.Case("x", ()), tmp_path, guard, lambda: print("é"))[0] == "accepted"
    monkeypatch.setattr(cler.cli, "main", lambda: print("é"))
    for wrong in (lambda folder: attack.Command(folder, ()).wrong(0), attack.in_shell("exit 1", 1)):
        assert attack.Trial("x", wrong).tried(tmp_path) == ("accepted", "")


@pytest.mark.parametrize(
    ("main", "says"),
    [
        (fail, "KeyError"),
        (lambda: sys.exit(120), "ended with 120"),
        (lambda: os.kill(os.getpid(), 9), "ended with -9"),
        (lambda: time.sleep(1000), "hangs"),
    ],
    ids=["traceback", "code", "death", "hang"],
)
def test_it_would_notice_in_a_process(main, says, attack, monkeypatch, tmp_path):
    monkeypatch.setattr(cler.cli, "main", main)
    monkeypatch.setattr(attack, "HANG", 0.5 if says == "hangs" else 600.0)
    outcome, said = attack.Trial("x", lambda folder: attack.Command(folder, ()).wrong(0)).tried(tmp_path)
    assert outcome == "found"
    assert says in said


@pytest.mark.parametrize(
    ("line", "says"), [("exit 120", "120"), ("echo 'Traceback (most recent call last)' >&2", "a traceback")]
)
def test_it_would_notice_in_a_shell(line, says, attack, tmp_path):
    outcome, said = attack.Trial("x", attack.in_shell(line, 0)).tried(tmp_path)
    assert outcome == "found"
    assert says in said


def test_ctrl_c_is_pythons_own_business_only_until_the_command_is_imported(attack):
    start = 'Traceback (most recent call last):\n  File "cler", line 5, in <module>\n    from cler.cli import main\n'
    assert attack.judge(-2, frozenset({-2}), "", start + "KeyboardInterrupt\n") == []
    assert attack.judge(-2, frozenset({-2}), "", start + "ImportError: no\n")
    assert attack.judge(-2, frozenset({-2}), "", start + "  line 9, in main\n    run()\nKeyboardInterrupt\n")
