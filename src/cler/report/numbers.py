"""Numbers as strings for people."""

from __future__ import annotations

import math
from collections.abc import Sized
from decimal import ROUND_HALF_UP, Decimal

from cler.runs.series import Estimate

SIGNIFICANT = 0.05
"""A p-value below this is called significant."""


def or_nan(number: float | None) -> float:
    """The number, or NaN where it is not known."""
    return math.nan if number is None else number


def format_p(p_value: float) -> str:
    """'p < 0.001', 'p = 0.027', 'p = 0.41'; empty for NaN."""
    if math.isnan(p_value):
        return ""
    if p_value < 0.001:
        return "p < 0.001"
    return f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def bare_p(p_value: float) -> str:
    """A p-value below a heading that says p: '< 0.001', '0.027'; empty for NaN."""
    return format_p(p_value).removeprefix("p ").removeprefix("= ")


def plus_minus(estimate: Estimate, sign: str = "±") -> str:
    """Mean and deviation: '20.88±1.06'; the mean alone where the deviation is NaN."""
    return f"{estimate.mean:.2f}" + ("" if math.isnan(estimate.std) else f"{sign}{estimate.std:.2f}")


def tenths(number: float) -> str:
    """A number to one decimal, halves rounded up: '13.9' for 13.85, which as a float is a little less."""
    return str(Decimal(str(number)).quantize(Decimal("0.1"), ROUND_HALF_UP))


def signed(number: float, digits: int) -> str:
    """A number with its sign: '+3.26'."""
    return f"{round(number, digits) + 0.0:+.{digits}f}"  # + 0.0: minus zero is not shown as a loss


def minus(text: str) -> str:
    """The string with real minus signs, as wide as a plus."""
    return text.replace("-", "−")


def interval(bounds: tuple[float, float]) -> str:
    """An interval: '+2.31 to +4.21'; empty where its bounds are NaN."""
    return "" if math.isnan(bounds[0]) else " to ".join(signed(bound, 2) for bound in bounds)


def count_runs(runs: Sized) -> str:
    """How many runs there are: '1 run', '10 runs'."""
    return "1 run" if len(runs) == 1 else f"{len(runs)} runs"


def count_rows(rows: Sized) -> str:
    """How many rows there are: '1 row', '10 rows'."""
    return "1 row" if len(rows) == 1 else f"{len(rows)} rows"


def duration(seconds: float) -> str:
    """A time for people: '48 s', '12 min', '3 h 05 min', '5 days'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours >= 72:
        return f"{round(hours / 24)} days"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
