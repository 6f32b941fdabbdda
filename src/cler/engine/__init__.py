"""What turns methods and streams into trained runs: the loop, many runs at once, evaluation, checkpoints."""

from cler.engine.run import Run
from cler.engine.train import Listener, Progress, train

__all__ = ["Listener", "Progress", "Run", "train"]
