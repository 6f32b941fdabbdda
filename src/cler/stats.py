"""Means, deviations and significance tests over a handful of runs.

Deviations are sample deviations (ddof 1). What a sample is too small to say is NaN: the deviation of one value, a
p-value with fewer than two values on a side. Differences and statistics are second minus first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from cler.errors import UsageError

# scipy is imported where it is used: it would double the time that `import cler` takes.


class TTest(NamedTuple):
    """A two-sided test: positive statistic when the second sample is larger."""

    statistic: float
    p_value: float


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample deviation; the deviation of a single value is NaN, and so is everything about no values."""
    numbers = [float(value) for value in values]
    if not numbers or not all(map(math.isfinite, numbers)):
        return math.nan, math.nan
    # `statistics` is exact: equal values have deviation 0, not 1e-17.
    return statistics.mean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else math.nan


def t_test(first: Sequence[float], second: Sequence[float]) -> TTest:
    """Student's test with pooled variance, the one behind the paper's p-values."""
    return t_test_from_summary(*mean_std(first), len(first), *mean_std(second), len(second))


def t_test_from_summary(mean1: float, std1: float, n1: int, mean2: float, std2: float, n2: int) -> TTest:
    """Student's test with pooled variance, from means, sample deviations and counts."""
    if min(n1, n2) < 2:
        return TTest(math.nan, math.nan)
    degrees = n1 + n2 - 2
    pooled_variance = ((n1 - 1) * std1**2 + (n2 - 1) * std2**2) / degrees
    return _two_sided(mean2 - mean1, math.sqrt(pooled_variance * (1 / n1 + 1 / n2)), degrees)


def welch(first: Sequence[float], second: Sequence[float]) -> TTest:
    """Welch's test, which does not assume equal variances."""
    return welch_from_summary(*mean_std(first), len(first), *mean_std(second), len(second))


def welch_from_summary(mean1: float, std1: float, n1: int, mean2: float, std2: float, n2: int) -> TTest:
    """Welch's test from means, sample deviations and counts."""
    if min(n1, n2) < 2:
        return TTest(math.nan, math.nan)
    error1, error2 = std1**2 / n1, std2**2 / n2
    spread = error1**2 / (n1 - 1) + error2**2 / (n2 - 1)
    degrees = (error1 + error2) ** 2 / spread if spread else math.nan
    return _two_sided(mean2 - mean1, math.sqrt(error1 + error2), degrees)


def paired_t_test(first: Sequence[float], second: Sequence[float]) -> TTest:
    """Student's test on the differences of runs that belong together (the same seed in both)."""
    if len(first) != len(second):
        raise UsageError(f"a paired test needs equally many values on both sides, not {len(first)} and {len(second)}")
    mean, std = mean_std([b - a for a, b in zip(first, second, strict=True)])
    return _two_sided(mean, std / math.sqrt(len(first)) if first else math.nan, len(first) - 1)


def confidence_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student interval for the mean; NaN bounds with fewer than two values."""
    from scipy.special import stdtrit

    if not 0 < level < 1:
        raise UsageError(f"a confidence level lies between 0 and 1, not {level}")
    mean, std = mean_std(values)
    if math.isnan(std):
        return math.nan, math.nan
    half = float(stdtrit(len(values) - 1, (1 + level) / 2)) * std / math.sqrt(len(values))
    return mean - half, mean + half


def _two_sided(difference: float, error: float, degrees: float) -> TTest:
    from scipy.special import stdtr

    if error == 0:
        return TTest(math.copysign(math.inf, difference), 0.0) if difference else TTest(0.0, 1.0)
    if math.isnan(error) or math.isnan(difference):
        return TTest(math.nan, math.nan)
    statistic = difference / error
    return TTest(statistic, 2 * float(stdtr(degrees, -abs(statistic))))
