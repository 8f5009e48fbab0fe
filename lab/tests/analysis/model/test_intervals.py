"""Acceptance 2, 3, 4, 9 and 12, reduced: the long runs are the scripts in acceptance/."""

import numpy as np
import pytest
from acceptance import coverage, discoveries, drift, power, scales
from broadleaf_lab.analysis import frame
from broadleaf_lab.analysis.model.fit import fit
from synthetic.system import simulate

pytestmark = pytest.mark.statistics


@pytest.mark.timeout(120)
def test_intervals_contain_the_truth_as_often_as_they_say():
    found = coverage.run(24)
    hit = sum(rate * n for rate, n in found.values())
    asked = sum(n for _, n in found.values())
    assert asked > 1000
    assert 0.93 <= hit / asked <= 0.97


@pytest.mark.timeout(120)
def test_intervals_stand_a_tail_and_outliers():
    found = coverage.run(12, tail=0.05, outliers=0.03, outlier_factor=3.0)
    assert sum(rate * n for rate, n in found.values()) / sum(n for _, n in found.values()) >= 0.92


def test_standard_errors_are_right_where_runs_are_few_per_parameter():
    """The reason intervals use HC2: HC3 overstates variances by 1/(1 - p/N), here by a half."""
    ratios = {"HC2": [], "HC3": []}
    for seed in range(6):
        system = coverage.truth(seed)
        runs = frame.load(simulate(coverage.plan_of(system, seed), system, seed), system.factors)
        plain = fit(system.factors, runs, covariance="nonrobust")
        for kind, told in ratios.items():
            robust = fit(system.factors, runs, covariance=kind)
            told += [r.se / p.se for r, p in zip(robust.effects(), plain.effects(), strict=True)]
    assert np.mean(ratios["HC2"]) == pytest.approx(1.0, abs=0.05)
    assert np.mean(ratios["HC3"]) > 1.15


@pytest.mark.timeout(120)
def test_few_of_the_interactions_called_real_are_not():
    rates = discoveries.run(40, planted=True)
    assert rates.found >= 0.95
    assert rates.false_discovery <= 0.06
    assert rates.placebo_covers_zero >= 0.9


def test_blocks_and_order_keep_drift_out():
    main, pairs = drift.run(10, shuffled=True, drift_terms=True)
    assert main >= 0.9
    assert 0.93 <= pairs <= 0.97 + 0.02
    assert drift.run(10, shuffled=False, drift_terms=False)[0] < 0.8


@pytest.mark.parametrize("scale", ["us", "log", "rate"])
def test_the_scale_of_the_truth_is_found(scale):
    assert sum(scales.found(seed, scale) == scale for seed in range(5)) == 5


@pytest.mark.timeout(240)  # it plans and fits many studies
def test_power_is_what_was_predicted():
    predicted, simulated = power.compare(40, "main", 3.0, 0.05)
    assert abs(predicted - simulated) <= 0.05
