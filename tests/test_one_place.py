"""A setting and an optimizer that are added by one line each appear everywhere, and no result changes.

The line goes into a copy of the package, which other processes then use. (A metric: tests/cli/test_compare.py.)
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cler
from cler.config.comparing import completed
from cler.runs.compare import compare
from cler.runs.results import find_results

TESTS = Path(__file__).parent
RESULTS = TESTS.parent / "results"
SETTING = '    sparkle: int = setting(7, "How much it sparkles.", least=0, absent=3)\n'
OPTIMIZER = (
    'OPTIMIZERS.register("adamax", OptimizerEntry(torch.optim.Adamax, frozenset({"step", "exp_avg", "exp_inf"})))\n'
)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder of a copy of the package with a line more in two of its files."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(Path(cler.__file__).parent, folder / "cler", copy_function=shutil.copy)
    insert(folder / "cler/config/settings.py", before="    options: dict[str, Any] = field(", line=SETTING)
    insert(folder / "cler/methods/optimizers.py", before="\n\ndef find_optimizer(", line=OPTIMIZER)
    return folder


def insert(path, *, before, line):
    head, found, tail = path.read_text().partition(before)
    assert found
    path.write_text(head + line + found + tail)


def call(package, folder, program, *arguments):
    """What a program says in JSON about the copy of the package."""
    own = {"PYTHONPATH": f"{package}{os.pathsep}{TESTS}", "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ASKING = """
import contextlib, io, json, pathlib, sys, torch, cler, toys
from cler.cli import main
from cler.config.reading import read_config
torch.set_num_threads(1)
toys.register()


def told(*arguments):
    sys.argv = ["cler", *arguments]
    with io.StringIO() as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        with contextlib.suppress(SystemExit):
            main()
        return " ".join(out.getvalue().split())


changes = {"sparkle": 5, "optimizer": "adamax"}
file = pathlib.Path("settings.toml")
file.write_text("".join(f"{name} = {json.dumps(value)}\\n" for name, value in changes.items()))
assert read_config(file) == changes
runs = cler.train("er-ace", dataset="toy", tasks=2, width=2, device="cpu", workers=1, verbose=False, **changes)
images, labels = toys.shades().train_images[:20], toys.shades().train_labels[:20].tolist()
learner = cler.Learner(image_size=8, width=2, buffer=20, device="cpu", **changes).partial_fit(images, labels)
learner.save("learner")
loaded = cler.Learner.load("learner")
for each in (learner, loaded):
    each.partial_fit(images, labels)
assert (learner.predict_proba(images) == loaded.predict_proba(images)).all()
assert loaded.get_params() == learner.get_params()
result = json.loads(next(pathlib.Path("runs").rglob("result.json")).read_text())
print(json.dumps({
    "known": [result["settings"], runs.settings, loaded.get_params()],
    "help": [told("run", "--help"), told("learn", "--help")],
    "refused": told("run", "--sparkle", "-1"),
}))
"""


@pytest.fixture(scope="module")
def answers(package, tmp_path_factory):
    return call(package, tmp_path_factory.mktemp("empty"), ASKING)


def test_a_setting(answers):
    for told in answers["help"]:
        assert "--sparkle" in told
        assert "How much it sparkles." in told
    assert [each["sparkle"] for each in answers["known"]] == [5, 5, 5]
    assert answers["refused"] == "cler: --sparkle must be at least 0, not -1"


def test_an_optimizer(answers):
    for told in answers["help"]:
        assert "sgd, adam, adamw, adamax" in told
    assert [each["optimizer"] for each in answers["known"]] == ["adamax"] * 3


READING = """
import json, sys
from cler.config.comparing import completed
from cler.runs.compare import compare
from cler.runs.results import find_results
found, complaints = find_results([sys.argv[1]])
rows = compare(found).groups
print(json.dumps([
    complaints,
    {str(run.path): completed(json.loads(run.path.read_text())["settings"]) for run in found},
    [
        [row.label, row.seeds, row.metrics["accuracy"]["class_il"].mean, row.gain and row.gain["class_il"].points]
        for row in rows
    ],
]))
"""


@pytest.mark.skipif(not RESULTS.exists(), reason="results/ is not in the source distribution")
def test_committed_results_gain_only_what_was_absent(package, tmp_path):
    complaints, settings, rows = call(package, tmp_path, READING, RESULTS)
    found, now = find_results([RESULTS])
    assert complaints == now
    assert len(settings) == len(found) > 0
    for run in found:
        before = completed(json.loads(run.path.read_text())["settings"])
        assert settings[str(run.path)] == before | {"sparkle": 3}
    assert [row[:2] for row in rows] == [[row.label, list(row.seeds)] for row in compare(found).groups]
    for row, ours in zip(rows, compare(found).groups, strict=True):
        assert row[2:] == [ours.metrics["accuracy"]["class_il"].mean, ours.gain and ours.gain["class_il"].points]
