"""What every regularizer is, and the table of those that the command line knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor, nn

from cler.config.registry import REGULARIZERS
from cler.config.schema import NoOptions
from cler.errors import UsageError
from cler.nets.backbone import Parts, PretextImages


class Regularizer(nn.Module):
    """A loss on the network's inner workings, added to a method's own loss.

    It may own parameters, which the method's optimizer trains with the network's, and state, which it updates in
    `after_step`. It follows the rule of `observe`: no Python decision depends on the value of a tensor.
    """

    raw_only: ClassVar[bool] = False
    """Whether the loss uses only the raw images."""
    moves_statistics: ClassVar[bool] = False
    """Whether the loss passes images through the network that move the running statistics of its batch norm, besides
    the method's own pass. A regularizer that does not mean to wraps its pass in `frozen_statistics`."""
    Options: ClassVar[type] = NoOptions
    """A frozen dataclass of the settings that only this regularizer has; it is built with each of them by name."""
    name: str = "regularizer"
    """The name of the loss in curves; a run sets it to the regularizer's name in settings."""

    def loss(
        self, network: nn.Module, raw: Tensor, augmented: Tensor, labels: Tensor, parts: Parts | None = None
    ) -> Tensor:
        """The weighted loss, a scalar, on the same images normalized only (`raw`) and as trained on (`augmented`).

        `labels` are the class numbers of the images, int64 (N,).
        `parts` are the parts of the batch, which are normalized separately where they pass the network.
        """
        raise UsageError(f"{type(self).__name__} has to define loss")

    def pretext_images(self, network: nn.Module, raw: Tensor, parts: Parts | None) -> PretextImages | None:
        """Images to go with the method's own pass, for `loss_of` to make the loss of; None where `loss` does it all."""
        return None

    def loss_of(self, pretext: PretextImages) -> Tensor:
        """The weighted loss of pretext images, once the network has made maps of them."""
        raise UsageError(f"{type(self).__name__} has to define loss_of")

    def after_step(self, network: nn.Module) -> None:
        """Called after each step of an optimizer on the network, of which a batch may have several."""


@dataclass(frozen=True)
class Entry:
    """A regularizer as the command line knows it."""

    name: str
    """The regularizer's name in settings and on the command line."""
    title: str
    """How tables name it: 'CLER (jigsaw)'."""
    summary: str
    """What the regularizer does, in one line."""
    build: Callable[..., Regularizer]
    """Called with the network, weight=…, views=…, generator=… and each of its own settings by name."""
    weight: float
    """Default weight of its loss."""
    check: Callable[[int, int], None] = lambda height, width: None
    """Called with image height and width; raises a UsageError for images it cannot take."""
    smallest_batch: int = 1
    """Smallest batch that it can take, in images."""
    revision: int = 1
    """Raised by hand when runs with it come out differently, so that older results are not taken for new ones."""
    Options: type = NoOptions
    """A frozen dataclass of the settings that only this regularizer has, each with a default and a line of help."""


R = TypeVar("R", bound=Entry | type[Regularizer])


def entry_of(regularizer: type[Regularizer]) -> Entry:
    """The entry that builds it, or one with its name and Options and a weight of 1.

    One without a name has that of its class, in lowercase.
    """
    for entry in REGULARIZERS.values():
        if entry.build is regularizer:
            found: Entry = entry
            return found
    name = regularizer.__name__.lower() if regularizer.name == Regularizer.name else regularizer.name
    return Entry(name, name, "", build=regularizer, weight=1.0, Options=regularizer.Options)


def register(regularizer: R) -> R:
    """Register a regularizer, or the entry that builds it, for the command line and the tests."""
    REGULARIZERS.add(entry_of(regularizer) if isinstance(regularizer, type) else regularizer)
    return regularizer
