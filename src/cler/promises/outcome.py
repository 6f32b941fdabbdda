"""Which promises a method, regularizer, teacher or network has kept, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class BrokenPromise(AssertionError):  # noqa: N818 - it reads as what happened
    """A promise that was not kept; its text says in words what was found instead."""


def demand(holds: bool, otherwise: str) -> None:
    """Refuse what does not hold."""
    if not holds:
        raise BrokenPromise(otherwise)


@dataclass(frozen=True)
class Outcome:
    """One promise, and why it was not kept."""

    promise: str
    """What was promised, in plain words."""
    failure: str | None = None
    """What was found instead; None for a promise that was kept."""

    def __str__(self) -> str:
        return f"✓ {self.promise}" if self.failure is None else f"✗ {self.promise}\n    {self.failure}"


@dataclass(frozen=True)
class Report:
    """Which of its promises a method, regularizer, teacher or network has kept; it prints as a table."""

    kind: str
    """'method', 'regularizer', 'teacher' or 'network'."""
    name: str
    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not self.failures

    @property
    def failures(self) -> list[Outcome]:
        """The promises that were not kept."""
        return [each for each in self.outcomes if each.failure is not None]

    @property
    def summary(self) -> str:
        """One line for all of it."""
        count = len(self.outcomes)
        kept = (
            f"keeps all of its {count} promises" if self.passed else f"breaks {len(self.failures)} of {count} promises"
        )
        return f"the {self.kind} {self.name} {kept}"

    def to_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        promises = [
            {"promise": each.promise, "kept": each.failure is None, "failure": each.failure} for each in self.outcomes
        ]
        return {"kind": self.kind, "name": self.name, "passed": self.passed, "promises": promises}

    def __str__(self) -> str:
        return "\n".join([*map(str, self.outcomes), self.summary])

    __repr__ = __str__
