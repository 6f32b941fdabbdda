"""What arrives when: streams of labeled images, cut into tasks."""

from cler.streams.base import Batch
from cler.streams.class_incremental import Stream
from cler.streams.tasks import Tasks

__all__ = ["Batch", "Stream", "Tasks"]
