"""What all tests share: one thread, the golden numbers with what they are numbers of, results of finished runs."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from cler import Equivariant
from cler.config import registry
from cler.metrics import METRICS
from cler.pretext import Jigsaw, Rotation
from cler.report.content import make_report
from cler.runs.compare import compare
from cler.runs.results import Result, make_result
from toys import make_shallow, ours

importlib.import_module("cler.api")  # or it would keep what a test puts in the place of a function that it imports
torch.set_num_threads(1)
# how long an example takes says nothing on a machine that is busy
settings.register_profile("cler", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cler")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell does in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Garbage is not looked for in what has been imported until here, which is most of all there is."""
    gc.collect()
    gc.freeze()


TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"


class Answer(NamedTuple):
    """What comes of a command: its exit code, its output, its error output."""

    code: int
    out: str
    err: str


@pytest.fixture
def cler_here(monkeypatch, capsys, tmp_path):
    """The command `cler` in this process, in an empty folder, with lines of 200 columns and no datasets."""
    main = importlib.import_module("cler.cli").main
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("CLER_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # or it would be called `python -m pytest`

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["cler", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return Answer(end.value.code or 0, *capsys.readouterr())

    return call


@pytest.fixture(autouse=True)
def as_registered():
    """What a test registers, and the metrics it adds, are forgotten after it."""
    tables = [each for each in vars(registry).values() if isinstance(each, registry.Registry) and len(each)]
    before = [(table, dict(table)) for table in (METRICS, *(each._entries for each in tables))]
    yield
    for table, entries in before:
        table.clear()
        table.update(entries)


@pytest.fixture
def shallow(monkeypatch):
    """Stages of one block instead of two: what our networks do in half the time, for what is asked of every method."""
    make_shallow(monkeypatch)


@pytest.fixture(scope="session")
def path_with_toys(tmp_path_factory):
    """A PYTHONPATH for new processes: Python imports `sitecustomize` when it starts, there the toys are registered."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text("import toys\n\ntoys.register()\n")
    return os.pathsep.join(filter(None, [str(site), str(TESTS), os.environ.get("PYTHONPATH")]))


class Golden(dict):
    """One fixture file: floating arrays in float64, integers in int64, everything else as it is."""

    def __init__(self, name: str) -> None:
        with np.load(GOLDEN / f"{name}.npz") as arrays:
            super().__init__((key, self._convert(arrays[key])) for key in arrays.files)

    @staticmethod
    def _convert(array: np.ndarray):
        if array.dtype.kind == "f":
            return torch.from_numpy(array.astype(np.float64))
        if array.dtype.kind in "iu" and array.dtype != np.uint8:
            return torch.from_numpy(array.astype(np.int64))
        if array.dtype.kind in "ub":
            return torch.from_numpy(array)
        return array

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The entries whose name starts so, without that start."""
        return {key[len(prefix) :]: value for key, value in self.items() if key.startswith(prefix)}


@pytest.fixture(scope="session")
def golden():
    return Golden


def error(actual: Tensor, expected: Tensor) -> float:
    """The golden files' measure: max|a−b| / (1 + max|b|)."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    actual, expected = actual.detach().double(), expected.detach().double()
    return float((actual - expected).abs().max() / (1 + expected.abs().max()))


@pytest.fixture(scope="session")
def assert_close():
    def check(actual: Tensor, expected: Tensor, what: str = "", tolerance: float = 1e-9) -> None:
        assert error(actual, expected) <= tolerance, f"{what}: off by {error(actual, expected):.2e}"

    return check


@pytest.fixture(scope="session")
def load_golden():
    def load(module: nn.Module, arrays: dict[str, Tensor]) -> None:
        """Fill a module with golden tensors; every one has to find its place."""
        module.load_state_dict({ours(name): value for name, value in arrays.items()}, strict=True)

    return load


PLAIN = {
    "method": "er-ace",
    "regularizer": "none",
    "dataset": "toy",
    "tasks": 3,
    "buffer": 50,
    "epochs": 1,
    "lr": 0.01,
    "precision": "bf16",
}
ENVIRONMENT = {"cler": "1.2", "torch": "2.13", "hardware": "Abacus 9"}


class FinishedRuns:
    """Runs over three tasks whose class-incremental accuracy is given; the task-incremental one is 20 more."""

    plain = PLAIN
    cler = PLAIN | {"regularizer": "jigsaw", "weight": 1.5}
    finetune = PLAIN | {"method": "finetune", "buffer": 0}
    joint = PLAIN | {"method": "joint", "buffer": 0}

    @staticmethod
    def make(settings, finals, seeds=None):
        results = []
        for seed, final in zip(seeds or range(len(finals)), finals, strict=True):
            rows = [[60.0], [50.0, 60.0], [final] * 3]
            rows = rows[-1:] if settings["method"] == "joint" else rows
            accuracy = {"class_il": rows, "task_il": [[number + 20 for number in row] for row in rows]}
            value = make_result(settings, seed, accuracy, 60.0, 60, dict(ENVIRONMENT))
            name = f"{settings['method']}-{settings['regularizer']}/{seed}/result.json"
            results.append(Result.from_dict(Path(name), value))
        return results

    def compare(self, *pairs):
        """The comparison of runs with the given settings and accuracies."""
        return compare(run for settings, finals in pairs for run in self.make(settings, finals))

    def report(self, *pairs, **options):
        """The report on runs with the given settings and accuracies."""
        return make_report(self.compare(*pairs), **options)

    def usual(self, **changes):
        """Finetune, Joint, ER-ACE, and ER-ACE + CLER, which gains three points."""
        return self.report(
            *(
                (settings | changes, finals)
                for settings, finals in (
                    (self.finetune, [16.0, 16.5, 15.5]),
                    (self.joint, [45.0, 46.0, 44.0]),
                    (self.plain, [30.0, 31.0, 29.0]),
                    (self.cler, [33.0, 34.5, 31.5]),
                )
            )
        )


@pytest.fixture(scope="session")
def runs():
    return FinishedRuns()


@pytest.fixture(scope="session")
def golden_cler(golden, load_golden):
    def make(network: nn.Module, pretext: str, fixture: Golden, weight: float = 1.0) -> Equivariant:
        """CLER on a network with the golden head; a jigsaw's labels are numbered as in the golden file."""
        heads, family = golden("pretext_heads"), Rotation() if pretext == "rotation" else Jigsaw()
        if pretext == "jigsaw":
            family.permutations = fixture["jigsaw.permutations"]
        regularizer = Equivariant(network, family, weight=weight)
        load_golden(regularizer, {**heads.under("pretext."), **heads.under(f"{pretext}.pretext.")})
        return regularizer

    return make
