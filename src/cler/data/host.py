"""Images that stay in the main memory of the host, where a GPU reads them: for datasets that are larger than it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from cler.errors import UsageError

MOST_OF_THE_DEVICE = 0.5
"""Share of a GPU's free memory that images may take; runs need the rest."""


def fit(images: int, device: torch.device) -> bool:
    """Whether so many bytes of images leave a GPU enough memory to train."""
    free, _ = torch.cuda.mem_get_info(device)
    return images <= MOST_OF_THE_DEVICE * free


def on_host(images: Tensor, device: torch.device) -> Tensor:
    """The same images as a tensor of a GPU, though they lie in main memory; see `Pinned.seen_by`."""
    pinned = Pinned(images.shape)
    pinned.memory.copy_(images)
    return pinned.seen_by(device)


class Pinned:
    """Main memory for images that stays where it is, at an address that a GPU knows too.

    It is let go with the last tensor that uses it.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        try:
            self.memory = torch.empty(tuple(shape), dtype=torch.uint8)
            self.registered = not int(
                torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), self.memory.nbytes, 0)
            )
            if self.registered:
                weakref.finalize(self, _let_go, self.memory).atexit = False  # the end of the process frees it
            else:
                self.memory = _pinned_by_pytorch(shape)
        except RuntimeError:
            size = f"{math.prod(shape) / 1e9:.1f} GB"
            raise UsageError(f"host: {size} of main memory cannot be pinned; take fewer images", "images") from None

    def seen_by(self, device: torch.device) -> Tensor:
        """The memory as a tensor of a GPU, which reads what is indexed, and nothing else, when it is indexed.

        So everything works on it that works on a tensor of the GPU, and can be recorded in a CUDA graph; but what takes
        all images at once needs room for them there.
        """
        with torch.cuda.device(device):
            return torch.as_tensor(self, device=torch.device("cuda", torch.cuda.current_device()))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """How PyTorch is told of memory that it has not made itself."""
        address = self.memory.data_ptr(), False
        return {"shape": tuple(self.memory.shape), "typestr": "|u1", "data": address, "strides": None, "version": 3}


def _let_go(memory: Tensor) -> None:
    torch.cuda.synchronize()  # a step may still read it
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())


def _pinned_by_pytorch(shape: Sequence[int]) -> Tensor:
    """For systems that do not pin memory which is there already, as some containers.

    It is not our first choice, since PyTorch takes powers of two: up to twice as much as is needed.
    """
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")  # raises what CUDA remembers of the failure, and so makes it forget
    return torch.empty(tuple(shape), dtype=torch.uint8, pin_memory=True)
