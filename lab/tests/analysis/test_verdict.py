"""Verdicts in words, and when they may be given."""

import dataclasses
import math

import numpy as np
import pytest
from broadleaf_lab.analysis import convergence, verdict
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.effects import Effect
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.analysis.model.scale import answer
from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.errors import AnalysisError
from synthetic.system import simulate, two_level


def effect(estimate, half):
    low, high = estimate - half, estimate + half
    ratios = (math.exp(value) for value in (low, high))
    ratio = math.exp(estimate)
    return Effect("x", True, estimate, low, high, low, high, 0.5, ratio, "log ratio", half / 1.96, "average", *ratios)


@pytest.mark.parametrize(
    ("estimate", "half", "word"),
    [
        (-0.1, 0.05, "helps"),
        (0.1, 0.05, "hinders"),
        (0.0, 0.008, "no practical difference"),
        (0.003, 0.006, "no practical difference"),
        (0.0, 0.05, "unknown"),
        # Proven faster, but perhaps by less than what matters.
        (-0.02, 0.015, "unknown"),
        (-0.1, 0.095, "unknown"),
    ],
)
def test_words(estimate, half, word):
    found = verdict.verdict(effect(estimate, half), n_runs=100)
    assert found.word == word
    assert word.split()[-1] in found.sentence
    assert (found.needs_runs is not None) == (word == "unknown")


def test_a_wider_margin_makes_small_effects_practically_none():
    small = effect(0.02, 0.015)
    assert verdict.verdict(small, n_runs=10).word == "unknown"
    assert verdict.verdict(small, rope_pct=5.0).word == "no practical difference"


def test_the_runs_that_are_needed_would_do():
    rope = math.log1p(0.01)
    more = verdict.runs_needed(-0.05 - 0.1, -0.05 + 0.1, -0.05, 1.0, 100)
    half = 0.1 * math.sqrt(100 / (100 + more))
    assert -0.05 + half <= -rope + 1e-4
    assert verdict.verdict(effect(-0.05, half - 1e-3)).word == "helps"


def study(effects, pairs=None, replicates=4, noise=0.03, seed=1, kind="full"):
    system = two_level(effects, pairs, noise=noise)
    plan = Plan.make(system.study(kind=kind, replicates=replicates, paths=0, seed=seed))
    return system, fit(system.factors, frames.load(simulate(plan, system, seed), system.factors))


def test_verdicts_of_a_study():
    _, made = study({"good": -0.3, "bad": 0.2, "turns": -0.15, "slow": -0.4}, {("turns", "slow"): 0.3}, replicates=8)
    found = {v.factor: v for v in verdict.verdicts(made)}
    assert found["good"].word == "helps"
    assert "less time per task" in found["good"].sentence
    assert found["bad"].word == "hinders"
    turns = found["turns"]
    assert turns.word == "depends on slow"
    assert turns.depends_on == ("slow",)
    assert "helps" in turns.sentence
    assert "hinders" in turns.sentence
    assert "slow off" in turns.sentence
    assert "Most with turns off" in found["slow"].sentence
    assert verdict.verdict_of(made, "bad") == found["bad"]
    with pytest.raises(AnalysisError, match="nonsense"):
        verdict.verdict_of(made, "nonsense")


@pytest.mark.parametrize("scale", ["us", "rate"])
def test_words_are_the_same_on_every_scale(scale):
    system = two_level({"good": -0.3, "bad": 0.2, "turns": -0.15, "slow": -0.4}, {("turns", "slow"): 0.3}, noise=0.02)
    plan = Plan.make(system.study(kind="full", replicates=8, paths=0))
    runs = frames.load(simulate(plan, system, 1), system.factors)
    words = {v.factor: v.word for v in verdict.verdicts(fit(system.factors, runs, scale=scale))}
    assert words["good"] == "helps"
    assert words["bad"] == "hinders"
    assert words["slow"] == "helps"
    assert words["turns"].startswith("depends on slow")


@pytest.mark.parametrize(
    ("a", "b", "g", "kind"),
    [
        (-0.3, -0.2, 0.0, "additive"),
        (-0.5, -0.4, 0.38, "either-or"),
        (-0.5, -0.4, 0.15, "antagonistic"),
        (-0.3, -0.2, -0.1, "synergistic"),
        (-0.4, -0.15, 0.3, "sign-flip"),
        (-0.4, 0.2, -0.1, "synergistic"),
        (-0.4, 0.2, 0.1, "antagonistic"),
    ],
)
def test_classes_of_pairs(a, b, g, kind):
    _, made = study({"a": a, "b": b, "c": 0.0}, {("a", "b"): g}, replicates=60, noise=0.01)
    pair = next(i for i in made.interactions() if (i.a, i.b) == ("a", "b"))
    assert pair.kind == kind
    assert pair.sentence.startswith("a and b ")
    assert pair.estimate == pytest.approx(g, abs=0.02)


def test_a_class_is_not_guessed():
    _, made = study({"a": -0.3, "b": -0.2}, replicates=3, noise=0.1, seed=2)
    assert made.interactions()[0].kind == "undetermined"


def test_stopping_is_on_precision():
    _, rough = study({f"f{i}": -0.1 for i in range(4)}, noise=0.05)
    state = convergence.precision(rough)
    assert not state.reached
    assert state.more_runs > 0
    assert "more runs" in state.sentence
    _, fine = study({f"f{i}": -0.1 for i in range(4)}, noise=0.002)
    assert convergence.precision(fine).reached
    # With as many runs as it asks for, it is reached or nearly so.
    expected = state.main_half_width / math.sqrt(1 + state.more_runs / rough.n_runs)
    assert expected <= state.main_target * 1.01


def test_a_needless_effect_never_stops_early():
    """The rule does not look at p values: a huge, clear effect that is known imprecisely is not enough."""
    _, made = study({"a": -2.0, "b": 0.0}, noise=0.3)
    assert max(e.p for e in made.effects() if e.factor == "a") < 1e-6
    assert not convergence.precision(made).reached


def test_estimates_settle_as_runs_come_in():
    system, made = study({f"f{i}": -0.1 for i in range(4)}, replicates=10, noise=0.05)
    table = convergence.convergence(system.factors, made.frame, points=6)
    assert set(table["factor"]) == {f.name for f in system.factors}
    widths = (table["ci_high"] - table["ci_low"]).groupby(table["n_runs"]).mean()
    assert widths.iloc[-1] < widths.iloc[0] / 1.5
    last = table[table["n_runs"] == len(made.frame)].set_index("factor")
    for e in made.effects():
        assert last.loc[e.factor, "estimate"] == pytest.approx(e.estimate, abs=0.01)
    with pytest.raises(AnalysisError, match="too few"):
        convergence.convergence(system.factors, made.frame.iloc[:3])


def test_the_scale_question_is_answered_with_the_interactions_each_scale_needs():
    _, made = study({"a": -0.8, "b": -0.6, "c": -0.5}, replicates=8, noise=0.03)
    told = answer(made)
    assert told.best == "log"
    assert told.significant_pairs is not None
    assert told.significant_pairs["log"] == 0
    assert told.significant_pairs["us"] == 3
    assert "as ratios" in told.sentence
    assert told.ci[0] <= 0 <= told.ci[1]
    curve = dict(told.curve)
    assert curve[0.0] == pytest.approx(told.log_likelihood["log"])
    assert np.argmax(list(told.log_likelihood.values())) == 1


def test_records_are_frozen():
    found = verdict.verdict(effect(-0.1, 0.05))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.word = "hinders"


def test_a_level_that_is_beside_every_other_is_told_once():
    levels = ((1, "helps", 0.8), (64, "hinders", 1.1), (1, "helps", 0.8), (8, "helps", 0.9))
    told = [verdict.Conditional("batch", level, word, ratio, ratio - 0.1, ratio + 0.1) for level, word, ratio in levels]
    sentence = verdict.verdict(effect(-0.1, 0.02), told, 1.0).sentence
    assert [part.split(" ")[0] for part in sentence.split("with batch=")[1:]] == ["1", "8", "64."]
