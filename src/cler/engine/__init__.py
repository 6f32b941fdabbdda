"""What turns methods and streams into trained runs: the loop, many runs at once, evaluation, checkpoints, events."""

from cler.engine.events import RunName
from cler.engine.run import Run
from cler.engine.train import Control, train

REVISION = 1
"""Of all that decides the numbers of every run: raised by hand when runs come out differently."""

__all__ = ["REVISION", "Control", "Run", "RunName", "train"]
