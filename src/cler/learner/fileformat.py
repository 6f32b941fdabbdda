"""A learner in one file: safetensors with JSON, nothing that could run code, checked before any of it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from cler.engine import tensorfile
from cler.engine.tensorfile import checksum, on_host, pieces
from cler.errors import DamagedError, UsageError
from cler.files import reading, replacing, writing

FORMAT = "cler-learner"
VERSION = 1


def encode(tensors: dict[str, Tensor], about: dict[str, Any]) -> bytes:
    """The content of the file of a learner, from its tensors and from what JSON tells about it."""
    tensors = on_host(tensors)
    text = json.dumps(about, allow_nan=False)
    metadata = {"format": FORMAT, "version": str(VERSION), "learner": text, "checksum": checksum(text, tensors)}
    return b"".join(pieces(tensors, metadata))


def write(path: str | Path, content: bytes) -> None:
    """Write a file whole, or say in one line why not."""
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give the name of a file")
    with writing(path), replacing(path) as file:
        file.write(content)


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `encode` was given; refuses files that are damaged, of a newer version, or something else."""
    with reading(Path(path)):
        try:
            tensors, metadata = tensorfile.read(Path(path))
        except DamagedError as error:
            raise UsageError(f"{path} is not a saved learner, or is damaged: {error}") from None
    _check_version(path, metadata)
    text = metadata.get("learner", "")
    if metadata.get("checksum") != checksum(text, tensors):
        raise UsageError(f"{path} is damaged: its checksum is wrong")
    if bad := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise UsageError(f"{path} is damaged: not all numbers in {bad[0]} are finite")
    try:
        return tensors, json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is damaged: its description cannot be read") from None


def _check_version(path: str | Path, metadata: dict[str, str]) -> None:
    version = metadata.get("version", "")
    if metadata.get("format") != FORMAT or not version.isdecimal() or len(version) > 9:
        raise UsageError(f"{path} is not a saved learner")
    if int(version) > VERSION:
        raise UsageError(f"{path} is from a newer cler (format {version}, this one knows {VERSION}): upgrade cler")
