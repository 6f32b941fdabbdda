"""Trackers: where the curves of runs go while they are trained. A new one is a new file here, named in `_FILES`."""

from __future__ import annotations

from importlib import import_module

from cler.tracking.base import TRACKERS, TrackedRun, Tracker, register
from cler.tracking.listening import Tracking

_FILES = ("tensorboard", "wandb")
for _file in _FILES:
    import_module(f"cler.tracking.{_file}")

__all__ = ["TRACKERS", "TrackedRun", "Tracker", "Tracking", "register"]
