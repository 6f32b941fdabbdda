"""What is told of a method: in tables, for estimates of disk space, and for checks of files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class About:
    """What tables, disk estimates and file checks need to know about a method; what it computes is in its class."""

    title: str
    """The method's name in tables."""
    summary: str
    """What the method does, in one line."""
    reference: bool = False
    """Whether tables show the method as a reference point for continual learners."""
    counted: frozenset[str] = frozenset({"task", "buffer.filled", "buffer.offered", "buffer.labels"})
    """The method's attributes of whole numbers that change as it learns; in all others the file of a learner has to
    agree with a new learner, or it is refused."""
    options_of_regularizer: frozenset[str] = frozenset()
    """Which of the method's own settings matter only with a regularizer."""
    running_bytes: int = 600_000_000
    """Bytes on disk that a run needs while it is trained: three checkpoints, the last one just being written, of the
    full-size network or with 8000 images of 84×84 pixels."""
