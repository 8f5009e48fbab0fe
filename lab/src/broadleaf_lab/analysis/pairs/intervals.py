"""Intervals and tests for paired runs, using only the standard library; `compare` and `gate` decide by them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate of a log ratio with its confidence interval."""

    estimate: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2


def mean_interval(values: Sequence[float], alpha: float = 0.05) -> Interval:
    """The mean with its t interval. Needs two values."""
    n = len(values)
    middle = statistics.fmean(values)
    half = t_quantile(1 - alpha / 2, n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Interval(middle, middle - half, middle + half, n)


def trimmed_interval(values: Sequence[float], alpha: float = 0.05, trim: float = 0.2) -> Interval:
    """The trimmed mean with the Tukey-McLaughlin interval: a few disturbed runs change it little. It estimates
    the mean if the differences are symmetric, which pairs in random order are. Needs at least five values."""
    n = len(values)
    cut = int(trim * n)
    ordered = sorted(values)
    kept = ordered[cut : n - cut]
    winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
    middle = statistics.fmean(kept)
    error = statistics.stdev(winsorised) / ((1 - 2 * cut / n) * math.sqrt(n))
    half = t_quantile(1 - alpha / 2, len(kept) - 1) * error
    return Interval(middle, middle - half, middle + half, n)


@cache
def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t distribution."""
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if t_cdf(middle, df) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_cdf(t: float, df: float) -> float:
    """Distribution function of Student's t."""
    tail = incomplete_beta(df / 2, 0.5, df / (df + t * t)) / 2
    return 1 - tail if t > 0 else tail


def f_tail(f: float, df1: float, df2: float) -> float:
    """Probability of a larger F with these degrees of freedom."""
    if f <= 0:
        return 1.0
    return incomplete_beta(df2 / 2, df1 / 2, df2 / (df2 + df1 * f))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        # The fraction converges fast only on this side.
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    result = d
    for m in range(1, 1000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + numerator * d or tiny)
            c = 1 + numerator / c or tiny
            result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * result / a


def fails_more_p(only_a: int, only_b: int) -> float:
    """Probability that B alone fails in so many pairs or more, if it fails no more often than A (McNemar's exact test,
    one-sided). `only_a` and `only_b` count the pairs in which only one side failed.
    """
    n = only_a + only_b
    return sum(math.comb(n, k) for k in range(only_b, n + 1)) / (1 << n)


def heterogeneity_p(groups: Sequence[Sequence[float]]) -> float:
    """Probability of means as different as these if all groups had the same mean (F test); 1 if no group repeats."""
    groups = [group for group in groups if group]
    n = sum(map(len, groups))
    df1, df2 = len(groups) - 1, n - len(groups)
    if df1 < 1 or df2 < 1:
        return 1.0
    grand = statistics.fmean([value for group in groups for value in group])
    between = sum(len(group) * (statistics.fmean(group) - grand) ** 2 for group in groups)
    within = sum((value - statistics.fmean(group)) ** 2 for group in groups for value in group)
    if within == 0:
        return 0.0 if between > 0 else 1.0
    return f_tail((between / df1) / (within / df2), df1, df2)


def welch_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided probability of means as different as these (Welch's t test). 1 if a side has fewer than two."""
    if len(a) < 2 or len(b) < 2:
        return 1.0
    va, vb = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    difference = statistics.fmean(a) - statistics.fmean(b)
    if va + vb == 0:
        return 0.0 if difference else 1.0
    df = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return 2 * (1 - t_cdf(abs(difference) / math.sqrt(va + vb), df))
