"""Two configurations run side by side in the same blocks: the interval of their ratio."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from broadleaf_lab.analysis.pairs.intervals import mean_interval


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of times with its interval; below 1 the first is the faster. `n` is the number of pairs."""

    estimate: float
    low: float
    high: float
    n: int

    def inverse(self) -> Ratio:
        """The same as a speed-up: how many times as fast."""
        return Ratio(1 / self.estimate, 1 / self.high, 1 / self.low, self.n)

    def __str__(self) -> str:
        return f"{self.estimate:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio(log_differences: Sequence[float], confidence: float = 0.95) -> Ratio:
    """The geometric mean ratio of pairs, by Student's t on the differences of logarithms. With fewer than two pairs the
    interval is everything."""
    n = len(log_differences)
    if n < 2:
        return Ratio(math.exp(log_differences[0]) if n else 1.0, 0.0, math.inf, n)
    found = mean_interval(log_differences, 1 - confidence)
    return Ratio(math.exp(found.estimate), math.exp(found.low), math.exp(found.high), n)


def slower_p(log_differences: Sequence[float]) -> float:
    """One-sided p of "the first is not slower" from paired differences of logarithms."""
    from scipy.special import stdtr

    n = len(log_differences)
    if n < 2:
        return 1.0
    mean, sd = statistics.fmean(log_differences), statistics.stdev(log_differences)
    if sd == 0:
        return 0.0 if mean > 0 else 1.0
    return float(stdtr(n - 1, -mean / (sd / math.sqrt(n))))
