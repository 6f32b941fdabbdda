"""A classifier that keeps learning, for streams without tasks."""

from cler.learner.learner import Learner, NotFittedError

__all__ = ["Learner", "NotFittedError"]
