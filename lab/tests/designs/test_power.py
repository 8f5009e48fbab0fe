"""Power: the formulas, the published figures, and runs that confirm them."""

import math

import numpy as np
import pytest
from broadleaf_lab.designs.power import detectable_pct, power_of, precision, runs_needed, smallest_pct, standard_error
from broadleaf_lab.designs.terms import Terms
from broadleaf_lab.errors import DesignError
from scipy import stats
from synthetic.system import simulate, two_level


@pytest.mark.parametrize(("noise", "runs"), [(3, 72), (5, 200), (10, 801)])
def test_runs_for_a_main_effect_of_2_per_cent(noise, runs):
    assert abs(runs_needed(2, noise) - runs) <= 1


@pytest.mark.parametrize(("noise", "runs"), [(3, 107), (5, 297), (10, 1190)])
def test_runs_for_one_of_66_pairs_of_5_per_cent(noise, runs):
    assert abs(runs_needed(5, noise, "pair", comparisons=66) - runs) <= 1


@pytest.mark.parametrize("kind", ["main", "pair"])
def test_runs_needed_and_effect_shown_are_inverse(kind):
    runs = runs_needed(3, 5, kind, 0.9, 0.01, 10)
    assert detectable_pct(runs, 5, kind, 0.9, 0.01, 10) <= 3 < detectable_pct(runs - 1, 5, kind, 0.9, 0.01, 10)
    assert power_of(3, standard_error(runs, 5, kind), alpha=0.01, comparisons=10) == pytest.approx(0.9, abs=0.003)


def test_no_effect_is_seen_as_often_as_alpha_says():
    assert power_of(0, 0.01) == pytest.approx(0.05)
    assert power_of(0, 0.01, residual_df=7) == pytest.approx(0.05)
    assert power_of(0, 0.01, residual_df=7, comparisons=5) == pytest.approx(0.01)


def test_few_degrees_of_freedom_cost_power():
    assert power_of(3, 0.01, residual_df=5) < power_of(3, 0.01, residual_df=50) < power_of(3, 0.01)
    assert smallest_pct(0.01) == pytest.approx(100 * math.expm1(0.01 * 2.8016), rel=1e-4)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(DesignError, match="no time at all"):
        runs_needed(-100, 5)
    with pytest.raises(DesignError, match="between 0 and 1"):
        runs_needed(1, 5, power=1.0)


def test_precision_of_an_orthogonal_design_is_the_formula():
    system = two_level({f"f{i}": 0.0 for i in range(8)})
    study = system.study(kind="resolution5", paths=0)
    plan = study.plan()
    found = {p.name: p for p in precision(plan, study.factors, 5.0)}
    assert len(found) == 8 + 28
    # The 8 controls tell a little more than the 64 runs alone, none of it within blocks.
    assert standard_error(72, 5) * 0.95 < found["f0"].se <= standard_error(64, 5)
    assert standard_error(72, 5, "pair") * 0.95 < found["f0:f1"].se <= standard_error(64, 5, "pair")
    assert found["f0"].residual_df == 72 - 36 - 4


def test_precision_knows_what_a_plan_cannot_tell():
    system = two_level({"a": 0.0, "b": 0.0, "c": 0.0}, constraints={"one": "not (a and b)"})
    study = system.study(kind="full", paths=0, replicates=3)
    found = {p.name: p for p in precision(study.plan(), study.factors, 5.0)}
    assert math.isinf(found["a:b"].se)
    assert not math.isinf(found["a:c"].se)
    few = two_level({f"f{i}": 0.0 for i in range(10)}).study(kind="greedy")
    assert {p.kind for p in precision(few.plan(), few.factors, 5.0)} == {"main"}


def test_predicted_power_is_that_of_simulated_studies():
    # Acceptance 12, reduced: the long run is in acceptance/power.py.
    system = two_level({"a": math.log(1.025), **{f"f{i}": 0.0 for i in range(5)}}, noise=0.05)
    study = system.study(kind="resolution5", replicates=2)
    plan = study.plan()
    expected = next(p for p in precision(plan, study.factors, 5.0) if p.name == "a")
    terms = Terms(study.factors)
    blocks = np.array([[row.block == b for b in sorted({r.block for r in plan.rows})] for row in plan.rows], float)
    matrix = np.column_stack([terms.matrix([row.config for row in plan.rows])[:, 1:], blocks])
    inverse = np.linalg.inv(matrix.T @ matrix)
    df = len(plan) - matrix.shape[1]
    assert df == expected.residual_df
    y = np.log([[row["time_per_task_us"] for row in simulate(plan, system, seed)] for seed in range(600)]).T
    beta = inverse @ matrix.T @ y
    s = np.sqrt(((y - matrix @ beta) ** 2).sum(axis=0) / df)
    t = beta[0] / (s * math.sqrt(inverse[0, 0]))
    seen = np.mean(np.abs(t) > stats.t.ppf(0.975, df))
    assert np.std(2 * beta[0]) == pytest.approx(expected.se, rel=0.08)
    assert seen == pytest.approx(power_of(2.5, expected.se, df), abs=0.05)
