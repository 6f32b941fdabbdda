"""Our own GPU kernels, and where they can be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

WITH_BFLOAT16 = (8, 0)
"""The first generation of GPUs, by its compute capability, that computes in bfloat16 and does not just emulate it."""
MOST_VALUES = 2**31
"""Values of a map, one more than our own kernels count."""
_left_out = False


@cache
def gpu_kernels(name: str) -> ModuleType | None:
    """The module `cler.nets.NAME`, where Triton is there to compile its kernels."""
    try:
        return import_module(f"cler.nets.{name}")
    except ImportError:
        return None


def has_bfloat16(gpu: torch.device) -> bool:
    """Whether this GPU computes in bfloat16."""
    return torch.cuda.get_device_capability(gpu) >= WITH_BFLOAT16


def on_gpu(x: Tensor) -> bool:
    """Whether our own kernels may take this tensor: on a GPU, but not in `without_our_kernels` or torch.compile."""
    return x.is_cuda and not _left_out and not torch.compiler.is_compiling()


@contextmanager
def without_our_kernels() -> Iterator[None]:
    """Inside, PyTorch computes everything, and so can count the arithmetic of everything."""
    global _left_out
    _left_out = True
    try:
        yield
    finally:
        _left_out = False
