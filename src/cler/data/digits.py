"""The digits that come with scikit-learn: 1,797 handwritten ones of 8×8 pixels (Alpaydin and Kaynak, 1998).

They are read from scikit-learn's own file, without importing it.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from cler.data.images import Advance, ImageData, Status, register
from cler.data.reading import as_labels, image_data, split
from cler.errors import UsageError
from cler.files import read_bytes

SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
"""Checksum of what the file holds, once it is unpacked."""
SHARE = 0.2
"""Share of each digit to test on."""


class Digits:
    """Four of five of each digit to train on, the others to test on."""

    name: ClassVar[str] = "digits"
    description: ClassVar[str] = "1,797 handwritten digits of 8×8 pixels, which come with scikit-learn"
    defaults: ClassVar[Mapping[str, Any]] = {"tasks": 5, "augment": "none", "buffer": 200, "width": 16, "lr": 0.03}

    def load(self, folder: Path) -> ImageData:
        """Read and verify the digits; the data folder is not used."""
        path = _file()
        if path is None:
            raise UsageError("the digits come with scikit-learn, which is not installed here: pip install scikit-learn")
        try:
            content = gzip.decompress(read_bytes(path))
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"cannot read {path} ({error}): install scikit-learn again") from error
        if hashlib.sha256(content).hexdigest() != SHA256:
            raise UsageError(f"{path} does not hold the digits that it should: install scikit-learn again")
        rows = np.array([line.split(",") for line in content.decode().split()], dtype=np.float64)
        images = torch.from_numpy(np.rint(rows[:, :64] * 255 / 16).astype(np.uint8).reshape(-1, 1, 8, 8))
        labels, names = rows[:, 64].astype(np.int64).tolist(), [str(digit) for digit in range(10)]
        tested = torch.tensor(split([f"{label}/{row}" for row, label in enumerate(labels)], labels, names, SHARE))
        numbers = as_labels(labels)
        return image_data(
            self.name, (images[~tested], numbers[~tested]), (images[tested], numbers[tested]), names, self.defaults
        )

    def check(self, folder: Path) -> Status:
        """Read and verify the digits."""
        path = _file()
        try:
            self.load(folder)
        except UsageError as error:
            return Status("missing" if path is None else "damaged", str(error), path or folder)
        return Status("present", "come with scikit-learn: there is nothing to fetch", path or folder)

    def get(self, folder: Path, progress: Advance | None = None) -> Status:
        """Check it: there is nothing to fetch."""
        return self.check(folder)


def _file() -> Path | None:
    """The file of the digits; None where scikit-learn is not installed."""
    found = find_spec("sklearn")
    places = found.submodule_search_locations if found else None
    return Path(places[0], "datasets", "data", "digits.csv.gz") if places else None


digits = register(Digits())
