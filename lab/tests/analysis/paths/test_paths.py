"""Acceptance 7: paths and shares add up exactly, and the greedy path is the one found by trying everything."""

import itertools
import math

import numpy as np
import pytest
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.analysis.paths import path as paths
from broadleaf_lab.analysis.paths.shapley import shapley
from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Factor, column_value
from synthetic.system import SyntheticSystem, simulate, two_level

SCALES = ("us", "rate", "log")


def random_system(k, seed, noise=0.0, **options):
    rng = np.random.default_rng(seed)
    names = [f"f{i}" for i in range(k)]
    pairs = {pair: float(rng.normal(0, 0.15)) for pair in itertools.combinations(names, 2) if rng.random() < 0.5}
    return two_level({n: float(rng.uniform(-0.5, 0.15)) for n in names}, pairs, noise=noise, **options)


def fitted(system, kind="resolution5", replicates=2, seed=1, **options):
    plan = Plan.make(system.study(kind=kind, replicates=replicates, paths=0, seed=seed))
    return fit(system.factors, frames.load(simulate(plan, system, seed), system.factors), **options)


def value(fit, config, scale):
    us = fit.predict([config])[0][0]
    return {"us": us, "rate": 1e6 / us, "log": math.log(us)}[scale]


def by_all_orders(fit, scale):
    """Shares according to their definition: averages over every order."""
    names = [f.name for f in fit.factors]
    start = dict.fromkeys(names, False)
    changes = {name: [] for name in names}
    for order in itertools.permutations(names):
        config = dict(start)
        for name in order:
            before = value(fit, config, scale)
            config[name] = True
            changes[name].append(value(fit, config, scale) - before)
    return changes


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("fitted_on", ["log", "us"])
def test_shares_are_averages_over_all_orders_and_sum_exactly(scale, fitted_on):
    made = fitted(random_system(5, 1, noise=0.02), kind="full", replicates=3, scale=fitted_on)
    found = shapley(made, scale=scale)
    orders = by_all_orders(made, scale)
    assert found.exact
    for share in found.shares:
        changes = orders[share.factor]
        assert share.contribution == pytest.approx(np.mean(changes), rel=1e-9, abs=1e-12)
        assert share.minimum == pytest.approx(min(changes), rel=1e-9, abs=1e-12)
        assert share.maximum == pytest.approx(max(changes), rel=1e-9, abs=1e-12)
        assert share.ci_low < share.contribution < share.ci_high
    total = found.after - found.before
    assert sum(s.contribution for s in found.shares) == pytest.approx(total, rel=1e-12)
    ends = [value(made, {f.name: on for f in made.factors}, scale) for on in (False, True)]
    assert (found.before, found.after) == pytest.approx(ends, rel=1e-12)


def test_for_everything_on_the_share_is_the_average_effect():
    made = fitted(random_system(8, 2, noise=0.05))
    effects = {e.factor: e.estimate for e in made.effects()}
    for share in shapley(made, scale="log").shares:
        assert share.contribution == pytest.approx(effects[share.factor], abs=1e-12)


def test_shares_of_some_factors_only():
    made = fitted(random_system(8, 3, noise=0.05))
    end = {"f0": True, "f3": True}
    found = shapley(made, end, "log")
    at_baseline = {e.factor: e.estimate for e in made.effects("baseline")}
    g = next(i.estimate for i in made.interactions() if (i.a, i.b) == ("f0", "f3"))
    assert {s.factor: s.contribution for s in found.shares} == pytest.approx(
        {"f0": at_baseline["f0"] + g / 2, "f3": at_baseline["f3"] + g / 2}
    )
    assert shapley(made, {}, "log").shares == ()


def test_many_factors_are_sampled_and_still_sum_exactly():
    system = random_system(16, 4, noise=0.02)
    made = fitted(system, kind="random", replicates=3)
    for scale in ("us", "rate"):
        found = shapley(made, scale=scale)
        assert not found.exact
        assert sum(s.contribution for s in found.shares) == pytest.approx(found.after - found.before, rel=1e-12)
    closed = shapley(made, scale="log")
    assert closed.exact


@pytest.mark.parametrize("scale", SCALES)
def test_every_path_sums_exactly(scale):
    made = fitted(random_system(8, 5, noise=0.05))
    order = ["f3", "f1", "f7", "f0", "f2", "f6", "f4", "f5"]
    all_on = value(made, {f.name: True for f in made.factors}, scale)
    base = value(made, {f.name: False for f in made.factors}, scale)
    for path in (
        paths.greedy(made, scale=scale, all_steps=True), paths.nice(made, scale=scale, all_steps=True),
        paths.custom(made, order, scale=scale), paths.shapley(made, scale=scale),
    ):  # fmt: skip
        assert path.total == pytest.approx(all_on - base, rel=1e-12)
        assert path.end - path.start == pytest.approx(all_on - base, rel=1e-12)
        assert path.start == pytest.approx(base, rel=1e-12)
        for step, following in itertools.pairwise(path.order):
            assert step.after == following.before
        for step in path.order:
            assert step.ci_low <= step.change <= step.ci_high


def by_trying(system, allowed, all_steps):
    """The greedy path over the truth."""
    config = {f.name: False for f in system.factors}
    order = []
    while True:
        moves = [{**config, n: True} for n in config if not config[n] and allowed({**config, n: True})]
        if not moves:
            return order
        best = min(moves, key=system.mean_us)
        if not all_steps and system.mean_us(best) >= system.mean_us(config) * (1 - 1e-9):
            return order
        order.append(next(n for n in config if best[n] != config[n]))
        config = best


@pytest.mark.parametrize("k", [3, 5, 8])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("all_steps", [False, True])
def test_without_noise_greedy_is_what_trying_gives(k, seed, all_steps):
    system = random_system(k, seed, noise=0.0)
    made = fitted(system, kind="full" if k < 5 else "resolution5")
    rules = Constraints(system.factors, {"no_first_two": "not (f0 and f1)"}) if seed % 2 else None
    order = by_trying(system, rules.allows if rules else lambda _: True, all_steps)
    path = paths.greedy(made, rules, all_steps=all_steps)
    assert [step.factor for step in path.order] == order
    config = {f.name: f.name in order for f in system.factors}
    assert path.end == pytest.approx(system.mean_us(config))


def test_nice_takes_tiers_in_order():
    tiers = {"a": 3, "b": 1, "c": 2, "d": 1}
    factors = tuple(Factor(name, "flag", tier=tier) for name, tier in tiers.items())
    system = SyntheticSystem(factors, 1000.0, {"a": -0.9, "b": -0.1, "c": -0.3, "d": -0.2}, noise=0.001)
    made = fitted(system, kind="full")
    assert [s.factor for s in paths.greedy(made).order] == ["a", "c", "d", "b"]
    path = paths.nice(made)
    assert [s.factor for s in path.order] == ["d", "b", "c", "a"]
    assert [s.tier for s in path.order] == [1, 1, 2, 3]
    assert path.kind == "nice"


def test_greedy_stops_where_nothing_is_proven_to_help():
    system = two_level({"good": -0.5, "nothing": 0.0, "bad": 0.2}, noise=0.05)
    made = fitted(system, kind="full", replicates=6)
    assert [s.factor for s in paths.greedy(made).order] == ["good"]
    assert len(paths.greedy(made, all_steps=True).order) == 3


def test_a_level_is_chosen_once_per_factor():
    factors = (Factor("n", "config", (1, 4, 16), 1, scale="log2"), Factor("x", "flag"))
    system = SyntheticSystem(factors, 100.0, {"n": {4: -0.4, 16: -0.2}, "x": -0.1}, noise=0.001)
    made = fitted(system, kind="full", replicates=4)
    assert [(s.factor, s.level) for s in paths.greedy(made).order] == [("n", 4), ("x", True)]


def test_custom_paths_say_what_cannot_be():
    made = fitted(random_system(5, 1, noise=0.02), kind="full")
    rules = Constraints(made.factors, {"one_only": "not (f0 and f1)"})
    with pytest.raises(AnalysisError, match="one_only"):
        paths.custom(made, ["f0", "f1"], rules)
    with pytest.raises(AnalysisError, match="factor 'f9' cannot be on a path"):
        paths.custom(made, ["f9"])
    with pytest.raises(AnalysisError, match="twice"):
        paths.custom(made, ["f0", "f0"])


def test_a_path_measured_again_has_no_winners_curse():
    """Steps of greedy paths through pure noise look like gains until they are measured again."""
    system = two_level({f"f{i}": 0.0 for i in range(6)}, noise=0.1)
    predicted, measured = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        made = fitted(system, kind="full", replicates=1, seed=seed)
        path = paths.greedy(made, all_steps=True, scale="log")
        nodes = path.configs(system.factors)
        rows = [
            {"status": "ok", "time_per_task_us": system.time_us(node, rng, 0.0), "block": block, "started_unix": 0.0,
             **{name: column_value(level) for name, level in node.items()}}
            for block in range(5) for node in nodes
        ]  # fmt: skip
        again = paths.remeasured(path, system.factors, frames.load(rows, system.factors), "log")
        assert again.source == "measured"
        assert again.total == pytest.approx(again.end - again.start)
        predicted.append(path.order[0].change)
        measured.append(again.order[0].change)
    assert np.mean(predicted) < -0.03
    assert abs(np.mean(measured)) < 0.03
    with pytest.raises(AnalysisError, match="not measured again"):
        paths.remeasured(path, system.factors, frames.load(rows[:3], system.factors))


def test_vectors_of_measured_paths_are_their_steps():
    system = random_system(5, 7, noise=0.0)
    plan = Plan.make(system.study(kind="paths", paths=6))
    runs = frames.load(simulate(plan, system, 1), system.factors)
    vectors = paths.path_vectors(runs, system.factors)
    assert vectors.values.shape == (6, 5)
    off, on = ({f.name: state for f in system.factors} for state in (False, True))
    total = system.mean_us(on) - system.mean_us(off)
    assert vectors.values.sum(axis=1) == pytest.approx([total] * 6)
    for order, vector in zip(vectors.orders, vectors.values, strict=True):
        config = dict(off)
        for name in order:
            before = system.mean_us(config)
            config[name] = True
            assert vector[vectors.factors.index(name)] == pytest.approx(system.mean_us(config) - before)
    logs = paths.path_vectors(runs, system.factors, log2=True)
    assert logs.values.sum(axis=1) == pytest.approx([math.log2(system.mean_us(on) / system.mean_us(off))] * 6)
    assert list(vectors.frame.columns) == ["path_id", *vectors.factors]
    with pytest.raises(AnalysisError, match="no complete"):
        paths.path_vectors(runs[runs["path_id"].isna()], system.factors)


def test_constraints_may_speak_of_factors_that_never_varied():
    """A model has the varied factors only; the others are at their default."""
    system = two_level({"a": -0.4, "b": -0.3, "c": -0.2}, noise=0.02)
    made = fitted(system, kind="full", replicates=4)
    more = (
        *system.factors,
        Factor("py", "python", ("3.12", "3.13"), "3.12"),
        Factor("jit", "env", when="py == '3.13'"),
    )
    rules = Constraints(more, {"b_needs_313": "not b or py == '3.13'"})
    assert [s.factor for s in paths.greedy(made, rules).order] == ["a", "c"]
    with pytest.raises(AnalysisError, match="b_needs_313"):
        paths.custom(made, ["b"], rules)
    assert [s.factor for s in paths.shapley(made, {f.name: f.on for f in more}).order] == ["a", "b", "c"]
    # Everything ran on 3.13, so the nested factor existed throughout.
    nested = (Factor("a", "flag"), Factor("b", "flag"), Factor("c", "env", when="py == '3.13'"))
    other = fit(nested, made.frame)
    assert [e.estimate for e in other.effects("baseline")] == pytest.approx(
        [e.estimate for e in made.effects("baseline")]
    )
