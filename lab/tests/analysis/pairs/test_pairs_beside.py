"""Pairs that are estimated beside the model have the size that they would have in it, and leave it in doubt."""

import numpy as np
import pytest

pytest.importorskip("scipy")

import truth
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model import robust
from broadleaf_lab.analysis.model.contrasts import Contrasts
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.analysis.model.linear import Groups, Linear
from broadleaf_lab.analysis.model.selection import Beside, Doubt, probabilities
from broadleaf_lab.spec.factors import Factor

pytestmark = [pytest.mark.statistics, pytest.mark.timeout(120)]


@pytest.mark.parametrize("noise", [truth.Noise(), truth.Noise(outliers=0.05)])
def test_a_pair_beside_the_model_is_as_large_as_within_it(noise):
    # Bounded residuals contain less of a pair than residuals do: without correction, pairs were 14 % too small.
    beside, within = [], []
    for seed in range(2):
        rng = np.random.default_rng([5, seed])
        known = truth.flags(rng, 12, pairs=0)
        rows = truth.runs(known, 150, noise, rng)
        factors = [Factor(name, "flag") for name in known.levels]
        frame = frames.load(rows, factors)
        made = fit(factors, frame)
        told = [p for p in made.interactions() if made.coding.term_of(p.a, p.b) is None]
        assert len(told) > 60
        for pair in told[:12]:
            alone = fit(factors, frame, pairs=[(pair.a, pair.b)])
            (its,) = alone.interactions()
            beside.append(pair.estimate)
            within.append(its.estimate)
    slope = float(np.dot(beside, within) / np.dot(within, within))
    assert slope == pytest.approx(1, abs=0.06)


def made_of(blocks, noise, truly, seed=6, runs=60):
    """Two flags and their overlapping columns: a model of the constant and the first, the others outside it."""
    rng = np.random.default_rng(seed)
    columns = rng.choice((-0.5, 0.5), (runs, 3))
    columns[:, 1] = np.where(rng.random(runs) < 0.7, columns[:, 0], columns[:, 1])
    columns[:, 2] = np.where(rng.random(runs) < 0.6, columns[:, 1], columns[:, 2])
    y = 6 + columns @ truly + noise * rng.standard_normal(runs)
    rows = np.column_stack([np.ones(runs), columns[:, 0]])
    linear = Linear(rows, np.arange(runs), np.zeros((runs, 0)), Groups(np.arange(runs) // 10), blocks)
    if blocks == "random":
        linear = linear.with_ratio(0.5)
    return Contrasts(robust.estimate(linear, y, robust=False)), columns, linear


@pytest.mark.parametrize("blocks", ["none", "fixed", "random"])
def test_what_a_missing_pair_adds_is_its_bias(blocks):
    """Without noise, the error of a model is exactly what the pair that it misses contributes."""
    known, columns, _ = made_of(blocks, 0.0, np.array([0.2, 0.5, 0.0]))
    missed = Beside(known, columns[:, [1]])
    assert missed.gamma == pytest.approx([0.5])
    params, runs = missed.missing
    assert known.params[1] - 0.2 == pytest.approx(params[1])
    assert abs(params[1]) > 0.1
    # And so is the error of the other pair beside that model.
    other = Beside(known, columns[:, [2]])
    doubt = Doubt((("a", "b"), ("a", "c")), np.column_stack([params, 0 * params]), np.column_stack([runs, 0 * runs]))
    none, one = np.zeros((1, 2)), np.ones((1, 1))
    plain, widened = (other.intervals(none, one, at)[0] for at in (None, doubt.but(("a", "c"))))
    assert widened.estimate == plain.estimate == pytest.approx(other.gamma[0])
    assert widened.se**2 - plain.se**2 == pytest.approx(other.gamma[0] ** 2)
    assert missed.intervals(none, one, doubt.but(("a", "b")))[0].se == missed.intervals(none, one)[0].se


def test_doubt_widens_the_intervals_of_the_model():
    known, columns, linear = made_of("fixed", 0.05, np.array([0.2, 0.5, 0.0]))
    params, _ = Beside(known, columns[:, [1]]).missing
    sure = Contrasts(robust.estimate(linear, known.moved, robust=False))
    unsure = Contrasts(robust.estimate(linear, known.moved, robust=False), doubt=params[:, None] / 2)
    row = np.array([[0.0, 1.0]])
    (narrow,), (wide,) = sure.intervals(row), unsure.intervals(row)
    assert wide.se**2 - narrow.se**2 == pytest.approx(params[1] ** 2 / 4)
    assert wide.p > narrow.p
    assert unsure.covariance[1, 1] == pytest.approx(wide.se**2)


def test_a_pair_is_as_probable_as_its_test_and_the_number_of_pairs_say():
    # z = 3: exp(4.5) = 90, a tenth of it with 100 runs, one of 65 pairs expected.
    told = probabilities({("a", "b"): 0.0026998} | {("a", str(i)): 0.5 for i in range(64)}, 0, 99)
    assert list(told) == [("a", "b")]
    assert told["a", "b"] == pytest.approx(9.0017 / 65 / (1 + 9.0017 / 65), rel=1e-3)


def test_pairs_that_were_nearly_chosen_widen_what_a_study_says():
    widened = 0
    for seed in range(6):
        rng = np.random.default_rng([7, seed])
        known = truth.flags(rng, 12, size=0.1)
        factors = [Factor(name, "flag") for name in known.levels]
        made = fit(factors, frames.load(truth.runs(known, 70, truth.Noise(), rng), factors))
        alone = fit(factors, made.frame, pairs=made.coding.pairs)
        for mine, other in zip(made.effects(), alone.effects(), strict=True):
            assert mine.estimate == pytest.approx(other.estimate)
            assert mine.se > other.se - 1e-12
            widened += mine.se > 1.02 * other.se
    assert widened > 10
