"""What arrives when: streams of labeled images, cut into tasks."""

from cler.streams.class_incremental import Batch, Stream

__all__ = ["Batch", "Stream"]
