"""The examples and the page about the drop-in regularizer run as they stand, on fewer images of the sample."""

import contextlib
import importlib.util
import re
import runpy
import sqlite3
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cler
from cler.data.images import DATASETS
from cler.runs.backends import local
from toys import EveryTenth

ROOT = Path(__file__).parent.parent
LIBRARIES = {"plain_pytorch": "torch", "timm_model": "timm", "avalanche_plugin": "avalanche"}
"""The examples with a loop of their own, and what each needs beside cler."""
TRAINING = {"train_from_python": "er-ace", "own_method_and_network": "dark-replay"}
"""The examples that call `cler.train`, and the method that each trains with and without CLER."""
TRACKER = "own_tracker"
"""The example that follows training by a callback."""
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "drop-in.md").read_text("utf-8"), re.DOTALL)


def need(library):
    """Skip where a library, or the torchvision that it needs, cannot be imported."""
    for name in () if library == "torch" else ("torchvision", library):
        spec = importlib.util.find_spec(name)
        if not spec or subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode:
            pytest.skip(f"{name} cannot be imported")


def test_every_example_is_tested_and_short():
    examples = [*(ROOT / "examples").glob("*.py")]
    assert {path.stem for path in examples} == LIBRARIES.keys() | TRAINING.keys() | {TRACKER}
    assert all(len(path.read_text("utf-8").splitlines()) < 70 for path in examples)


@pytest.fixture
def run_example(monkeypatch, capsys, tmp_path):
    """Runs an example as a program, with a tenth of the sample and without worker processes; what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setitem(DATASETS._entries, "cifar10-sample", EveryTenth(DATASETS["cifar10-sample"]))
    monkeypatch.setattr(local, "workers_that_fit", lambda *_: 1)

    def run(name):
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", LIBRARIES)
def test_example_runs(name, run_example):
    need(LIBRARIES[name])
    losses = [float(number) for number in re.findall(r"(?i)loss\S* =? ?(\d+\.\d+)", run_example(name))]
    assert len(losses) > 1
    assert all(0 < loss < 10 for loss in losses)


@pytest.mark.parametrize("name", TRAINING)
def test_example_that_trains_runs(name, run_example, tmp_path):
    printed = run_example(name)
    rows = {row.settings["regularizer"]: row for row in cler.results(tmp_path / "runs")}
    assert {row.settings["method"] for row in rows.values()} == {TRAINING[name]}
    assert rows.keys() == {"none", "jigsaw"}
    for row in rows.values():
        assert row.seeds == [0, 1]
        assert f"{row.final_accuracy['class_il'].mean:.2f}±" in printed
    assert rows["jigsaw"].gain is not None
    assert "p = " in printed
    if name == "train_from_python":
        assert "shape: (2, 5, 5)" in printed


def test_example_that_tracks_has_the_curves_and_metrics_of_every_run(run_example, tmp_path):
    printed = run_example(TRACKER)
    (row,) = cler.results(tmp_path / "runs")
    with contextlib.closing(sqlite3.connect(tmp_path / "curves.sqlite")) as database:
        for result in row.results:
            label = f"er-ace buffer 200, seed {result.seed}"
            final = "select value from metrics where run = ? and name = 'accuracy' and scenario = 'class_il'"
            assert database.execute(final, (label,)).fetchall() == [(result.metrics["accuracy"]["class_il"],)]
            curve = "select value from points where run = ? and name = 'accuracy/class_il' order by step"
            found = [value for (value,) in database.execute(curve, (label,))]
            means = [sum(accuracies) / len(accuracies) for accuracies in result.curves["class_il"]]
            assert found == pytest.approx(means, abs=1e-3)
            assert f"{label} {result.steps} accuracy/class_il {found[-1]}" in printed
        terms = database.execute("select distinct name from points where name like 'loss/%'").fetchall()
        assert sorted(terms) == [("loss/replay",), ("loss/stream",)]
        assert ("er-ace buffer 200, seed 1", "batch", "100") in database.execute("select * from settings").fetchall()


class Transformer(nn.Module):
    """Four blocks of attention between patches of 4×4."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        blocks = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(4)]
        self.blocks = nn.Sequential(*blocks)

    def forward(self, images):
        return self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """What a reader of the page has: a network, images, and one process of a parallel training."""
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    images = torch.randn(4, 3, 8, 8)
    network = cler.ResNet18(10, width=4)
    names = {"images": images, "augmented": images.flip(3), "labels": torch.arange(4), "network": network}
    yield {"torch": torch, "nn": nn, "F": F, "cler": cler, "transformer": Transformer(), **names}
    torch.distributed.destroy_process_group()
    torch._dynamo.reset()


def test_the_code_of_the_page_runs_in_order(reader):
    blocks = [block for block in BLOCKS if "avalanche" not in block]
    assert len(blocks) == len(BLOCKS) - 1
    for block in blocks:
        reader["loss"] = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch")  # about themselves
            exec(block, reader)
        assert reader["loss"] is None or reader["loss"].isfinite()
    assert torch.load("checkpoint.pt")["head"].keys() == reader["regularizer"].state_dict().keys()


def test_the_code_of_the_page_for_avalanche_runs(reader):
    need("avalanche")
    (block,) = [block for block in BLOCKS if "avalanche" in block]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(block, reader)
    assert reader["strategy"].plugins
