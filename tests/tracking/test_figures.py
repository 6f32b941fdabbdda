"""The figures of the machine, on a GPU that is made up."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from cler.tracking import figures


class Library:
    """NVIDIA's, as far as it is asked: functions give 0 where all is well."""

    def __init__(self, name):
        assert name in ("libnvidia-ml.so.1", "nvml.dll")

    def nvmlInit_v2(self):  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):  # noqa: N802
        handle._obj.value = 17
        return 0 if uuid == b"GPU-01ab" else 6

    def nvmlDeviceGetUtilizationRates(self, handle, rates):  # noqa: N802
        rates._obj.gpu, rates._obj.memory = 93, 40
        return 0 if handle.value == 17 else 1


def missing(name):
    raise OSError(name)


@pytest.fixture
def gpu(monkeypatch):
    for name, answer in {"is_available": True, "is_initialized": True, "memory_reserved": 3 * 2**30}.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="01ab"))
    figures._gpu.cache_clear()
    yield
    figures._gpu.cache_clear()


@pytest.mark.parametrize(("library", "busy"), [(Library, {"system/gpu_utilization": 93.0}), (missing, {})])
def test_of_a_gpu_its_memory_and_how_busy_it_is(library, busy, gpu, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", library)
    found = figures.of_the_machine(12.5)
    assert 0.01 < found.pop("system/memory_gib") < 1000
    assert found == {"system/steps_per_second": 12.5, "system/gpu_memory_gib": 3.0} | busy


def test_of_a_gpu_that_is_another_programs_nothing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert figures.of_the_machine(1.0).keys() == {"system/steps_per_second", "system/memory_gib"}
