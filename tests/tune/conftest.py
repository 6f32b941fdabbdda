"""The dataset `toy`."""

import pytest

from cler.data import images
from toys import Toy


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(images.DATASETS._entries, "toy", Toy())
