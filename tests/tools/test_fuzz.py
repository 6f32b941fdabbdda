"""The fuzzer of `tools/fuzz.py`: some cases, its whole corpus, and whether it would notice."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cler.data import images

SCRIPT = Path(__file__).parents[2] / "tools" / "fuzz.py"
GOOD = sorted(SCRIPT.with_name("fuzz_corpus").glob("*/good-*"))
FUZZ = [sys.executable, SCRIPT, "--seconds", "600", "--hang", "600"]  # as slow as the machine is
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="tools/ is not in the source distribution")

MISBEHAVING = """
import os, time
import fuzz

def crash(name, content, folder): os.abort()
def hang(name, content, folder):
    while True: time.sleep(60)
def fail(name, content, folder): raise KeyError("x")
def chatter(name, content, folder): print("here", flush=True); return []
def warn(name, content, folder): fuzz.warnings.warn("odd"); return []
def two_lines(name, content, folder): return ["one\\ntwo"]
def write_outside(name, content, folder): (folder.parent.parent / "x").write_text(""); return []
def write_beside(name, content, folder): open("x", "w"); return []
def link_outside(name, content, folder):
    os.symlink("../..", folder / "x")
    (folder / "x" / "y").mkdir()
    return []
def run_a_program(name, content, folder): os.system("true"); return []
def take_memory(name, content, folder): bytearray(fuzz.MEMORY + fuzz.MEMORY // 2); return []
def take_time(name, content, folder): elapsed.append(fuzz.SECONDS + 1); return []
def behave(name, content, folder): (folder / "x").write_text(""); return []

elapsed = []
fuzz.processor_time, fuzz.MEMORY = lambda: sum(elapsed), 1 << 28
names = "crash hang fail chatter warn two_lines write_outside write_beside link_outside run_a_program take_memory"
for name in [*names.split(), "take_time", "behave"]:
    read, fuzz.HANG = globals()[name], 0.5 if name == "hang" else 600.0
    (outcome,) = fuzz.outcomes(fuzz.Kind("settings", read, fuzz.BYTES, 1), 1, 0)
    print(name, *outcome)
"""


@pytest.fixture(scope="module")
def fuzz():
    spec = importlib.util.spec_from_file_location("fuzz", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fuzz"]


def test_some_cases_and_the_corpus():
    done = subprocess.run([*FUZZ, "--cases", "120", "--seed", "7"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    cases, accepted, refused, findings = map(int, re.findall(r"\d+", done.stdout.splitlines()[-1]))
    assert cases >= 120
    assert (accepted + refused, findings) == (cases, 0)
    assert accepted >= len(GOOD)
    assert refused > 60


@pytest.mark.parametrize("path", GOOD, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_is_good_in_the_corpus_is_taken(fuzz, path, tmp_path, monkeypatch):
    monkeypatch.setitem(images.DATASETS._entries, "noise", fuzz.images.InMemory(fuzz.noise()))
    (kind,) = (kind for kind in fuzz.KINDS if kind.name == path.parent.name)
    assert kind.read(path.name, path.read_bytes(), tmp_path) == [], "make the corpus anew: fuzz_corpus/make.py"


def test_the_same_seed_gives_the_same_cases(fuzz):
    for kind in fuzz.KINDS:
        some = range(40, 50)
        cases = [fuzz.make_case(kind, number, 0) for number in some]
        assert cases == [fuzz.make_case(kind, number, 0) for number in some]
        assert cases != [fuzz.make_case(kind, number, 1) for number in some]


def test_it_would_notice():
    done = subprocess.run([sys.executable, "-c", MISBEHAVING], capture_output=True, text=True, cwd=SCRIPT.parent)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert told.pop("behave") == "accepted "
    assert len(told) == 12, done.stderr
    expected = {
        "crash": "died with -6", "hang": "hangs", "fail": "KeyError at", "chatter": "printed b'here", "warn": "odd",
        "two_lines": "not one printable line", "write_outside": "open outside", "write_beside": "beside the folder",
        "link_outside": "mkdir outside", "run_a_program": "os.system", "take_memory": "MiB", "take_time": " s",
    }  # fmt: skip
    for name, says in expected.items():
        assert told[name].startswith("found ")
        assert says in told[name], name
