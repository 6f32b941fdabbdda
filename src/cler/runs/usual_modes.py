"""Torch as it is where nobody has changed it, whatever modes a caller has set."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def usual_modes() -> Iterator[None]:
    """Inside, gradients are computed, in float32, on the CPU where no device is named, and without autocast."""
    with _single_precision, ExitStack() as modes:
        if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
            modes.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                modes.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))
        yield


class _SinglePrecision:
    """Inside, torch's default dtype is float32; all threads share it, so the last to leave puts it back."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, torch.float32

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.get_default_dtype()
                self._switch(torch.float32)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._switch(self._before)

    def _switch(self, dtype: torch.dtype) -> None:
        if self._before is not torch.float32:
            torch.set_default_dtype(dtype)

    def after_fork(self) -> None:
        """In a forked child, where nobody is inside."""
        if self._inside:
            self._switch(self._before)
        self.__init__()  # type: ignore[misc]


_single_precision = _SinglePrecision()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_single_precision.after_fork)
