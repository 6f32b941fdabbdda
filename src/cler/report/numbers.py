"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sized
from decimal import ROUND_HALF_UP, Decimal

from cler.runs.compare import Estimate

SIGNIFICANT = 0.05


def format_p(p_value: float) -> str:
    """'p < 0.001', 'p = 0.027', 'p = 0.41'; empty for NaN."""
    if math.isnan(p_value):
        return ""
    if p_value < 0.001:
        return "p < 0.001"
    return f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def bare_p(p_value: float) -> str:
    """The same below a heading that says p: '< 0.001', '0.027'."""
    return format_p(p_value).removeprefix("p ").removeprefix("= ")


def fine_p(p_value: float) -> str:
    """The same to five decimals, as the paper's table of significance has them."""
    if math.isnan(p_value):
        return ""
    return "< 0.00001" if p_value < 0.00001 else f"{p_value:.5f}"


def plus_minus(estimate: Estimate, sign: str = "±") -> str:
    """'20.88±1.06', or the mean alone where there is no deviation."""
    return f"{estimate.mean:.2f}" + ("" if math.isnan(estimate.std) else f"{sign}{estimate.std:.2f}")


def tenths(number: float) -> str:
    """To one decimal, halves up: '13.9' for 13.85, which a float is a little below."""
    return str(Decimal(str(number)).quantize(Decimal("0.1"), ROUND_HALF_UP))


def signed(number: float, digits: int) -> str:
    """With its sign: '+3.26'."""
    return f"{round(number, digits) + 0.0:+.{digits}f}"  # + 0.0: minus zero is not shown as a loss


def minus(text: str) -> str:
    """With a real minus sign, as wide as a plus."""
    return text.replace("-", "−")


def interval(bounds: tuple[float, float]) -> str:
    """'+2.31 to +4.21'; empty where there is none."""
    return "" if math.isnan(bounds[0]) else " to ".join(signed(bound, 2) for bound in bounds)


def count_runs(runs: Sized) -> str:
    """'1 run', '10 runs'."""
    return "1 run" if len(runs) == 1 else f"{len(runs)} runs"


def duration(seconds: float) -> str:
    """'48 s', '12 min', '3 h 05 min', '5 days'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours >= 72:
        return f"{round(hours / 24)} days"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
