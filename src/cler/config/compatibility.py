"""What goes together: methods, teachers, streams, networks, and sizes of batches and buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cler.config.registry import METHODS, REGULARIZERS, STREAMS, TEACHERS
from cler.config.values import has_own_network, is_own_network
from cler.errors import UsageError

if TYPE_CHECKING:
    from cler.config.settings import Settings


def check_goes_together(settings: Settings) -> None:
    """Refuse settings of which each is allowed, but not beside the others."""
    _check_parts(settings)
    _check_batches(settings)
    _check_network(settings)


def fits(method: str, teacher: str) -> bool:
    """Whether the method can be trained beside the teacher: one that teaches needs one that is teachable."""
    teaches = teacher in TEACHERS and TEACHERS[teacher].teaches
    return not teaches or bool(METHODS.find(method).teachable)


def lacks(stream: str, method: str) -> str | None:
    """What a method needs that a stream does not have, in words."""
    has, needs = STREAMS.find(stream), METHODS.find(method)
    if needs.merged or needs.task_free:
        return None
    if not has.boundaries:
        return "does not say where tasks begin and end"
    return "has no tasks with classes of their own" if needs.own_classes and not has.disjoint else None


def _check_parts(settings: Settings) -> None:
    """Refuse parts that do not go together, and weights that are not one for each regularizer."""
    if not fits(settings.method, settings.teacher):
        taught = ", ".join(name for name in METHODS if fits(name, settings.teacher))
        raise UsageError(f"{settings.teacher} cannot teach {settings.method}; it can teach {taught}", "teacher")
    if lacking := lacks(settings.stream, settings.method):
        known = ", ".join(name for name in METHODS if not lacks(settings.stream, name))
        raise UsageError(
            f"{settings.stream} {lacking}, which {settings.method} needs; methods that do not: {known}", "stream"
        )
    weights = str(settings.weight).count("+") + 1
    if weights > 1 and weights != len(settings.regularizers):
        raise UsageError(
            f"{settings.weight} has {weights} parts for {len(settings.regularizers)} regularizers: give one for each",
            "weight",
        )


def _check_batches(settings: Settings) -> None:
    """Refuse batches that are too small, and what a method without a buffer cannot do."""
    method = METHODS.find(settings.method)
    smallest = max([method.smallest_batch, *(REGULARIZERS[name].smallest_batch for name in settings.regularizers)])
    if settings.batch < smallest:
        raise UsageError(f"must be at least {smallest} for {settings.pair}, not {settings.batch}", "batch")
    if method.replays and settings.buffer < settings.replay_batch:
        raise UsageError(
            f"{settings.buffer} is smaller than the replay batch of {settings.replay_batch}, drawn from it without "
            "repetition: make the buffer larger, or the replay batch smaller",
            "buffer",
        )
    if settings.classifier == "ncm" and not method.replays:
        raise UsageError(
            f"ncm classifies by the images of a buffer, and {settings.method} has none: leave it out", "classifier"
        )
    if settings.repeats > 1 and not method.replays:
        raise UsageError(f"{settings.repeats} is for methods with a buffer, and {settings.method} has none", "repeats")
    if settings.repeats > 1 and method.own_repeats:
        raise UsageError(f"{settings.repeats}: {settings.method} has {method.own_repeats} instead; set that", "repeats")


def _check_network(settings: Settings) -> None:
    """Refuse a network that is another method's, or none of the method's."""
    own = has_own_network(METHODS.find(settings.method))
    if own and settings.network != settings.method:
        raise UsageError(f"{settings.network}: {settings.method} has a network of its own; leave it out", "network")
    if not own and is_own_network(settings.network):
        raise UsageError(f"{settings.network} is the network of the method of that name alone", "network")
