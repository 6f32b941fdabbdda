"""Figure 1: do self-supervised regularizers align the gradients of successive tasks, and help to learn new tasks?

After each task except the first and the last, the gradient of that task is compared with that of the next: of the mean
cross-entropy over the task's training images, not augmented, with batch norm's running statistics. The loss is over all
classes; the loss over the task's own classes is recorded too, since the logits of classes that have not been seen give
the gradients of all later tasks a common direction.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as F

from cler.engine import Run
from cler.nets.frozen import copy_of
from cler.paper.analysis import Analysis, Findings, Measure, Panel, mean_of, training_images
from cler.paper.gradients import among, cosines, mean_gradients


def probe(run: Run, task: int) -> dict[str, Any] | None:
    """The cosine similarity of this task's gradient and the next one's, by loss and part of the network."""
    if not 0 < task < run.stream.tasks.number - 1:
        return None
    network = copy_of(run.method.network).eval()
    tasks = run.stream.tasks
    this, following = (
        mean_gradients(
            network,
            training_images(run, each),
            {"all classes": F.cross_entropy, "own classes": among(tasks.present(each), tasks.position)},
        )
        for each in (task, task + 1)
    )
    return {loss: cosines(this[loss], following[loss]) for loss in this}


def _similarity(run: Findings, *, loss: str) -> list[float]:
    return [found[loss]["all"] for _, found in sorted(run.found.items())]


def _accuracy_when_new(run: Findings, *, scenario: str) -> list[float]:
    """Accuracy on each task except the first, right after it was learned."""
    return [row[-1] for row in run.accuracy[scenario][1:]]


similarity, similarity_among_own = (partial(_similarity, loss=loss) for loss in ("all classes", "own classes"))
class_il, task_il = (partial(_accuracy_when_new, scenario=scenario) for scenario in ("class_il", "task_il"))

ANALYSIS = Analysis(
    name="figure1",
    title="Figure 1: gradients of successive tasks, and accuracy on each new one",
    method="finetune",
    regularizers=("none", "barlow-twins", "rotation"),
    probe=probe,
    panels=(
        Panel("Similarity of gradients", "task", "cosine with the next task", similarity, first=2),
        Panel("Similarity, own classes", "task", "cosine with the next task", similarity_among_own, first=2),
        Panel("Accuracy on the newest task", "task", "class-incremental, %", class_il, first=2),
    ),
    measures=(
        Measure("gradient similarity", mean_of(similarity), paper={"barlow-twins": "higher", "rotation": "higher"}),
        Measure("gradient similarity, own classes", mean_of(similarity_among_own)),
        Measure("newest task, class-incremental, %", mean_of(class_il), digits=2, paper={"rotation": "higher"}),
        Measure("newest task, task-incremental, %", mean_of(task_il), digits=2),
    ),
    note="Where Finetune predicts only classes of the newest task, both accuracies on that task are the same.",
)
