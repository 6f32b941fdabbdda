"""The machine that runs are trained on: its device, precision, threads, and a description of it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from cler.errors import UsageError
from cler.nets.kernels import has_bfloat16
from cler.processes import usable_cores

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Variable of the environment: the GPUs that a process sees."""


def find_device(name: str) -> torch.device:
    """The device that a setting names; 'auto' is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("cuda: torch sees no GPU here; leave it out to use the CPU", "device")
    return torch.device(name)


def gpus() -> list[str]:
    """The GPUs that this process may use, each as `CUDA_VISIBLE_DEVICES` names it."""
    count = torch.cuda.device_count()
    named = os.environ.get(VISIBLE, "").split(",")[:count]
    return [name.strip() for name in named] if all(named) and len(named) == count else [str(n) for n in range(count)]


def default_precision(device: torch.device) -> str:
    """bfloat16 on a GPU, where it costs no accuracy; single precision on a CPU, and on a GPU that emulates bfloat16.

    If there is no GPU here, training will be on another machine, whose GPU is assumed to have bfloat16.
    """
    if device.type != "cuda":
        return "fp32"
    return "bf16" if not torch.cuda.is_available() or has_bfloat16(device) else "fp32"


def workers_that_fit(threads_of_each: int = 1) -> int:
    """How many worker processes fit the cores that this process may use."""
    return max(1, usable_cores() // threads_of_each)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, use this many CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def environment(device: torch.device) -> dict[str, str]:
    """Hardware and software versions, for the result of a run."""
    from cler import __version__

    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    commit = git_commit(Path(__file__).parent)
    return {
        "cler": __version__,
        **({"commit": commit} if commit else {}),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "device": device.type,
        "hardware": hardware,
    }


@cache
def git_commit(folder: Path) -> str | None:
    """The commit that is checked out in a folder of tracked files, '-dirty' if changed since; None for any other."""
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    tracked = ["ls-files", "--error-unmatch", "."]  # a package may be installed inside somebody's own checkout
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        subprocess.run([*git, *tracked], check=True, capture_output=True, timeout=10)
        found = subprocess.run([*git, *describe], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.decode("ascii", errors="replace").strip() or None


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
