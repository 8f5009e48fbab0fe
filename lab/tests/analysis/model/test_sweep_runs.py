"""A sweep of many levels leaves the model of a study as it was."""

import numpy as np
import pytest

pytest.importorskip("scipy")

import truth
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.spec.factors import Factor


def test_a_sweep_of_many_levels_leaves_effects_and_pairs_alone():
    rng = np.random.default_rng(3)
    known = truth.numbers("monotone", 3)
    rows = [{**row, "purpose": "design"} for row in truth.runs(known, 160, truth.Noise(), rng)]
    levels = known.levels["number"]
    more = [1, 2, 8, 32, 64, 128, 256]
    factors = [Factor("number", "config", (*levels, *more), 0, "log2"), *(Factor(f"f{i}", "flag") for i in range(4))]
    base = {"status": "ok", "purpose": "sweep", "block": 99, **{f"f{i}": 0 for i in range(4)}}
    swept = [
        {**base, "number": level, "time_per_task_us": 400.0, "started_unix": 1000.0 + i}
        for i, level in enumerate((*levels, *more) * 3)
    ]
    before = fit(factors, frames.load(rows, factors))
    after = fit(factors, frames.load([*rows, *swept], factors))
    assert not after.coding.splines
    assert after.coefficients == pytest.approx(before.coefficients)
    assert len(after.interactions()) == len(before.interactions()) > 10
    # With nothing else, the sweep is what there is to fit.
    assert fit(factors[:1], frames.load(swept, factors)).n_runs == len(swept)
