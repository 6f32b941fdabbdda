"""Figure 1: do self-supervised regularizers align the gradients of successive tasks, and help to learn new tasks?

After each task except the first and the last, the gradient of that task is compared with that of the next. The paper
does not say of which loss and which parameters, so several definitions are tried:

- the mean cross-entropy over the task's training images, not augmented, with batch norm's running statistics: over all
  classes, or over the task's own classes, since the logits of classes that have not been seen give the gradients of all
  later tasks a common direction;
- without the regularizer's term, or with it, which is then taken as in training: in batches, with their statistics;
- over all parameters of the network, without the classifier or with it, or over those of one stage.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cler.engine import Run
from cler.nets.norm import frozen_statistics
from cler.paper.analysis import Analysis, Findings, Measure, Panel, mean_of, training_images
from cler.paper.gradients import (
    CLASSIFIER,
    WHOLE,
    WITH_CLASSIFIER,
    Gradient,
    added,
    among,
    cosines,
    mean_gradients,
    mean_term,
)
from cler.regularizers import REGULARIZERS
from cler.report.sheets import NAMES

TERM_BATCHES = 100
"""Batches of a task over which the gradient of the regularizer's term is averaged."""
LOSSES = ("all classes", "own classes")
WITH_TERM = " with the term"
STAGES = ("stem", "layer1", "layer2", "layer3", "layer4", CLASSIFIER)


def probe(run: Run, task: int) -> dict[str, Any] | None:
    """The cosine similarity of this task's gradient and the next one's, by loss and part of the network."""
    if not 0 < task < run.stream.tasks.number - 1:
        return None
    network = copy.deepcopy(run.method.network)
    this, following = (_gradients(run, network, each) for each in (task, task + 1))
    return {loss: cosines(this[loss], following[loss]) for loss in this}


def _gradients(run: Run, network: nn.Module, task: int) -> dict[str, Gradient]:
    """The gradients of a task by the name of the loss, each without the regularizer's term and with it."""
    tasks = run.stream.tasks
    own = among(tasks.present(task), tasks.position)
    network.eval()
    plain = mean_gradients(network, training_images(run, task), dict(zip(LOSSES, (F.cross_entropy, own), strict=True)))
    network.train()
    with frozen_statistics(network):
        term = mean_term(network, _terms(run, network, task))
    return plain | {f"{loss}{WITH_TERM}": added(gradient, term) for loss, gradient in plain.items()}


def _terms(run: Run, network: nn.Module, task: int) -> Iterator[Tensor]:
    """The regularizers' loss on batches of a task, weighted as in training, by copies with another generator."""
    generator = torch.Generator(run.device).manual_seed(task)
    views = copy.copy(run.views)
    views.generator = generator
    copies = []
    for each in run.method.regularizers:
        with torch.random.fork_rng(devices=[]):
            made = REGULARIZERS[each.name].build(network, weight=each.weight, views=views, generator=generator)
        made.to(run.device).load_state_dict(each.state_dict())
        copies.append(made)
    for indices in run.stream.order(task, generator)[:TERM_BATCHES] if copies else ():
        pixels, labels = run.stream.data.train_images[indices], run.stream.train_labels[indices]
        raw, augmented = views.plain(pixels), views.augmented(pixels)
        yield torch.stack([each.loss(network, raw, augmented, labels) for each in copies]).sum()


def _similarity(run: Findings, *, loss: str, part: str = WHOLE) -> list[float]:
    return [found[loss][part] for _, found in sorted(run.found.items())]


def _accuracy_when_new(run: Findings, *, scenario: str) -> list[float]:
    """Accuracy on each task except the first, right after it was learned."""
    return [row[-1] for row in run.accuracy[scenario][1:]]


def _measures() -> Iterator[Measure]:
    """The similarity of gradients by every definition, and the accuracy on new tasks by both."""
    definitions = {
        f"{loss}{term}{', with the classifier' if part == WITH_CLASSIFIER else ''}": (f"{loss}{term}", part)
        for loss, term, part in product(LOSSES, ("", WITH_TERM), (WHOLE, WITH_CLASSIFIER))
    } | {f"{LOSSES[0]}, {stage} alone": (LOSSES[0], stage) for stage in STAGES}
    for definition, (loss, part) in definitions.items():
        yield Measure(
            f"gradient similarity, {definition}",
            mean_of(partial(_similarity, loss=loss, part=part)),
            paper={"barlow-twins": "higher", "rotation": "higher"},
            statement=ALIGNED,
            definition=definition,
        )
    for scenario, name in NAMES.items():
        curve = partial(_accuracy_when_new, scenario=scenario)
        yield Measure(f"newest task, {name}, %", mean_of(curve), 2, {"rotation": "higher"}, PLASTIC, name)


ALIGNED = "gradients of successive tasks are more similar"
PLASTIC = "new tasks are learned better"
similarity, similarity_among_own = (partial(_similarity, loss=loss) for loss in LOSSES)

ANALYSIS = Analysis(
    name="figure1",
    title="Figure 1: gradients of successive tasks, and accuracy on each new one",
    method="finetune",
    regularizers=("none", "barlow-twins", "rotation"),
    probe=probe,
    panels=(
        Panel("Similarity of gradients", "task", "cosine with the next task", similarity, first=2),
        Panel("Similarity, own classes", "task", "cosine with the next task", similarity_among_own, first=2),
        Panel(
            "Accuracy on the newest task",
            "task",
            "class-incremental, %",
            partial(_accuracy_when_new, scenario="class_il"),
            first=2,
        ),
    ),
    measures=tuple(_measures()),
    note="Where Finetune predicts only classes of the newest task, both accuracies on that task are the same.",
)
