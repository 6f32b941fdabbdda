"""What turns methods and streams into trained runs: the loop, many runs at once, evaluation, checkpoints, events."""

from cler.engine.events import RunName
from cler.engine.run import Run
from cler.engine.train import Control, train

REVISION = 1
"""Revision of the code that all runs share: raised by hand when it makes runs come out differently."""

__all__ = ["REVISION", "Control", "Run", "RunName", "train"]
