"""What a method promises that can learn a stream without tasks, with a regularizer and a teacher or without."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cler.config.settings import own_settings
from cler.data.images import ImageData
from cler.learner import Learner
from cler.learner.core import FIRST_SIZE
from cler.methods import METHODS
from cler.nets.backbone import Backbone
from cler.promises.outcome import demand
from cler.promises.state import differences, named
from cler.promises.toy import LOOPS, colors


def serves_a_learner(
    method: str,
    regularizer: str = "none",
    *,
    data: ImageData | None = None,
    network: str | Backbone | Callable[[int], Backbone] | None = None,
    **changes: Any,
) -> None:
    """A `Learner` is saved and loaded to the bit; with room for more classes it answers as before, and learns them."""
    if not METHODS[method].task_free:
        return
    images, labels, tested = _in_turn(data or colors())
    options: dict[str, Any] = {"image_size": images.shape[2], "width": 4, "batch": 8, "replay_batch": 8, "buffer": 40}
    options |= {name: count for name, count in LOOPS.items() if name in own_settings({"method": method})}
    whole = Learner(method, regularizer, network=network or "resnet18", device="cpu", **options | changes)
    whole.partial_fit(images[:28], labels[:28])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "learner.safetensors")
        whole.save(path)
        loaded = Learner.load(path, network=None if isinstance(network, str) else network)
    for each in (whole, loaded):
        each.partial_fit(images[28:48], labels[28:48])
    (one, about), (other, of_other) = (each._core.content() for each in (whole, loaded))
    differing = differences(one, other)
    demand(
        not differing and about == of_other,
        f"a learner that was saved and loaded learns something else: {named(differing) or 'other numbers'} differ",
    )
    before = whole.predict_proba(tested)
    whole._core.make_room(FIRST_SIZE + 1)
    apart = float(np.abs(whole.predict_proba(tested) - before).max())
    demand(
        apart < 1e-4,
        f"with room for more than {FIRST_SIZE} classes a learner answers otherwise, by {apart:.2g}: what has a place "
        "for each class has to keep the places of the first ones when there are more",
    )
    loaded.partial_fit(images[:24], range(100, 124))


def _in_turn(data: ImageData) -> tuple[torch.Tensor, list[int], torch.Tensor]:
    """Images of all classes in turn, their labels, and some images to test on."""
    order = data.train_labels.argsort(stable=True).view(data.n_classes, -1).T.flatten()
    return data.train_images[order], data.train_labels[order].tolist(), data.test_images[::5]
