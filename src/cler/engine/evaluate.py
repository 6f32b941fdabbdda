"""Accuracy on the tasks seen, class- and task-incremental, from one pass over their test images."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from cler.data.views import Views
from cler.errors import UsageError
from cler.methods.base import Method
from cler.methods.nearest_mean import nearest_mean
from cler.metrics import SCENARIOS, class_and_task_correct
from cler.nets.passes import images_at_once
from cler.streams import Stream
from cler.streams.base import Examples

CHUNK = 1000
"""Test images in one pass on a GPU."""


@torch.no_grad()
def evaluate(
    method: Method,
    stream: Stream,
    views: Views,
    tasks: Iterable[int],
    images: Callable[[int], Examples] | None = None,
    confusion: Tensor | None = None,
) -> dict[str, list[float]]:
    """Percent right on each task, by scenario: among all classes, and among the classes of the image's own task.

    `images` gives those of a task, by default the test images. NaN stands for a task on whose images the network's
    outputs are not numbers. `confusion`, int64 (T, T), where given, counts as which task's classes the images of each
    task are predicted.
    """
    rows = []
    with method.answering():
        answer = nearest_mean(method) if method.setup.classifier == "ncm" else method.logits
        for task in tasks:
            tested = (images or stream.test)(task)
            size = images_at_once(tested.images.shape, tested.labels.device, on_gpu=CHUNK)
            logits = torch.cat([answer(views.plain(chunk)) for chunk in tested.chunks(size)])
            if logits.shape != (wanted := (len(tested.labels), method.n_classes)):
                raise UsageError(
                    f"logits of {method.name} has to give a tensor (N, classes), {wanted}, not {tuple(logits.shape)}"
                )
            if confusion is not None:
                confusion[task] += stream.tasks.of_class[logits.argmax(-1)].bincount(minlength=len(confusion))
            right = class_and_task_correct(logits, tested.labels, stream.tasks.of_class)
            shares = torch.stack([each.double().mean() for each in right])
            rows.append(torch.where(logits.isnan().any(), torch.nan, shares))
    return dict(zip(SCENARIOS, (100 * torch.stack(rows)).T.tolist(), strict=True))
