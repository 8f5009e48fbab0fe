"""Pairs that are estimated beside the model have the size that they would have in it."""

import numpy as np
import pytest

pytest.importorskip("statsmodels")

import truth
from broadleaf.lab.analysis import frame as frames
from broadleaf.lab.analysis.model.fit import fit
from broadleaf.lab.spec.factors import Factor

pytestmark = pytest.mark.timeout(120)


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
