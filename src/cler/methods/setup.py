"""What a method is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cler.config.schema import NoOptions
from cler.config.settings import Settings
from cler.data.views import Views
from cler.nets.backbone import Backbone
from cler.regularizers.base import Regularizer
from cler.streams import Tasks
from cler.teachers.base import Teacher


@dataclass(frozen=True)
class Setup:
    """Everything that a method is made from; there is one for each run."""

    network: Backbone
    views: Views
    tasks: Tasks
    """Which task each class comes in."""
    image_shape: tuple[int, ...]
    generator: torch.Generator | None = None
    regularizers: Sequence[Regularizer] = ()
    teacher: Teacher | None = None
    lr: float = Settings.lr
    optimizer: str = Settings.optimizer
    momentum: float = Settings.sgd_momentum
    """Momentum of the optimizer; 0 for those that have none."""
    weight_decay: float | None = Settings.weight_decay
    """Weight decay of the optimizer; None for its own default."""
    buffer: int = Settings.buffer
    replay_batch: int = Settings.replay_batch
    repeats: int = Settings.repeats
    """Steps on each batch of the stream."""
    classifier: str = Settings.classifier
    """What classifies in evaluation: the network, or the nearest class mean (ncm)."""
    options: Any = NoOptions()
    """The method's own settings, an instance of its `Options`."""
    bfloat16: bool = False
    """Whether convolutions work in bfloat16."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
