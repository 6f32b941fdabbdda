"""What arrives when: streams of labeled images. A new one is a new file here, named in `_FILES`."""

from __future__ import annotations

from importlib import import_module

from cler.config.registry import STREAMS
from cler.streams.base import Batch, Stream, register
from cler.streams.tasks import Tasks

_FILES = ("class_incremental", "blurry", "domain_incremental", "long_tailed", "shuffled")
for _file in _FILES:
    import_module(f"cler.streams.{_file}")

from cler.streams.domain_incremental import domains  # noqa: E402  not before the others, which lists have in this order

__all__ = ["STREAMS", "Batch", "Stream", "Tasks", "domains", "register"]
