"""Means, deviations and significance tests over a handful of runs.

Deviations are sample deviations (ddof 1). What a sample is too small for is NaN: the deviation of one value, a
p-value with fewer than two values on a side. Differences and statistics are second minus first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from cler.errors import UsageError

# scipy is imported where it is used: it would double the time that `import cler` takes.

RESAMPLES = 10_000
"""Number of bootstrap samples."""
LEVEL = 0.95
"""Confidence level of intervals."""


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
    return _two_sided(mean2 - mean1, *_welch_error(std1, n1, std2, n2))


def paired_t_test(first: Sequence[float], second: Sequence[float]) -> TTest:
    """Student's test on the differences of runs that belong together (the same seed in both)."""
    if len(first) != len(second):
        raise UsageError(f"a paired test needs equally many values on both sides, not {len(first)} and {len(second)}")
    mean, std = mean_std([b - a for a, b in zip(first, second, strict=True)])
    return _two_sided(mean, std / math.sqrt(len(first)) if first else math.nan, len(first) - 1)


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student interval for the mean; NaN bounds with fewer than two values."""
    mean, std = mean_std(values)
    return _interval(mean, std / math.sqrt(len(values)) if values else math.nan, len(values) - 1)


def welch_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Welch's interval for the difference of the means; NaN bounds with fewer than two values on a side."""
    (mean1, std1), (mean2, std2) = mean_std(first), mean_std(second)
    return _interval(mean2 - mean1, *_welch_error(std1, len(first), std2, len(second)))


def bootstrap_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Percentile bootstrap interval for the difference of the means, each side resampled; repeatable."""
    import numpy as np

    if min(len(first), len(second)) < 2:
        return math.nan, math.nan
    generator = np.random.default_rng(0)
    means = [generator.choice(values, (RESAMPLES, len(values))).mean(1) for values in (first, second)]
    low, high = np.quantile(means[1] - means[0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for as many tests as there are p-values; NaN stays and does not count."""
    order = sorted((index for index, p in enumerate(p_values) if not math.isnan(p)), key=lambda index: p_values[index])
    corrected = [math.nan] * len(p_values)
    largest = 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[index]))
        corrected[index] = largest
    return corrected


def _welch_error(std1: float, n1: int, std2: float, n2: int) -> tuple[float, float]:
    """Standard error of the difference and its degrees of freedom."""
    if min(n1, n2) < 2:
        return math.nan, math.nan
    error1, error2 = std1**2 / n1, std2**2 / n2
    spread = error1**2 / (n1 - 1) + error2**2 / (n2 - 1)
    return math.sqrt(error1 + error2), (error1 + error2) ** 2 / spread if spread else math.nan


def _interval(middle: float, error: float, degrees: float) -> tuple[float, float]:
    from scipy.special import stdtrit

    # Without any spread there are no degrees of freedom either: the interval is a point.
    half = float(stdtrit(degrees, (1 + LEVEL) / 2)) * error if error else 0.0
    return middle - half, middle + half


def _two_sided(difference: float, error: float, degrees: float) -> TTest:
    from scipy.special import stdtr

    if error == 0:
        return TTest(math.copysign(math.inf, difference), 0.0) if difference else TTest(0.0, 1.0)
    if math.isnan(error) or math.isnan(difference):
        return TTest(math.nan, math.nan)
    statistic = difference / error
    return TTest(statistic, 2 * float(stdtr(degrees, -abs(statistic))))
