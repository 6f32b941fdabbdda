"""What all tests share: one thread, the golden fixtures, and a tiny image set."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell does in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

GOLDEN = Path(__file__).parent / "golden"


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


def our_name(name: str) -> str:
    """A tensor's name in the golden files, as our networks call it."""
    head, _, tail = name.rpartition(".")
    if tail in ("mean", "var"):
        return f"{head}.running_{tail}"
    return f"{name}.weight" if tail in ("conv", "conv1", "conv2", "fc1", "fc2") else name


@pytest.fixture(scope="session")
def load_golden():
    def load(module: nn.Module, arrays: dict[str, Tensor]) -> None:
        """Fill a module with golden tensors; every one has to find its place."""
        module.load_state_dict({our_name(name): value for name, value in arrays.items()}, strict=True)

    return load
