"""Models of runs: they estimate what was planted, and report nothing that the runs cannot show."""

import math

import numpy as np
import pytest
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model import scale as scales
from broadleaf_lab.analysis.model.coding import Coding
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.analysis.model.linear import Groups, Linear
from broadleaf_lab.analysis.multiplicity import holm, q_values
from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.errors import AnalysisError, ConstraintError
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Factor, column_value
from synthetic.system import SyntheticSystem, simulate, two_level


def runs_of(system, configs, seed=0, per_block=8):
    """Rows of runs.csv, with the columns that an analysis needs."""
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
    coding = Coding(factors)
    rows = coding.rows([{"py": p, "n": n} for p in "abc" for n in (1, 2, 4, 64)])
    assert coding.column_names[:6] == ["mean", "py[b]", "py[c]", "n[2]", "n[4]", "n[64]"]
    # Level by level: no shape is assumed for a number's effect.
    assert coding.column_names[6:] == [f"py[{p}]:n[{n}]" for p in "bc" for n in (2, 4, 64)]
    assert np.allclose(rows[:, 1:].sum(axis=0), 0)


def test_many_levels_of_a_number_lie_on_a_spline_if_one_wants():
    levels = tuple(2**power for power in range(9))
    factor = Factor("n", "config", levels, 1, scale="log2")
    coding = Coding((factor,), splines=("n",))
    rows = coding.rows([{"n": level} for level in levels])
    assert rows.shape == (9, 5)
    assert np.allclose(rows[:, 1:].sum(axis=0), 0)
    # A straight line is one of them.
    line = np.arange(9.0)
    assert rows @ np.linalg.lstsq(rows, line, rcond=None)[0] == pytest.approx(line)


def test_the_row_of_a_level_that_was_not_run_is_no_number():
    factor = Factor("n", "config", (1, 2, 4), 1, scale="log2")
    coding = Coding((factor,), levels={"n": (1, 2)})
    assert np.isnan(coding.row({"n": 4})[1:]).all()
    assert coding.row({"n": 2})[1:] == pytest.approx([0.5])


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


def test_with_few_runs_pairs_are_chosen_and_told_with_all_of_them():
    names = [f"f{i}" for i in range(12)]
    system = two_level(dict.fromkeys(names, -0.2), {("f0", "f1"): -0.25, ("f2", "f3"): -0.25}, noise=0.02)
    rng = np.random.default_rng(5)
    configs = [{name: bool(rng.integers(2)) for name in names} for _ in range(96)]
    runs = frames.load(runs_of(system, configs, per_block=16), system.factors)
    made = fit(system.factors, runs)
    assert made.n_runs == 96
    chosen = set(made.coding.pairs) - made.background
    assert chosen == {("f0", "f1"), ("f2", "f3")}
    assert "all 66 pairs" in made.notes[0]
    pairs = {(i.a, i.b): i for i in made.interactions()}
    # Those outside the model are estimated, too.
    assert len(pairs) == 66
    assert abs(pairs["f0", "f1"].estimate + 0.25) < 4 * pairs["f0", "f1"].se
    assert {pair for pair, i in pairs.items() if i.q <= 0.05} == chosen
    effect = next(e for e in made.effects() if e.factor == "f5")
    assert effect.ci_high - effect.ci_low < 0.03
    with pytest.raises(AnalysisError, match="cannot determine 12 main effects"):
        fit(system.factors, runs.iloc[:14])


def test_a_fraction_made_for_all_pairs_is_not_split():
    """Resolution V has fewer than two runs per parameter, and estimates them all."""
    system = two_level({f"f{i}": -0.1 for i in range(8)}, {("f0", "f1"): 0.2})
    made = fitted(system, kind="resolution5")
    assert made.n_runs < 2 * len(made.coding.column_names)
    assert not made.dropped
    assert len(made.interactions()) == 28
    assert not any("chose" in note for note in made.notes)


def test_outliers_do_not_count():
    system = two_level({"a": -0.1, "b": 0.1}, noise=0.01)
    configs = [{"a": bool(i & 1), "b": bool(i & 2)} for i in range(80)]
    rows = runs_of(system, configs)
    clean = fit(system.factors, frames.load(rows, system.factors))
    for at in (1, 5, 9):
        rows[at]["time_per_task_us"] *= 3
    made = fit(system.factors, frames.load(rows, system.factors))
    assert made.weights[[1, 5, 9]].max() == 0
    assert made.effects()[0].estimate == pytest.approx(clean.effects()[0].estimate, abs=0.003)
    assert made.effects()[0].se < 1.3 * clean.effects()[0].se
    fully = fit(system.factors, frames.load(rows, system.factors), robust=False)
    assert fully.effects()[0].se > 10 * made.effects()[0].se


def test_too_few_runs_say_so():
    system = two_level(dict.fromkeys("abcdefgh", -0.1))
    rng = np.random.default_rng(6)
    configs = [{name: bool(rng.integers(2)) for name in "abcdefgh"} for _ in range(9)]
    runs = frames.load(runs_of(system, configs), system.factors)
    with pytest.raises(AnalysisError, match="cannot determine"):
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
    wide = np.column_stack(
        [np.ones(20), matrix[:, 0], matrix[:, 1], matrix[:, 0] - 2 * matrix[:, 1], np.zeros(20), matrix[:, 2]]
    )
    linear = Linear(wide, np.arange(20), np.zeros((20, 0)), Groups(np.zeros(20)), "none")
    assert linear.kept.tolist() == [True, True, True, False, False, True]


def test_absorbed_blocks_are_dummies():
    """Coefficients, errors and leverages are those of a column per block."""
    rng = np.random.default_rng(9)
    cell, block = rng.integers(0, 12, 90), rng.integers(0, 7, 90)
    rows, time = np.column_stack([np.ones(12), rng.normal(size=(12, 3))]), rng.normal(size=(90, 2))
    y = rng.normal(size=90) + block
    linear = Linear(rows, cell, time, Groups(block), "fixed")
    dummies = (block[:, None] == np.arange(1, 7)).astype(float)
    whole = np.hstack([rows[cell], time, dummies - dummies.mean(axis=0)])
    params = linear.least_squares(y)
    wanted = np.linalg.lstsq(whole, y, rcond=None)[0]
    assert params == pytest.approx(wanted[:6])
    assert linear.fitted(params, y) == pytest.approx(whole @ wanted)
    assert linear.df == 90 - 12
    basis, _ = np.linalg.qr(whole)
    assert linear.leverages == pytest.approx((basis**2).sum(axis=1))
    inverse = np.linalg.inv(whole.T @ whole)
    weights = rng.uniform(size=90)
    assert linear.sandwich(weights) == pytest.approx((inverse @ (whole.T * weights) @ whole @ inverse)[:6, :6])


@pytest.mark.parametrize("blocks", ["none", "fixed", "random"])
def test_weights_multiply_every_run_by_their_root(blocks):
    """Coefficients, errors and leverages are those of all columns, a column per block too, times the root."""
    rng = np.random.default_rng(10)
    cell, block = rng.integers(0, 12, 90), rng.integers(0, 7, 90)
    rows, time = np.column_stack([np.ones(12), rng.normal(size=(12, 3))]), rng.normal(size=(90, 2))
    y, weight, ratio = rng.normal(size=90) + block, rng.uniform(0.2, 3.0, 90), 0.4
    linear = Linear(rows, cell, time, Groups(block), blocks).with_weight(weight)
    dummies = (block[:, None] == np.arange(7)).astype(float)
    whole = np.hstack([rows[cell], time, dummies[:, 1:] if blocks == "fixed" else np.zeros((90, 0))])
    error = np.diag(1 / weight)
    if blocks == "random":
        linear = linear.with_ratio(ratio)
        error += ratio * dummies @ dummies.T
    root = np.linalg.inv(np.linalg.cholesky(error))
    wanted = np.linalg.lstsq(root @ whole, root @ y, rcond=None)[0]
    assert linear.least_squares(y)[1:] == pytest.approx(wanted[1:6])
    inverse = np.linalg.inv(whole.T @ np.linalg.inv(error) @ whole)
    assert linear.solve(np.eye(6))[1:, 1:] == pytest.approx(inverse[1:6, 1:6])
    white = linear.transform(y) - linear.transform(linear.values(linear.least_squares(y)))
    rest = root @ y - root @ whole @ wanted
    assert white @ white == pytest.approx(rest @ rest)
    assert linear.hat @ linear.transform(y) == pytest.approx(white)
    assert 1 - np.diag(linear.hat) == pytest.approx(linear.leverages)
    assert linear.unweighted.weight is None


def test_runs_of_a_noisy_setting_count_for_less():
    """Its noise would otherwise cover what the others do."""
    rng = np.random.default_rng(11)
    factors = [Factor(f"f{i}", "flag") for i in range(4)]
    rows = []
    for i in range(240):
        on = rng.integers(0, 2, 4)
        y = 6 + 0.05 * on[1] + rng.normal(0, 0.2 if on[0] else 0.02)
        rows.append({"status": "ok", "time_per_task_us": math.exp(y), "block": i // 16, "started_unix": 4.0 * i}
                    | {f"f{n}": int(v) for n, v in enumerate(on)})  # fmt: skip
    made = fit(factors, frames.load(rows, factors), pairs=False)
    other = next(e for e in made.effects() if e.factor == "f1")
    # What the 120 quiet runs tell by themselves, and not what all would tell.
    assert other.se < 1.5 * 2 * 0.02 / math.sqrt(120)
    assert abs(other.estimate - 0.05) < 3.5 * other.se


def test_families_of_tests():
    assert q_values([0.01, 0.04, 0.03, float("nan")])[:3] == pytest.approx([0.03, 0.04, 0.04])
    assert math.isnan(q_values([0.01, float("nan")])[1])
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_the_profile_is_that_of_scipy():
    from scipy import stats

    rng = np.random.default_rng(8)
    y = np.exp(rng.normal(6, 0.5, 60))
    ours = scales.box_cox(y, lambda z: float(((z - z.mean()) ** 2).sum()), np.array([1.0, 0.0, -1.0]))
    theirs = np.array([stats.boxcox_llf(power, y) for power in (1.0, 0.0, -1.0)])
    assert np.diff(ours) == pytest.approx(np.diff(theirs))
