"""Intervals of paired runs: known quantiles, coverage, resistance to disturbed runs."""

import random
import statistics

import pytest
from broadleaf_lab.analysis.pairs.intervals import (
    heterogeneity_p,
    mean_interval,
    trimmed_interval,
)
from scipy import stats


def test_groups_alike_do_not_differ():
    assert heterogeneity_p([[1.0, 2.0, 3.0, 4.0]] * 2) == pytest.approx(1.0)
    assert heterogeneity_p([[1.0, 2.0, 3.0], [11.0, 12.0, 13.0]]) == pytest.approx(stats.f.sf(150, 1, 4), rel=1e-9)


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
