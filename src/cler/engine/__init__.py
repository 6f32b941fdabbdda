"""What turns methods and streams into trained runs: the loop, many runs at once, evaluation, checkpoints, events."""

from cler.engine.events import RunName
from cler.engine.run import Run
from cler.engine.train import Control, train

__all__ = ["Control", "Run", "RunName", "train"]
