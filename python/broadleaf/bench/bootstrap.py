"""An interval for a ratio of two interleaved series."""

import random
import statistics
from typing import NamedTuple


class Interval(NamedTuple):
    low: float
    middle: float
    high: float


def ratio(numerator: list[float], denominator: list[float], resamples: int = 4000, level: float = 0.95) -> Interval:
    """The ratio of the medians of two series taken in pairs, with its percentile bootstrap interval.

    Pairs are drawn together, so what the machine did to both at once cancels. The draws are seeded: the same
    series give the same interval.
    """
    if len(numerator) != len(denominator) or not numerator:
        raise ValueError(f"series of {len(numerator)} and {len(denominator)} values cannot be paired")
    pairs = list(zip(numerator, denominator, strict=True))
    source = random.Random(0)
    draws = sorted(_ratio_of_medians(source.choices(pairs, k=len(pairs))) for _ in range(resamples))
    tail = (1 - level) / 2
    return Interval(draws[int(tail * resamples)], _ratio_of_medians(pairs), draws[int((1 - tail) * resamples) - 1])


def _ratio_of_medians(pairs: list[tuple[float, float]]) -> float:
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)
