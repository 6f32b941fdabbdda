"""What turns methods and streams into trained runs: the loop, many runs at once, evaluation, checkpoints."""

from cler.engine.run import Run
from cler.engine.train import Listener, Progress, train

REVISION = 1
"""Of all that decides the numbers of every run: raised by hand when runs come out differently."""

__all__ = ["REVISION", "Listener", "Progress", "Run", "train"]
