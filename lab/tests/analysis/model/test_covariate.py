"""Times adjusted for a covariate: less noise, and no part of an effect taken for noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("scipy")

import truth
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model import covariate as covariates
from broadleaf_lab.analysis.model.fit import fit, of_study
from broadleaf_lab.errors import StudyFileError
from broadleaf_lab.run.environments import counters
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.study import Study

pytestmark = [pytest.mark.statistics, pytest.mark.timeout(300)]
FLAGS = 4
FACTORS = [Factor(f"f{i}", "flag") for i in range(FLAGS)]
NOISE = truth.Noise(sd=0.025, work=0.05)


def planted(number, noise=NOISE, size=96, flags=FLAGS):
    """A truth in which f0 acts by changing the work alone and f1 half so; and runs of it."""
    rng = np.random.default_rng([41, number])
    known = truth.flags(rng, flags, pairs=1)
    known.through.update(f0=known.effects["f0"], f1=known.effects["f1"] / 2)
    return known, truth.runs(known, size, noise, rng)


def told(sets, covariate):
    """What each set says of each factor: the share of intervals that hold the truth, half widths, mean errors; and the
    mean residual spread."""
    held, half, error, sigma = {}, {}, {}, []
    for number in range(sets):
        known, rows = planted(number)
        made = fit(FACTORS, frames.load(rows, FACTORS), covariate=covariate)
        sigma.append(made.sigma)
        for e in made.effects():
            true = known.effect(e.factor, True)
            held.setdefault(e.factor, []).append(e.ci_low <= true <= e.ci_high)
            half.setdefault(e.factor, []).append((e.ci_high - e.ci_low) / 2)
            error.setdefault(e.factor, []).append(e.estimate - true)
    names = list(held)
    return (
        {n: float(np.mean(held[n])) for n in names},
        {n: float(np.median(half[n])) for n in names},
        {n: float(np.mean(error[n])) for n in names},
        float(np.mean(sigma)),
    )


def test_noise_falls_intervals_hold_and_effects_through_the_covariate_stay_whole():
    sets = 1000
    # Three standard errors of a share of 0.95.
    least = 0.95 - 3 * np.sqrt(0.95 * 0.05 / sets)
    held, half, error, sigma = told(sets, "work")
    _, half_without, _, sigma_without = told(40, None)
    assert sigma < 0.55 * sigma_without
    for name in ("f0", "f1"):
        assert least <= held[name] <= 0.98
        assert half[name] == pytest.approx(half_without[name], rel=0.1)
    for name in ("f2", "f3"):
        # Wider than they would have to be: that such a setting does not change the work has to be found out first.
        assert held[name] >= 0.95
        assert half[name] < 0.8 * half_without[name]
    for name, mean in error.items():
        assert abs(mean) < 4 * half[name] / 1.96 / np.sqrt(sets)


def test_settings_that_change_the_covariate_just_perceptibly():
    held = []
    for number in range(60):
        rng = np.random.default_rng([43, number])
        known = truth.flags(rng, FLAGS, pairs=1)
        for name in known.levels:
            known.through[name] = np.array([-0.5, 0.5]) * rng.uniform(-0.03, 0.03)
            known.effects[name] = known.effects[name] + known.through[name]
        made = fit(FACTORS, frames.load(truth.runs(known, 96, NOISE, rng), FACTORS), covariate="work")
        held += [e.ci_low <= known.effect(e.factor, True) <= e.ci_high for e in made.effects()]
    assert np.mean(held) >= 0.92


def test_an_uncentred_covariate_would_take_the_effect_away(monkeypatch):
    held, _, _, _ = told(20, "work")
    assert held["f0"] > 0.85
    centred = covariates.centred

    def uncentred(name, values, made, sample):
        it = centred(name, values, made, sample)
        return replace(it, values=values - values.mean(), unsure=0 * it.unsure)

    monkeypatch.setattr(covariates, "centred", uncentred)
    held, _, _, _ = told(20, "work")
    assert held["f0"] == 0


def test_one_centred_within_configurations_would_promise_too_much(monkeypatch):
    centred = covariates.centred

    def within(name, values, made, sample):
        cell = sample.cells.index
        means = np.bincount(cell, values) / np.bincount(cell)
        it = centred(name, values, made, sample)
        return replace(it, values=values - means[cell], unsure=0 * it.unsure)

    monkeypatch.setattr(covariates, "centred", within)
    held, _, _, _ = told(60, "work")
    assert np.mean(list(held.values())) < 0.8


def test_pairs_beside_a_model_of_few_runs_hold_too():
    held, half, without = [], [], []
    factors = [Factor(f"f{i}", "flag") for i in range(8)]
    for number in range(20):
        known, rows = planted(number, size=60, flags=8)
        frame = frames.load(rows, factors)
        made, plain = fit(factors, frame, covariate="work"), fit(factors, frame)
        assert made.background
        for pair in made.interactions():
            true = known.interaction(pair.a, pair.b, pair.a_level, pair.b_level)
            held.append(pair.ci_low <= true <= pair.ci_high)
            half.append(pair.ci_high - pair.ci_low)
        without += [pair.ci_high - pair.ci_low for pair in plain.interactions()]
    assert np.mean(held) >= 0.93
    assert np.median(half) < 0.85 * np.median(without)


@pytest.mark.parametrize("scale", ["us", "rate"])
def test_other_scales_have_it_too(scale):
    _, rows = planted(1)
    frame = frames.load(rows, FACTORS)
    made, plain = fit(FACTORS, frame, scale, covariate="work"), fit(FACTORS, frame, scale)
    assert made.sigma < 0.7 * plain.sigma
    assert fit(FACTORS, frame, covariate="work").on(scale).sigma == pytest.approx(made.sigma, rel=0.02)


def test_runs_without_the_number_count_as_average_ones():
    _, rows = planted(2)
    for row in rows[::10]:
        row["work"] = None
    made = fit(FACTORS, frames.load(rows, FACTORS), covariate="work")
    assert "Adjusted for work" in made.notes[-1]
    for row in rows[:58]:
        row["work"] = None
    few = fit(FACTORS, frames.load(rows, FACTORS), covariate="work")
    assert few.notes == ("Not adjusted for work: only 34 of 96 runs have it.",)
    none = fit(FACTORS, frames.load(rows, FACTORS), covariate="instructions_per_task")
    assert none.notes == ("Not adjusted for instructions_per_task: no run has it.",)
    plain = fit(FACTORS, frames.load(rows, FACTORS))
    assert np.array_equal(none.params, plain.params)
    for row in rows:
        row["work"] = 3
    assert fit(FACTORS, frames.load(rows, FACTORS), covariate="work").notes[0].endswith("it is the same in all runs.")


def test_it_says_what_was_adjusted_and_by_whom_it_is_changed():
    _, rows = planted(3)
    note = fit(FACTORS, frames.load(rows, FACTORS), covariate="work").notes[-1]
    assert note.startswith("Adjusted for work: it explains ")
    assert "Changed by f0" in note


STUDY = """
[study]
command = ["true"]
responses = ["work"]
covariate = "{}"
[factors.f0]
set.flag = "-a"
"""


def test_a_study_names_it(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY.format("work"))
    study = Study.load(tmp_path)
    assert (study.covariate_of("time_per_task_us"), study.covariate_of("work")) == ("work", None)
    for wrong, hint in (("instructions", "instructions_per_task"), ("tasks_per_s", "Choose one of"), ("f0", "Choose")):
        (tmp_path / "study.toml").write_text(STUDY.format(wrong))
        with pytest.raises(StudyFileError, match=hint):
            Study.load(tmp_path)


def test_its_models_use_it(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY.format("work"))
    study = Study.load(tmp_path)
    _, rows = planted(4)
    rows = [{"run_id": f"r{number}", **row} for number, row in enumerate(rows)]
    names = list(rows[0])
    study.runs_path.write_text(
        "\n".join([",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]) + "\n"
    )
    assert of_study(study).sample.covariate.name == "work"
    assert of_study(study, response="work").sample.covariate is None


def test_a_machine_without_counters_is_named_with_a_remedy(monkeypatch):
    study = Study("s", command=("true",), covariate="instructions_per_task")
    monkeypatch.setattr(counters, "_counted", lambda: {"instructions"})
    assert counters.lacking(study) == ""
    monkeypatch.setattr(counters, "_counted", set)
    monkeypatch.setattr(counters.machine, "read_text", lambda path: "4")
    assert "sysctl kernel.perf_event_paranoid=2" in counters.lacking(study)
    monkeypatch.setattr(counters.machine, "read_text", lambda path: "2")
    assert "virtual machine" in counters.lacking(study)
    assert counters.lacking(replace(study, covariate="work")) == ""
    assert counters.lacking(replace(study, covariate=None)) == ""
