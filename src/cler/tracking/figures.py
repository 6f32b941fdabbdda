"""The names that figures have in every tracker, and the figures of the machine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import fmean

import torch

from cler.engine.losses import Sums, means
from cler.tracking.base import Table

GIB = 2**30


def of_losses(sums: Sums) -> dict[str, float]:
    """The mean of each loss term over its steps."""
    return {f"loss/{term}": mean for term, mean in means(sums).items()}


def of_accuracy(accuracy: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean over the tasks met so far and the accuracy on each, by scenario, in percent."""
    figures = {f"accuracy/{scenario}": fmean(row) for scenario, row in accuracy.items()}
    for scenario, row in accuracy.items():
        figures |= {f"accuracy_{scenario}/task_{task}": value for task, value in enumerate(row, start=1)}
    return figures


def of_metrics(metrics: Table) -> dict[str, float]:
    """Each metric by scenario, as one figure."""
    return {f"metrics/{name}_{scenario}": value for name, row in metrics.items() for scenario, value in row.items()}


def of_the_machine(steps_per_second: float) -> dict[str, float]:
    """How fast a run is, the memory of its process, and of its GPU the memory and how busy it is."""
    figures = {"system/steps_per_second": steps_per_second}
    with suppress(OSError, LookupError, ValueError):  # only Linux has such a file, and not all of it everywhere
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
        figures["system/memory_gib"] = int(lines["VmRSS"].split()[0]) * 1024 / GIB
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        figures["system/gpu_memory_gib"] = torch.cuda.memory_reserved() / GIB
        if (busy := _gpu_utilization()) is not None:
            figures["system/gpu_utilization"] = float(busy)
    return figures


class _Rates(ctypes.Structure):
    """What NVIDIA's library says of a GPU: percent of the time in which a kernel ran, and memory was read."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def _gpu_utilization() -> int | None:
    """Percent of the last moments in which this process's GPU was working; None where nobody knows."""
    found = _gpu()
    if found is None:
        return None
    library, handle = found
    rates = _Rates()
    return None if library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) else rates.gpu


@cache
def _gpu() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """NVIDIA's library, which comes with the driver, and its name for this process's GPU; None where it is missing."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1" if os.name == "posix" else "nvml.dll")
        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}".encode()
        handle = ctypes.c_void_p()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
            return None
    except (OSError, AttributeError):
        return None
    return library, handle
