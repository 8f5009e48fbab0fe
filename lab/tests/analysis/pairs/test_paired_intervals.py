"""Intervals of paired runs: known quantiles, coverage, resistance to disturbed runs."""

import math
import random
import statistics

import pytest
from broadleaf_lab.analysis.pairs.intervals import (
    f_tail,
    heterogeneity_p,
    incomplete_beta,
    mean_interval,
    t_cdf,
    t_quantile,
    trimmed_interval,
    welch_p,
)


@pytest.mark.parametrize(
    ("p", "df", "value"),
    # From printed tables of the distribution.
    [(0.975, 1, 12.7062), (0.975, 5, 2.57058), (0.995, 10, 3.16927), (0.95, 30, 1.69726), (0.9995, 3, 12.9240)],
)
def test_quantiles_of_t(p, df, value):
    assert t_quantile(p, df) == pytest.approx(value, rel=1e-5)
    assert t_quantile(1 - p, df) == pytest.approx(-value, rel=1e-5)
    assert t_cdf(value, df) == pytest.approx(p, rel=1e-5)


def test_tail_of_f():
    # The 5 % and 1 % points of F(3, 10) and F(17, 18).
    assert f_tail(3.70826, 3, 10) == pytest.approx(0.05, rel=1e-4)
    assert f_tail(6.55231, 3, 10) == pytest.approx(0.01, rel=1e-4)
    assert f_tail(2.5**2, 1, 12) == pytest.approx(2 * (1 - t_cdf(2.5, 12)), rel=1e-9)
    assert incomplete_beta(2, 3, 0.4) == pytest.approx(0.5248, abs=1e-12)


def test_welch_by_hand():
    a, b = [1.0, 2.0, 3.0, 4.0], [3.0, 5.0, 7.0]
    # t = -2.5 / sqrt(5/12 + 4/3), df = 1.75^2 / ((5/12)^2/3 + (4/3)^2/2)
    df = 1.75**2 / ((5 / 12) ** 2 / 3 + (4 / 3) ** 2 / 2)
    assert welch_p(a, b) == pytest.approx(2 * t_cdf(-2.5 / math.sqrt(1.75), df), rel=1e-9)
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
