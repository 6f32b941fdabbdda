"""Tensors as a safetensors file, without copying them, and a checksum that shows whether they are whole."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from cler.errors import DamagedError, one_line
from cler.files import read_bytes

KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""What the format calls the kinds of numbers that it can hold."""
LARGEST = 1 << 34
"""Bytes that are read of a file of tensors."""


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as they are stored in files."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The file with these tensors of the host; other threads can work while the pieces are written."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    yield from map(_bytes, tensors.values())


def read(path: Path, *, follow: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file, in memory of their own, through no handle but ours.

    A `DamagedError` says what is wrong with its content, an `OSError` why it cannot be read, which says nothing about
    its content. Without `follow`, a link is refused.
    """
    content = read_bytes(path, LARGEST, follow=follow)
    try:
        tensors = safetensors.torch.load(content)
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
    except safetensors.SafetensorError as error:
        raise DamagedError(one_line(str(error).partition("\n")[0])) from None
    except (KeyError, ValueError):
        raise DamagedError("its header is not as it should be") from None
    if any(tensor.dtype not in KINDS for tensor in tensors.values()):
        raise DamagedError("it holds numbers of a kind that cler does not write")
    return tensors, metadata


def checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """A checksum over a string, and the name, type, shape and bytes of each tensor."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.flatten().view(torch.uint8).numpy().data
