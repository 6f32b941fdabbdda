"""The dataset `toy`, in this process and in those that tests start."""

import os
from pathlib import Path

import pytest

from cler.data import images
from toys import Toy


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(images.DATASETS._entries, "toy", Toy())


@pytest.fixture
def known_to_new_processes(tmp_path, monkeypatch):
    """Python imports `sitecustomize` when it starts: there the dataset is registered."""
    (tmp_path / "sitecustomize.py").write_text("import toys\n\ntoys.register()\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    monkeypatch.setenv("PYTHONPATH", path, prepend=os.pathsep)
