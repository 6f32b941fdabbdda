"""Tensors as a safetensors file, without copying them, and a checksum that shows whether they are whole."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""What the format calls the kinds of numbers that it can hold."""


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


def checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """A checksum over a string, and the name, type, shape and bytes of each tensor."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.flatten().view(torch.uint8).numpy().data
