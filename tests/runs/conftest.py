"""The dataset `toy`, in this process and in those that tests start."""

import pytest

from cler.data import images
from toys import Toy


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(images.DATASETS._entries, "toy", Toy())


@pytest.fixture
def known_to_new_processes(monkeypatch, path_with_toys):
    """Inside the test, new processes know the dataset too."""
    monkeypatch.setenv("PYTHONPATH", path_with_toys)
