import pytest
import torch

import cler
from cler.errors import UsageError
from cler.runs.machine import default_precision, find_device, workers_that_fit


@pytest.mark.parametrize("ask", [cler.train, cler.Learner])
@pytest.mark.parametrize("name", ["gpu", "cuda:7"])
def test_unknown_devices(ask, name):
    says = rf"'{name}' \(known: auto, cpu, cuda\); cuda is the GPU, and CUDA_VISIBLE_DEVICES chooses which of several$"
    with pytest.raises(UsageError, match=f"^unknown device {says}"):
        ask("er", device=name)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == torch.device("cpu")
    with pytest.raises(UsageError, match="device cuda: torch sees no GPU"):
        find_device("cuda")


def test_workers_are_for_the_cores_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5, 7, 9}, raising=False)
    assert [workers_that_fit(threads) for threads in (1, 2, 3, 8)] == [4, 2, 1, 1]


def test_an_old_gpu_trains_in_single_precision_by_default(monkeypatch):
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [default_precision(device) for device in (gpu, cpu)] == ["bf16", "fp32"]  # the GPU of a cluster's node
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, expected in (((7, 5), "fp32"), ((8, 0), "bf16"), ((9, 0), "bf16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert [default_precision(device) for device in (gpu, cpu)] == [expected, "fp32"]
