"""What a method's own settings have to be; each check names the setting that is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from cler.errors import UsageError, unknown

MOST = 1_000_000
"""More than any run could use: a slip of the finger."""


def check_positive(options: Any, *names: str) -> None:
    """Numbers larger than zero."""
    _check(options, names, "be larger than zero", lambda value: value > 0)


def check_not_negative(options: Any, *names: str) -> None:
    """Numbers from zero."""
    _check(options, names, "not be negative", lambda value: value >= 0)


def check_shares(options: Any, *names: str) -> None:
    """Numbers from 0 to 1."""
    _check(options, names, "lie between 0 and 1", lambda value: 0 <= value <= 1)


def check_counts(options: Any, *names: str, least: int = 1, most: int = MOST) -> None:
    """Whole numbers within bounds."""
    _check(options, names, f"be a number from {least} to {most}", lambda value: least <= value <= most)


def check_variant(options: Any, method: str, variants: Sequence[str]) -> None:
    """One of the ways that a method can be run."""
    if options.variant not in variants:
        raise unknown(f"variant of {method}", options.variant, variants)


def _check(options: Any, names: Sequence[str], rule: str, holds: Callable[[float], bool]) -> None:
    for name in names:
        value = getattr(options, name)
        if not (math.isfinite(value) and holds(value)):
            raise UsageError(f"{name} must {rule}, not {value}")
