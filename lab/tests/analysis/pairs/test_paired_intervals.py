"""Intervals of paired runs: known quantiles, coverage, resistance to disturbed runs."""

import math
import random
import statistics

import pytest
from broadleaf_lab.analysis.pairs.intervals import (
    heterogeneity_p,
    mean_interval,
    trimmed_interval,
    welch_p,
)
from scipy import stats


def test_welch_by_hand():
    a, b = [1.0, 2.0, 3.0, 4.0], [3.0, 5.0, 7.0]
    # t = -2.5 / sqrt(5/12 + 4/3), df = 1.75^2 / ((5/12)^2/3 + (4/3)^2/2)
    df = 1.75**2 / ((5 / 12) ** 2 / 3 + (4 / 3) ** 2 / 2)
    assert welch_p(a, b) == pytest.approx(2 * stats.t.cdf(-2.5 / math.sqrt(1.75), df), rel=1e-9)
    assert heterogeneity_p([a, a]) == pytest.approx(1.0)


@pytest.mark.parametrize("interval", [mean_interval, trimmed_interval])
def test_coverage_is_as_promised(interval):
    rng = random.Random(11)
    hits, n = 0, 2000
    for _ in range(n):
        found = interval([rng.gauss(0.03, 0.05) for _ in range(15)])
        hits += found.low <= 0.03 <= found.high
    # Three standard errors of a share of 0.95 in 2,000.
    assert hits / n == pytest.approx(0.95, abs=0.0147)


def test_a_few_disturbed_runs_widen_the_trimmed_interval_little():
    rng = random.Random(12)
    values = [rng.gauss(0, 0.01) for _ in range(30)]
    disturbed = [*values[:-2], 1.5, -1.2]
    assert trimmed_interval(disturbed).half_width < 1.5 * trimmed_interval(values).half_width
    assert mean_interval(disturbed).half_width > 10 * mean_interval(values).half_width
    assert trimmed_interval(values).estimate == pytest.approx(statistics.fmean(values), abs=0.002)
