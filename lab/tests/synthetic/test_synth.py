"""Synthetic systems: the truth that they promise is the truth of their runs."""

import json
import math

import numpy as np
import pytest
from broadleaf_lab import Study
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.runs import COLUMNS, read_runs

from synthetic.study import system, write
from synthetic.system import SyntheticSystem, seedlike, simulate, two_level

BASE_US = 1182.0
NO_LOG, NO_LINES, AFFINITY = "cfg_no_init_logging", "src_submit_biglogs_remove", "affinity"


def test_seedlike_has_the_numbers_of_the_study():
    made = seedlike()
    study = made.study()
    base = study.baseline
    assert len(study.factors) == 18
    assert made.mean_us(base) == pytest.approx(1182)
    assert made.mean_us(study.all_on) == pytest.approx(61)
    assert made.mean_us({**base, NO_LOG: True}) - BASE_US == pytest.approx(-577)
    assert made.mean_us({**base, NO_LINES: True}) - BASE_US == pytest.approx(-491)
    both = made.mean_us({**base, NO_LOG: True, NO_LINES: True}) - BASE_US
    assert both + 577 + 491 == pytest.approx(358)


def test_seedlike_affinity_helps_when_slow_and_hinders_when_fast():
    made = seedlike()
    study = made.study()
    assert made.contrast(AFFINITY, study.baseline) < -0.1
    assert made.contrast(AFFINITY, study.all_on) > 0.03
    best = made.best()
    assert not best[AFFINITY]
    assert not best["placebo"]
    assert made.mean_us(best) < made.mean_us({**study.all_on, "placebo": False})
    assert 55 < made.mean_us(best) < 61


def test_seedlike_kinds_are_what_they_are_called():
    made = seedlike()
    for (one, other), kind in made.kinds.items():
        pair = made.interaction(one, other)
        # Averages over the levels of all others: alone, and after the other.
        alone = [made.average_effect(name) - pair / 2 for name in (one, other)]
        after = [made.average_effect(name) + pair / 2 for name in (one, other)]
        if kind == "either-or":
            assert all(abs(a) < 0.6 * abs(b) for a, b in zip(after, alone, strict=True))
        elif kind == "sign-flip":
            assert any(a * b < 0 and min(abs(a), abs(b)) > 0.03 for a, b in zip(after, alone, strict=True))
        elif kind == "synergistic":
            assert all(a < b < 0 for a, b in zip(after, alone, strict=True))
        else:
            assert kind == "antagonistic"
            assert all(b < a < 0 for a, b in zip(after, alone, strict=True))


def test_average_effects_are_averages():
    made = two_level({"a": -0.5, "b": 0.2, "c": 0.1}, {("a", "b"): 0.3, ("b", "c"): -0.1})
    contexts = [{"a": False, "b": b, "c": c} for b in (False, True) for c in (False, True)]
    assert made.average_effect("a") == pytest.approx(np.mean([made.contrast("a", x) for x in contexts]))
    assert made.average_effect("b") == pytest.approx(0.2 + 0.15 - 0.05)


def test_best_is_the_lowest_of_all():
    made = two_level({"a": -0.5, "b": 0.2, "c": -0.1}, {("a", "c"): 0.3, ("a", "b"): -0.4})
    assert made.best() == {"a": True, "b": True, "c": False}


@pytest.mark.parametrize(
    ("scale", "effect", "both_us"),
    [("log", -0.2, 1000 * math.exp(-0.4)), ("us", -200.0, 600), ("rate", 250.0, 1e6 / 1500)],
)
def test_effects_add_up_on_the_scale_of_the_truth(scale, effect, both_us):
    made = two_level({"a": effect, "b": effect}, scale=scale, noise=0.0)
    assert made.mean_us({"a": True, "b": True}) == pytest.approx(both_us)
    assert made.mean_us({"a": False, "b": False}) == pytest.approx(1000)


def test_levels_have_effects_of_their_own():
    n = Factor("n", "config", (0, 4, 64), 0, "log2")
    made = SyntheticSystem((n, Factor("a", "flag")), 100, {"n": {4: -0.3, 64: -0.6}, "a": 0.1}, {("a", "n"): 0.2})
    assert made.truth({"n": 4, "a": False}) == pytest.approx(math.log(100) - 0.3)
    assert made.truth({"n": 4, "a": True}) == pytest.approx(math.log(100) - 0.3 + 0.1 + 0.1)
    assert made.truth({"n": 64, "a": True}) == pytest.approx(math.log(100) - 0.6 + 0.1 + 0.2)


def test_noise_tail_and_outliers_are_as_told():
    rng = np.random.default_rng(1)
    config = {"a": False}
    plain = np.log([two_level({"a": 0.0}, noise=0.1).time_us(config, rng, 0) for _ in range(4000)])
    assert plain.mean() == pytest.approx(math.log(1000), abs=0.006)
    assert plain.std() == pytest.approx(0.1, rel=0.05)
    tailed = np.log([two_level({"a": 0.0}, noise=0.0, tail=0.2).time_us(config, rng, 0) for _ in range(4000)])
    assert tailed.mean() - math.log(1000) == pytest.approx(0.2, rel=0.08)
    times = [two_level({"a": 0.0}, noise=0.0, outliers=0.03).time_us(config, rng, 0) for _ in range(4000)]
    assert set(np.round(times)) == {1000, 3000}
    assert np.mean(np.array(times) > 2000) == pytest.approx(0.03, abs=0.01)


def test_drift_grows_over_the_session_and_swings_over_the_day():
    made = two_level({"a": 0.0}, noise=0.0, drift_linear=0.2)
    rows = simulate(made.study(kind="full", replicates=10).plan(), made, 1)
    times = np.array([row["time_per_task_us"] for row in rows])
    assert np.allclose(np.diff(times), 200 / len(rows))
    assert times[0] == pytest.approx(1000)
    daily = two_level({"a": 0.0}, noise=0.0, drift_daily=0.1)
    assert daily.time_us({"a": False}, np.random.default_rng(1), 6 * 3600) == pytest.approx(1100)


def test_rows_are_rows_of_runs_csv():
    made = seedlike()
    plan = made.study(kind="paths", paths=2).plan()
    rows = simulate(plan, made, 5)
    assert len(rows) == len(plan)
    for row, planned in zip(rows, plan.rows, strict=True):
        assert list(row) == [*COLUMNS, *(f.name for f in made.factors)]
        assert row["plan_row"] == planned.row
        assert row["status"] == "ok"
    assert rows == simulate(plan, made, 5)
    assert rows != simulate(plan, made, 6)


def test_a_synthetic_study_on_disk_is_the_same_as_in_memory(tmp_path):
    plan = write(tmp_path, "seedlike", seed=4, design={"kind": "paths", "paths": 3}, noise=0.05)
    study = Study.load(tmp_path)
    assert study.plan().rows == plan.rows
    made = seedlike()
    assert [(f.name, f.tier, f.loses, f.is_bool) for f in study.factors] == [
        (f.name, f.tier, f.loses, True) for f in made.factors
    ]
    kept = read_runs(tmp_path / "runs.csv", study.factors)
    rows = simulate(plan, made, 4)
    assert [row["config_id"] for row in kept] == [row["config_id"] for row in rows]
    assert [row["run_id"] for row in kept] == [row["run_id"] for row in rows]
    assert np.allclose([row["time_per_task_us"] for row in kept], [row["time_per_task_us"] for row in rows])
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["all_on_us"] == pytest.approx(61)
    assert truth["effects"][NO_LOG]["baseline"] == pytest.approx(math.log(605 / 1182))


def test_the_null_system_has_no_effect():
    made = system("null", noise=0.03)
    assert made.noise == 0.03
    assert {round(made.mean_us(row.config), 9) for row in made.study().plan().rows} == {1000}
