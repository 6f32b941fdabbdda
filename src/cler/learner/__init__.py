"""A classifier that keeps learning, for streams without tasks."""

from cler.learner.core import NotFittedError
from cler.learner.learner import Learner

__all__ = ["Learner", "NotFittedError"]
