"""Models of runs: what they estimate is what was planted, and what runs cannot tell is not told."""

import math

import numpy as np
import pytest
from broadleaf.lab.analysis import frame as frames
from broadleaf.lab.analysis import scale as scales
from broadleaf.lab.analysis.coding import Coding, independent_columns
from broadleaf.lab.analysis.fit import fit
from broadleaf.lab.analysis.multiplicity import holm, q_values
from broadleaf.lab.constraints import Constraints
from broadleaf.lab.errors import AnalysisError, ConstraintError
from broadleaf.lab.factors import Factor, column_value
from broadleaf.lab.plan import Plan
from broadleaf.lab.synth import SyntheticSystem, simulate, two_level


def runs_of(system, configs, seed=0, per_block=8):
    """Rows of runs.csv as far as an analysis needs them."""
    rng = np.random.default_rng(seed)
    return [
        {
            "status": "ok",
            "time_per_task_us": system.time_us(config, rng, 0.0),
            "started_unix": 4.0 * at,
            "block": at // per_block,
            **{name: column_value(level) for name, level in config.items()},
        }
        for at, config in enumerate(configs)
    ]


def fitted(system, kind="full", replicates=1, seed=3, **options):
    plan = Plan.make(system.study(kind=kind, replicates=replicates, paths=0, seed=seed))
    return fit(system.factors, frames.load(simulate(plan, system, seed), system.factors), **options)


PLAIN = two_level(
    {"a": -0.5, "b": -0.3, "c": 0.2, "d": 0.0}, {("a", "b"): 0.25, ("b", "c"): -0.1}, noise=0.0, base_us=800.0
)


def test_without_noise_every_coefficient_is_the_planted_one():
    made = fitted(PLAIN, replicates=2)
    for effect in made.effects():
        assert effect.estimate == pytest.approx(PLAIN.average_effect(effect.factor), abs=1e-9)
        assert effect.ratio == pytest.approx(math.exp(effect.estimate))
    for pair in made.interactions():
        assert pair.estimate == pytest.approx(PLAIN.interaction(pair.a, pair.b), abs=1e-9)
    assert made.r_squared == pytest.approx(1.0)


def test_effects_at_a_corner_are_not_the_average_ones():
    made = fitted(PLAIN, replicates=2)
    at_baseline = {e.factor: e.estimate for e in made.effects("baseline")}
    assert at_baseline["a"] == pytest.approx(-0.5, abs=1e-9)
    assert at_baseline["b"] == pytest.approx(-0.3, abs=1e-9)
    with_b = {e.factor: e.estimate for e in made.effects({"b": True})}
    assert with_b["a"] == pytest.approx(-0.25, abs=1e-9)
    # d does nothing.
    assert {**made.best_config, "d": False} == {**PLAIN.best(), "d": False}
    best = {e.factor: e.estimate for e in made.effects("best")}
    assert best["a"] == pytest.approx(PLAIN.contrast("a", PLAIN.best()), abs=1e-9)


def test_predictions_and_differences_are_in_microseconds():
    made = fitted(PLAIN, replicates=2)
    config = {"a": True, "b": False, "c": False, "d": False}
    mean, low, high = made.predict([config])
    assert mean[0] == pytest.approx(800 * math.exp(-0.5))
    assert low[0] <= mean[0] <= high[0]
    difference = next(d for d in made.differences_us("baseline") if d.factor == "a")
    assert difference.delta_us == pytest.approx(800 * (math.exp(-0.5) - 1))


@pytest.mark.parametrize("scale", ["us", "rate"])
def test_other_scales_estimate_in_their_own_unit(scale):
    system = two_level(
        {"a": 300.0 if scale == "us" else -200.0, "b": 100.0},
        {("a", "b"): 50.0},
        base_us=1000.0,
        scale=scale,
        noise=0.0,
    )
    made = fitted(system, replicates=4, scale=scale)
    effects = {e.factor: e for e in made.effects("baseline")}
    planted = 300.0 if scale == "us" else -200.0
    assert effects["a"].estimate == pytest.approx(planted)
    assert effects["a"].unit == scales.UNITS[scale]
    after = 1.3 if scale == "us" else 1000 / 800
    assert effects["a"].ratio == pytest.approx(after)


def test_levels_of_categories_and_points_of_curves():
    factors = (
        Factor("py", "python", ("3.11", "3.12", "3.13"), "3.11"),
        Factor("prefetch", "config", (0, 1, 4, 16), 0, scale="log2"),
        Factor("flag", "flag"),
    )

    def position(level):
        return factors[1].position(level)

    system = SyntheticSystem(
        factors,
        500.0,
        {
            "py": {"3.12": -0.1, "3.13": -0.4},
            "prefetch": {level: 0.05 * position(level) - 0.02 * position(level) ** 2 for level in (1, 4, 16)},
            "flag": -0.2,
        },
        noise=0.0,
    )
    # The curve is planted relative to the default.
    shift = 0.05 * position(0) - 0.02 * position(0) ** 2
    configs = [
        {"py": py, "prefetch": prefetch, "flag": flag}
        for py in factors[0].levels for prefetch in factors[1].levels for flag in (False, True)
    ]  # fmt: skip
    rows = runs_of(system, configs * 3)
    for row in rows:
        if row["prefetch"] != 0:
            row["time_per_task_us"] *= math.exp(-shift)
    made = fit(factors, frames.load(rows, factors), pairs=False, drift=False, blocks="none")
    found = {(e.factor, e.level): e.estimate for e in made.effects()}
    assert found["py", "3.12"] == pytest.approx(-0.1)
    assert found["py", "3.13"] == pytest.approx(-0.4)
    assert found["flag", True] == pytest.approx(-0.2)
    for level in (1, 4, 16):
        planted = 0.05 * position(level) - 0.02 * position(level) ** 2 - shift
        assert found["prefetch", level] == pytest.approx(planted, abs=1e-9)


def test_columns_are_centred_over_the_levels():
    factors = (Factor("py", "python", ("a", "b", "c"), "a"), Factor("n", "config", (1, 2, 4, 64), 1, scale="log2"))
    coding = Coding(factors, pairs=False)
    rows = coding.rows([{"py": p, "n": n} for p in "abc" for n in (1, 2, 4, 64)])
    assert coding.column_names == ["mean", "py[b]", "py[c]", "n", "n^2"]
    assert np.allclose(rows[:, 1:].sum(axis=0), 0)
    assert rows[:, 3] @ rows[:, 4] == pytest.approx(0)
    assert np.ptp(rows[:, 3:], axis=0) == pytest.approx([1, 1])


def test_factors_that_exclude_each_other_keep_their_effects():
    system = two_level({"lazy": -0.3, "removed": -0.5, "c": 0.1}, noise=0.0)
    rules = Constraints(system.factors, {"one": "not (lazy and removed)"})
    configs = [
        {"lazy": lazy, "removed": removed, "c": c}
        for lazy in (False, True) for removed in (False, True) for c in (False, True)
    ]  # fmt: skip
    configs = [c for c in configs if rules.allows(c)] * 4
    made = fit(system.factors, frames.load(runs_of(system, configs), system.factors), drift=False)
    assert made.dropped == ["lazy:removed"]
    effects = {e.factor: e.estimate for e in made.effects()}
    assert effects["lazy"] == pytest.approx(-0.3)
    assert effects["removed"] == pytest.approx(-0.5)
    assert {(i.a, i.b) for i in made.interactions()} == {("lazy", "c"), ("removed", "c")}
    # Nobody has run both, so nobody knows.
    assert "lazy" not in {e.factor for e in made.effects({"removed": True})}


def test_a_nested_factor_has_an_effect_where_it_exists():
    factors = (
        Factor("py", "python", ("3.12", "3.13"), "3.12"),
        Factor("jit", "env", when="py == '3.13'"),
        Factor("x", "flag"),
    )
    system = SyntheticSystem(factors, 100.0, {"py": {"3.13": -0.2}, "jit": -0.1, "x": 0.05}, noise=0.0)
    configs = [
        {"py": py, "jit": jit, "x": x}
        for py in ("3.12", "3.13") for jit in (False, True) for x in (False, True) if py == "3.13" or not jit
    ]  # fmt: skip
    made = fit(factors, frames.load(runs_of(system, configs * 4), factors), drift=False)
    assert {e.factor: e.estimate for e in made.effects({"py": "3.13"})}["jit"] == pytest.approx(-0.1)
    assert "jit" not in {e.factor for e in made.effects("baseline")}


def test_a_level_never_run_is_not_told():
    system = two_level({"a": -0.5, "b": 0.2}, noise=0.05)
    configs = [{"a": bool(i % 2), "b": False} for i in range(16)]
    made = fit(system.factors, frames.load(runs_of(system, configs), system.factors))
    assert [e.factor for e in made.effects()] == ["a"]


def test_blocks_take_what_differs_between_them():
    system = two_level({"a": -0.1, "b": 0.05}, noise=0.001)
    rng = np.random.default_rng(1)
    configs = [{"a": bool(rng.integers(2)), "b": bool(rng.integers(2))} for _ in range(160)]
    rows = runs_of(system, configs)
    for row in rows:
        row["time_per_task_us"] *= 1 + 0.3 * (row["block"] % 3)
    runs = frames.load(rows, system.factors)
    blocked, plain = fit(system.factors, runs, drift=False), fit(system.factors, runs, blocks="none", drift=False)
    random = fit(system.factors, runs, blocks="random", drift=False)
    assert blocked.blocks == "fixed"
    assert blocked.effects()[0].se < plain.effects()[0].se / 20
    assert random.block_share > 100
    assert random.effects()[0].estimate == pytest.approx(blocked.effects()[0].estimate, abs=1e-4)


def test_many_blocks_for_few_runs_become_random():
    system = two_level(dict.fromkeys("abcdef", -0.1), noise=0.05)
    rng = np.random.default_rng(2)
    configs = [{name: bool(rng.integers(2)) for name in "abcdef"} for _ in range(60)]
    made = fit(system.factors, frames.load(runs_of(system, configs, per_block=4), system.factors))
    assert made.blocks == "random"


def test_drift_is_reported():
    system = two_level({"a": -0.1}, noise=0.001)
    rng = np.random.default_rng(3)
    rows = runs_of(system, [{"a": bool(rng.integers(2))} for _ in range(200)])
    for at, row in enumerate(rows):
        row["time_per_task_us"] *= math.exp(0.2 * at / 199)
    made = fit(system.factors, frames.load(rows, system.factors), blocks="none")
    time = next(term for term in made.drift_terms() if term.name == "time")
    assert time.interval.low < 0.2 < time.interval.high
    assert time.interval.estimate == pytest.approx(0.2, abs=0.01)


def test_replicates_show_what_pairs_cannot_explain():
    rng = np.random.default_rng(4)
    names = ("a", "b", "c")
    system = two_level(dict.fromkeys(names, -0.3), {("a", "b"): 0.2, ("a", "c"): 0.2, ("b", "c"): 0.2}, noise=0.01)
    configs = [{n: bool(i >> at & 1) for at, n in enumerate(names)} for i in range(8)] * 8
    rows = runs_of(system, [configs[i] for i in rng.permutation(64)])
    assert not fit(system.factors, frames.load(rows, system.factors)).notes
    for row in rows:
        if row["a"] and row["b"] and row["c"]:
            row["time_per_task_us"] *= 1.3
    made = fit(system.factors, frames.load(rows, system.factors))
    assert made.coding.triples == (("a", "b", "c"),)
    assert "a:b:c" in made.coefficients
    assert made.coefficients["a:b:c"] == pytest.approx(math.log(1.3), abs=0.05)
    assert "three-way" in made.notes[1]


def test_with_few_runs_one_half_chooses_the_pairs_and_the_other_tells_them():
    names = [f"f{i}" for i in range(12)]
    system = two_level(dict.fromkeys(names, -0.2), {("f0", "f1"): -0.25, ("f2", "f3"): -0.25}, noise=0.02)
    rng = np.random.default_rng(5)
    configs = [{name: bool(rng.integers(2)) for name in names} for _ in range(96)]
    runs = frames.load(runs_of(system, configs, per_block=16), system.factors)
    made = fit(system.factors, runs)
    assert made.n_runs == 48
    assert {("f0", "f1"), ("f2", "f3")} <= set(made.coding.pairs)
    assert "48 runs chose" in made.notes[0]
    pair = next(i for i in made.interactions() if (i.a, i.b) == ("f0", "f1"))
    assert pair.ci_low < -0.25 < pair.ci_high
    with pytest.raises(AnalysisError, match="too few to choose"):
        fit(system.factors, runs.iloc[:24])


def test_a_fraction_made_for_all_pairs_is_not_split():
    """Resolution V has fewer than two runs per parameter, and tells them all."""
    system = two_level({f"f{i}": -0.1 for i in range(8)}, {("f0", "f1"): 0.2})
    made = fitted(system, kind="resolution5")
    assert made.n_runs < 2 * len(made.coding.column_names)
    assert not made.dropped
    assert len(made.interactions()) == 28
    assert not any("chose" in note for note in made.notes)


def test_outliers_are_flagged_by_robust_regression():
    system = two_level({"a": -0.1, "b": 0.1}, noise=0.01)
    configs = [{"a": bool(i & 1), "b": bool(i & 2)} for i in range(80)]
    rows = runs_of(system, configs)
    assert not fit(system.factors, frames.load(rows, system.factors)).sensitivity()
    for at in (1, 5, 9):
        rows[at]["time_per_task_us"] *= 3
    shifts = fit(system.factors, frames.load(rows, system.factors)).sensitivity()
    assert any(shift.term == "a" and "Huber" in shift.by for shift in shifts)


def test_noisy_blocks_can_be_left_out_for_comparison():
    system = two_level({"a": -0.1, "b": 0.1}, noise=0.01)
    rows = runs_of(system, [{"a": bool(i & 1), "b": bool(i & 2)} for i in range(80)])
    for row in rows:
        row["flags"] = "noisy_block" if row["block"] == 3 else None
        if row["block"] == 3 and row["a"]:
            row["time_per_task_us"] *= 1.5
    shifts = fit(system.factors, frames.load(rows, system.factors)).sensitivity()
    assert any("without the 8 runs" in shift.by for shift in shifts)


def test_too_few_runs_say_so():
    system = two_level(dict.fromkeys("abcdefgh", -0.1))
    rng = np.random.default_rng(6)
    configs = [{name: bool(rng.integers(2)) for name in "abcdefgh"} for _ in range(9)]
    runs = frames.load(runs_of(system, configs), system.factors)
    with pytest.raises(AnalysisError, match="cannot tell"):
        fit(system.factors, runs, pairs=False, blocks="none", drift=False)


def test_frames_keep_good_runs_and_fill_in_defaults():
    factors = (Factor("a", "flag"), Factor("n", "config", (1, 2, 4), 2, scale="log2"))
    rows = [
        {"status": "ok", "time_per_task_us": 5.0, "a": 1, "started_unix": 2.0},
        {"status": "failed", "time_per_task_us": None, "a": 0, "started_unix": 1.0},
        {"status": "ok", "time_per_task_us": 7.0, "a": 0, "started_unix": 0.5, "n": 4},
    ]
    runs = frames.load(rows, factors)
    assert runs["y_us"].tolist() == [7.0, 5.0]
    assert runs["n"].tolist() == [4, 2]
    assert frames.load(rows, factors, where="not a and n > 2")["y_us"].tolist() == [7.0]
    with pytest.raises(AnalysisError, match="no run"):
        frames.load(rows, factors, where="a and n > 2")
    with pytest.raises(ConstraintError):
        frames.load(rows, factors, where="nonsense == 1")


def test_dependent_columns_are_found_in_order():
    rng = np.random.default_rng(7)
    matrix = rng.normal(size=(20, 3))
    wide = np.column_stack([matrix[:, 0], matrix[:, 1], matrix[:, 0] - 2 * matrix[:, 1], np.zeros(20), matrix[:, 2]])
    assert independent_columns(wide).tolist() == [True, True, False, False, True]


def test_families_of_tests():
    assert q_values([0.01, 0.04, 0.03, float("nan")])[:3] == pytest.approx([0.03, 0.04, 0.04])
    assert math.isnan(q_values([0.01, float("nan")])[1])
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_the_profile_is_that_of_scipy():
    from scipy import stats

    rng = np.random.default_rng(8)
    y = np.exp(rng.normal(6, 0.5, 60))
    ours = scales.box_cox(y, np.ones((60, 1)), np.array([1.0, 0.0, -1.0]))
    theirs = np.array([stats.boxcox_llf(power, y) for power in (1.0, 0.0, -1.0)])
    assert np.diff(ours) == pytest.approx(np.diff(theirs))
