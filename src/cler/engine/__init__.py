"""What turns methods and streams into trained runs: the loop, many runs at once, evaluation, checkpoints."""

from cler.engine.run import PRECISIONS, Run
from cler.engine.train import Listener, Progress, train

__all__ = ["PRECISIONS", "Listener", "Progress", "Run", "train"]
