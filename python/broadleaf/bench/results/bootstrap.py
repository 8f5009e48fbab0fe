"""An interval for a ratio of two interleaved series."""

import random
import statistics
from typing import NamedTuple


class Interval(NamedTuple):
    low: float
    middle: float
    high: float


def ratio(numerator: list[float], denominator: list[float], resamples: int = 4000, level: float = 0.95) -> Interval:
    """The median of the ratios of two series taken in pairs, with its percentile bootstrap interval.

    A ratio is taken within a pair, so what the machine did to both at once cancels. The draws are seeded: the same
    series give the same interval.
    """
    if len(numerator) != len(denominator) or not numerator:
        raise ValueError(f"series of {len(numerator)} and {len(denominator)} values cannot be paired")
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    source = random.Random(0)
    draws = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(resamples))
    tail = (1 - level) / 2
    return Interval(draws[int(tail * resamples)], statistics.median(ratios), draws[int((1 - tail) * resamples) - 1])
