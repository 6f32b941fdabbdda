"""CLER in Avalanche: a plugin that adds the regularizer to any supervised strategy. Needs the package avalanche-lib."""

from __future__ import annotations

from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.models.utils import is_multi_task_module

from cler.errors import UsageError
from cler.regularizers import Equivariant


class EquivariantPlugin(SupervisedPlugin):
    """Adds CLER's loss on each mini-batch, replayed images included, to the strategy's own:

        regularizer = cler.Equivariant(model, "jigsaw", tap="layer3", head="layer4")
        strategy = Replay(model=model, optimizer=optimizer, plugins=[EquivariantPlugin(regularizer)], ...)

    The head is trained by the strategy's optimizer, in its first group of parameters. The images are those that the
    strategy trains on, so they are augmented if the benchmark augments; the paper's are not.
    """

    def __init__(self, regularizer: Equivariant) -> None:
        super().__init__()
        self.regularizer = regularizer

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Have the head trained, also where the strategy has made a new optimizer."""
        if is_multi_task_module(strategy.model):
            raise UsageError("CLER's plugin takes models that need no task labels; use one with a single classifier")
        self.regularizer.to(strategy.device)
        groups = strategy.optimizer.param_groups
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        groups[0]["params"] += [each for each in self.regularizer.parameters() if id(each) not in trained]

    def before_backward(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Add the loss on the images of this step."""
        strategy.loss = strategy.loss + self.regularizer.loss(
            strategy.model, strategy.mb_x, strategy.mb_x, strategy.mb_y
        )
