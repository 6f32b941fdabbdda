"""What every method, regularizer, teacher and network promises, as functions that try it on a small made-up stream."""

from cler.promises.checking import check
from cler.promises.outcome import BrokenPromise, Outcome, Report

__all__ = ["BrokenPromise", "Outcome", "Report", "check"]
