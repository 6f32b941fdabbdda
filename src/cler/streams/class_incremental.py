"""Class-incremental: tasks of new classes, one after the other, each seen in small batches."""

from __future__ import annotations

from cler.streams.base import Stream, register


@register
class ClassIncremental(Stream):
    """Each task has classes of its own, as many as `tasks` says; its images come in a random order."""

    name = "class-incremental"
    summary = "tasks of new classes, one after the other"
