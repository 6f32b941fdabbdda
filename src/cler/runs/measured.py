"""What is computed from the metrics, and computed again when a user adds or replaces one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cler.metrics import METRICS, Metric

T = TypeVar("T")


class Measured(Generic[T]):
    """A property that is computed from `METRICS` once, and again when a metric has been added or replaced."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._place = f"measured {compute.__name__}"
        self.__doc__ = compute.__doc__

    def __get__(self, thing: Any, of: type | None = None) -> T:
        if thing is None:
            return self  # type: ignore[return-value]
        known = vars(thing).get(self._place)
        if known is None or known.by != METRICS:
            known = vars(thing)[self._place] = _Known(dict(METRICS), self._compute(thing))
        return known.value


@dataclass
class _Known:
    by: dict[str, Metric]
    value: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return _Known, ({}, None)  # a copy computes again: it may be in a process that has other metrics
