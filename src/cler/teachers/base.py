"""What every teacher is, and the table of those that the command line knows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from cler.config.registry import TEACHERS
from cler.config.schema import NoOptions
from cler.data.views import Views
from cler.errors import UsageError
from cler.nets.backbone import Backbone


@dataclass(frozen=True)
class Lesson:
    """What a teacher adds to a step: images for the network to see too, and terms of the loss on its outputs."""

    pixels: Tensor
    """The images that it is about, (N, C, H, W)."""
    labels: Tensor
    """Their class numbers, (N,)."""
    images: Mapping[str, Tensor]
    """What the network sees of them, by the names in a method's `teachable`; each is normalized separately."""
    terms: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    """From the network's outputs, by the same names, to the terms of the loss by name, weighted."""


class Teacher:
    """A slow copy of the network, beside a method; subclasses define `after_step` and `answering`.

    A teacher that also teaches says `teaches = True` and defines `lesson`; it works with methods that are `teachable`.

    It follows the rule of `observe`: no Python decision depends on the value of a tensor, and anything that lasts from
    step to step is updated in place. Tensors and networks among its attributes are part of a checkpoint.
    """

    name: ClassVar[str]
    """The teacher's name in settings and on the command line."""
    title: ClassVar[str]
    """How tables name it: 'EMA'."""
    summary: ClassVar[str] = ""
    """What the teacher does, in one line."""
    revision: ClassVar[int] = 1
    """Raised by hand when runs with it come out differently, so that older results are not taken for new ones."""
    teaches: ClassVar[bool] = False
    """Whether it adds to the loss. One that does not only answers in evaluation: it leaves the network as it is and
    draws no random numbers, so that a run with it and one without a teacher can be trained once."""
    Options: ClassVar[type] = NoOptions
    """A frozen dataclass of the settings that only this teacher has, each with a default and a line of help."""

    def __init__(self, network: Backbone, options: Any) -> None:
        self.options = options

    @classmethod
    def advice(cls, options: Any, steps: int) -> Iterator[str]:
        """Lines about options that hardly make sense where a task may have as few steps."""
        yield from ()

    def recording_key(self, task: int) -> Hashable:
        """What Python decides by in `after_step`: equal keys mean the same kernels."""
        return None

    def lesson(self, views: Views, pixels: Tensor, labels: Tensor) -> Lesson:
        """What it teaches in a step about raw images, replayed ones first; called only if it `teaches`."""
        raise UsageError(f"{type(self).__name__} has to define lesson")

    def after_step(self, network: Backbone, task: int) -> None:
        """Follow the network, after each step of an optimizer on it, of which a batch may have several."""
        raise UsageError(f"{type(self).__name__} has to define after_step")

    def answering(self, network: Backbone) -> Backbone:
        """The network that answers in evaluation, in place of the one that is trained."""
        raise UsageError(f"{type(self).__name__} has to define answering")


register = TEACHERS.add
"""Registers a teacher for the command line and the tests."""
