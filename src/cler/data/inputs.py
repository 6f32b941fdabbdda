"""Images and labels as programs have them: arrays, tensors and lists, checked and as uint8."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from cler.errors import UsageError

Label: TypeAlias = str | int
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LONGEST_LABEL = 1000
"""Characters of a label."""


def as_tensor(images: Any) -> Tensor:
    """Images of an array or a tensor, with the values and the shape that they have."""
    if isinstance(images, Tensor):
        _check_dense(images, "images")
        return images.detach()
    try:
        return torch.tensor(np.ascontiguousarray(images), device="cpu")  # whatever device is the default
    except (TypeError, ValueError):
        kind = getattr(images, "dtype", type(images).__name__)
        advice = ""
        if isinstance(images, str | Path):
            advice = "; open a file with PIL.Image.open"
        elif isinstance(images, Iterator):
            advice = "; make it a list"
        raise UsageError(f"images must be numpy arrays, torch tensors or PIL images, not {kind}{advice}") from None


def _check_dense(given: Tensor, what: str) -> None:
    """Refuse a tensor whose numbers are not all there, in an array."""
    kind = "nested" if given.is_nested else "meta" if given.is_meta else str(given.layout).removeprefix("torch.")
    if kind != "strided":
        raise UsageError(f"{what} must be in ordinary, dense tensors, not in a {kind} one")


def to_bytes(images: Tensor) -> Tensor:
    """Images of bytes as they are, and of floats from 0 to 1 as bytes."""
    if images.dtype == torch.uint8:
        return images
    if images.dtype not in FLOATS:
        kind = str(images.dtype).removeprefix("torch.")
        raise UsageError(f"images must be uint8 from 0 to 255, or floats from 0 to 1, not {kind}")
    if images.numel() and not (images.min() >= 0 and images.max() <= 1):  # so that NaN does not pass either
        raise UsageError(
            f"float images must lie from 0 to 1, these go from {images.min().item()} to {images.max().item()}; "
            "give them before they are normalized, or as uint8 from 0 to 255"
        )
    return (255 * images.float()).round().to(torch.uint8)


def in_order(labels: Iterable[Label]) -> list[Label]:
    """Sorted, as scikit-learn expects classes to be; those of one type after those of another."""
    return sorted(labels, key=lambda label: (type(label).__name__, label))


def to_labels(labels: Any) -> list[Label]:
    """Labels as a list of strings and whole numbers."""
    if isinstance(labels, str) or not isinstance(labels, Iterable) or getattr(labels, "ndim", 1) == 0:
        raise UsageError(f"labels must be a list with one label for each image, not {labels!r}")
    if isinstance(labels, Tensor):
        _check_dense(labels, "labels")
    plain: list[Any] = [
        each.item() if isinstance(each, np.generic | Tensor) and each.ndim == 0 else each for each in labels
    ]
    for label in plain:
        if isinstance(label, bool) or not isinstance(label, str | int):
            raise UsageError(f"a label must be a string or a whole number, not {reprlib.repr(label)}")
        if isinstance(label, str) and len(label) > LONGEST_LABEL:
            raise UsageError(f"a label may have {LONGEST_LABEL} characters, not {len(label)}: {label[:20]!r}…")
        if isinstance(label, int) and not -(2**63) <= label < 2**64:
            raise UsageError("a whole number must fit into 64 bits to be a label")
    return plain
