"""Acceptance 1, its numbers: the analysis of the synthetic study finds what was planted in it."""

import functools

import pytest
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis import verdict
from broadleaf_lab.analysis.model.fit import Fit, fit
from broadleaf_lab.designs.plan import Plan
from synthetic.system import seedlike, simulate

pytestmark = pytest.mark.statistics

SYSTEM = seedlike()
LOGGING = ("cfg_no_init_logging", "src_submit_biglogs_remove")


@functools.cache
def study() -> Fit:
    plan = Plan.make(SYSTEM.study(kind="random", runs=600, paths=20, seed=5))
    return fit(SYSTEM.factors, frames.load(simulate(plan, SYSTEM, 5), SYSTEM.factors))


def test_average_effects_lie_in_their_simultaneous_intervals():
    effects = study().effects()
    assert len(effects) == len(SYSTEM.factors)
    for effect in effects:
        assert effect.ci_low_simultaneous < SYSTEM.average_effect(effect.factor) < effect.ci_high_simultaneous
    inside = sum(e.ci_low < SYSTEM.average_effect(e.factor) < e.ci_high for e in effects)
    assert inside >= len(effects) - 2
    assert max(e.ci_high - e.ci_low for e in effects) < 0.03


def test_planted_pairs_lie_in_their_intervals_and_others_are_not_found():
    pairs = study().interactions()
    inside = sum(i.ci_low < SYSTEM.interaction(i.a, i.b) < i.ci_high for i in pairs)
    assert inside / len(pairs) > 0.9
    found = {(i.a, i.b) for i in pairs if i.q <= 0.05}
    planted = {tuple(sorted(pair, key=[f.name for f in SYSTEM.factors].index)) for pair in SYSTEM.pairs}
    assert len(found - planted) <= 2
    large = {pair for pair in planted if abs(SYSTEM.interaction(*pair)) >= 0.05}
    assert large <= found


def test_saved_microseconds_of_the_logging_pair():
    fitted = study()
    at_baseline = {d.factor: d for d in fitted.differences_us("baseline")}
    for name, saved in zip(LOGGING, (577, 491), strict=True):
        assert at_baseline[name].ci_low < -saved < at_baseline[name].ci_high
        assert at_baseline[name].delta_us == pytest.approx(-saved, rel=0.1)
    second = next(d for d in fitted.differences_us({LOGGING[0]: True}) if d.factor == LOGGING[1])
    assert second.ci_low < -491 + 358 < second.ci_high
    mean, low, high = fitted.predict([{f.name: f.on for f in SYSTEM.factors}])
    assert low[0] < 61 < high[0]
    assert mean[0] == pytest.approx(61, rel=0.1)


@pytest.mark.parametrize(("pair", "kind"), SYSTEM.kinds.items())
def test_the_classes_of_pairs(pair, kind):
    found = next(i for i in study().interactions() if {i.a, i.b} == set(pair))
    assert found.kind == kind


def test_verdicts_in_words():
    words = {v.factor: v for v in verdict.verdicts(study())}
    assert words["cfg_no_init_logging"].word == "helps"
    assert words["affinity"].word == "depends on cfg_no_init_logging"
    assert "hinders" in words["affinity"].sentence
    assert words["src_pool_logs_remove"].depends_on[0] == "cfg_worker_debug_off"
    assert words["placebo"].word in ("unknown", "no practical difference")


def true_words(factor: str, other: str) -> set[str]:
    """What is true of a factor at the two levels of another, on average over the rest."""
    average, together = SYSTEM.average_effect(factor), SYSTEM.interaction(factor, other)
    effects = [average + half * together for half in (-0.5, 0.5)]
    return {verdict.word_for(effect, effect, effect, 1.0) for effect in effects}


def test_what_a_verdict_depends_on_changes_it_in_truth():
    """A second one may be too weak to be seen in these runs; any that is named has to be one."""
    claimed = [(v.factor, other) for v in verdict.verdicts(study()) for other in v.depends_on]
    assert {factor for factor, _ in claimed} >= {"affinity", "src_pool_logs_remove"}
    assert [pair for pair in claimed if len(true_words(*pair)) == 1] == []
    # Most pairs change no word: the check above can fail.
    assert len(true_words("src_pool_logs_remove", "placebo")) == 1


def test_the_placebo_does_nothing():
    placebo = next(e for e in study().effects() if e.factor == "placebo")
    assert placebo.ci_low < 0 < placebo.ci_high
    assert all(i.q > 0.05 for i in study().interactions() if "placebo" in (i.a, i.b))


def test_ratios_are_the_scale_and_replicates_agree_with_the_model():
    fitted = study()
    assert fitted.lambda_profile.best == "log"
    assert fitted.lack_of_fit is not None
    assert not fitted.lack_of_fit.significant
    assert fitted.r_squared > 0.99
