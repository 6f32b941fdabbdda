import pytest
import torch

from cler.errors import UsageError
from cler.experiments.machine import find_device


@pytest.mark.parametrize(
    ("name", "says"),
    [("gpu", r"unknown device 'gpu' \(known: auto, cpu, cuda\)"), ("cuda:7", "unknown device 'cuda:7'")],
)
def test_unknown_devices(name, says):
    with pytest.raises(UsageError, match=says):
        find_device(name)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == torch.device("cpu")
    with pytest.raises(UsageError, match="--device cuda: torch sees no GPU"):
        find_device("cuda")
