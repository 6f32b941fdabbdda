"""Joint: all classes from the beginning, the reference that continual learners are measured by."""

from __future__ import annotations

from cler.methods.base import About, register
from cler.methods.finetune import Finetune


@register
class Joint(Finetune):
    """Finetune's step on a stream without tasks: one pass is Joint-online, several epochs are Joint-offline."""

    name = "joint"
    about = About(title="Joint", summary="all tasks at once: online with one epoch, offline with many", reference=True)
    merged = True
    task_free = False
