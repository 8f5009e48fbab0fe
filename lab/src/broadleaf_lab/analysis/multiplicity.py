"""Many tests at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CAUTION = 1.25
"""By how much false discovery rates of pairs are raised."""


def q_values(p: Sequence[float]) -> list[float]:
    """The false discovery rate at which each test would just be called significant (Benjamini and Hochberg); a test
    without a p value (nan) has none and counts for nothing."""
    from scipy.stats import false_discovery_control

    values = np.asarray(p, dtype=float)
    out = np.full(len(values), np.nan)
    told = np.isfinite(values)
    if told.any():
        out[told] = false_discovery_control(values[told])
    return [float(q) for q in out]


def pair_rates(p: Sequence[float]) -> list[float]:
    """The false discovery rates of pairs. A quarter is added: the errors are estimated and several pairs share them;
    without it, 6 to 7 % of the pairs called real were false with few runs (studies/coverage).
    """
    return [min(1.0, CAUTION * q) if q == q else q for q in q_values(p)]


def holm(p: Sequence[float]) -> list[float]:
    """p values adjusted by Holm's step-down, for families in which no false alarm is acceptable."""
    values = np.asarray(p, dtype=float)
    order = np.argsort(values)
    adjusted = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    found = np.empty(len(values))
    found[order] = np.minimum(adjusted, 1.0)
    return [float(value) for value in found]
