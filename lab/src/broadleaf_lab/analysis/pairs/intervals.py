"""Intervals and tests for paired runs; `compare` and `gate` decide by them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_TRIM = 0.2


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
    from scipy.special import stdtrit

    n = len(values)
    middle = statistics.fmean(values)
    half = float(stdtrit(n - 1, 1 - alpha / 2)) * statistics.stdev(values) / math.sqrt(n)
    return Interval(middle, middle - half, middle + half, n)


def trimmed_interval(values: Sequence[float], alpha: float = 0.05) -> Interval:
    """The trimmed mean with the Tukey-McLaughlin interval: a few disturbed runs change it little. It estimates
    the mean if the differences are symmetric, which pairs in random order are. Needs at least five values."""
    from scipy.special import stdtrit

    n = len(values)
    cut = int(_TRIM * n)
    ordered = sorted(values)
    kept = ordered[cut : n - cut]
    winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
    middle = statistics.fmean(kept)
    error = statistics.stdev(winsorised) / ((1 - 2 * cut / n) * math.sqrt(n))
    half = float(stdtrit(len(kept) - 1, 1 - alpha / 2)) * error
    return Interval(middle, middle - half, middle + half, n)


def fails_more_p(only_a: int, only_b: int) -> float:
    """Probability that B alone fails in so many pairs or more, if it fails no more often than A (McNemar's exact test,
    one-sided). `only_a` and `only_b` count the pairs in which only one side failed.
    """
    n = only_a + only_b
    return sum(math.comb(n, k) for k in range(only_b, n + 1)) / (1 << n)


def heterogeneity_p(groups: Sequence[Sequence[float]]) -> float:
    """Probability of means as different as these if all groups had the same mean (F test); 1 if no group repeats."""
    from scipy.special import fdtrc

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
    return float(fdtrc(df1, df2, (between / df1) / (within / df2)))
