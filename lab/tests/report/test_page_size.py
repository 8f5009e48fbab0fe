"""A page has less than 5 MB, however many runs and factors a study has."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("scipy")
pytest.importorskip("altair")
import truth
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model.fit import Fit, fit
from broadleaf_lab.report.figures.base import Figure
from broadleaf_lab.report.figures.evidence import Components, Evidence, Model, Roles
from broadleaf_lab.report.figures.registry import draw_all
from broadleaf_lab.report.page import explorer_data
from broadleaf_lab.report.predictor import MAX_COLUMNS, predictor_data
from broadleaf_lab.spec.factors import Factor
from converter import vl_convert

MAX_BYTES = 5_000_000
RUNS, FACTORS = 100_000, 60
NAMES = [f"factor_{number}" for number in range(FACTORS)]


def flags(count: int) -> list[Factor]:
    return [Factor(name, "flag") for name in NAMES[:count]]


def size(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def fitted(count: int, runs: int, pairs: int) -> Fit:
    """Flags of which many interact, in blocks whose runs err together."""
    rng = np.random.default_rng(1)
    known = truth.flags(rng, count, pairs)
    rows = truth.runs(known, runs, truth.Noise(block=8, wander=0.2), rng)
    factors = [Factor(name, "flag") for name in known.levels]
    return fit(factors, frames.load(rows, factors))


def test_the_model_in_a_page_does_not_grow_with_the_runs() -> None:
    sizes = []
    for runs in (400, 2400):
        made = fitted(6, runs, 3)
        model = predictor_data(made, made.factors, {}, [])
        assert model is not None
        assert model["blocks"] is not None
        sizes.append(size(model))
    assert sizes[1] < 1.2 * sizes[0]


def evidence() -> Evidence:
    """Everything that grows with runs or factors, in the largest study."""
    rng = np.random.default_rng(1)
    bars = pd.DataFrame(
        {"name": NAMES, "mean_us": rng.normal(0, 100, FACTORS), "ci_low_us": -300.0, "ci_high_us": 300.0, "n": 1000}
    )
    steps = 1e4 * np.exp(-0.05 * np.arange(FACTORS + 1))
    path = pd.DataFrame(
        {"step": range(1, FACTORS + 1), "name": NAMES, "before_us": steps[:-1], "after_us": steps[1:], "tier": 2,
         "ci_low_us": 0.98 * steps[1:], "ci_high_us": 1.02 * steps[1:]}
    )  # fmt: skip
    a, b = np.triu_indices(FACTORS, 1)
    pairs = pd.DataFrame(
        {"a": np.take(NAMES, a), "b": np.take(NAMES, b), "estimate": rng.normal(0, 0.1, len(a)), "q": 0.01}
    )
    cells = pd.DataFrame(
        [{"a": NAMES[i], "b": NAMES[-1], "kind": "either-or", "a_level": x, "b_level": y, "mean_us": 50 + 1 / 3,
          "ci_low_us": 40 + 1 / 3, "ci_high_us": 60 + 1 / 3}
         for i in range(6) for x in ("off", "on") for y in ("off", "on")]
    )  # fmt: skip
    levels = pd.DataFrame(
        [{"name": name, "level": str(level), "position": level, "mean_us": 50 + 1 / 3, "ci_low_us": 40 + 1 / 3,
          "ci_high_us": 60 + 1 / 3} for name in NAMES for level in range(6)]
    )  # fmt: skip
    model = Model(
        pd.DataFrame({"actual_us": rng.lognormal(6, 1, RUNS), "predicted_us": rng.lognormal(6, 1, RUNS)}), 0.9, "Pairs"
    )
    drift = pd.DataFrame(
        {"started_unix": 4.0 * np.arange(RUNS), "control": np.tile(["baseline", "all on", "", ""], RUNS // 4),
         "y_us": rng.lognormal(6, 0.1, RUNS), "residual_log": rng.standard_t(2, RUNS)}
    )  # fmt: skip
    scores = pd.DataFrame({"pc1": rng.normal(0, 100, RUNS // 10), "pc2": rng.normal(0, 100, RUNS // 10)})
    loadings = pd.DataFrame({"name": NAMES, "pc1": rng.normal(0, 1, FACTORS), "pc2": rng.normal(0, 1, FACTORS)})
    ratio = np.arange(FACTORS, 0, -1) / (FACTORS * (FACTORS + 1) / 2)
    components = Components(
        scores,
        loadings.assign(known=True),
        pd.DataFrame({"component": range(1, FACTORS + 1), "ratio": ratio, "null_95": ratio / 2}),
    )
    convergence = pd.DataFrame(
        [{"runs": 100 * step, "name": name, "estimate_pct": 1.0, "ci_low_pct": -1 / 3, "ci_high_pct": 2 + 1 / 3}
         for step in range(1, 40) for name in NAMES]
    )  # fmt: skip
    return Evidence(
        Roles("factor_0", "factor_1"), frozenset(NAMES), 1.0, deltas=deltas(), means=bars, means_kept=bars,
        kept_words="without factor_0", greedy=path, nice=path, main_model=model, pair_model=model, coefficients=bars,
        pairs=pairs, components=components, convergence=convergence, drift=drift, cells=cells, levels=levels,
    )  # fmt: skip


def deltas() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    before = rng.lognormal(6, 1, RUNS)
    after = before * rng.lognormal(0, 0.2, RUNS)
    context = pd.DataFrame(rng.integers(0, 2, (RUNS, FACTORS)), columns=NAMES)
    own = pd.DataFrame(
        {"treatment": rng.choice(NAMES, RUNS), "level_from": 0, "level_to": 1, "before_us": before, "after_us": after,
         "delta_us": after - before, "log2_ratio": np.log2(after / before)}
    )  # fmt: skip
    return pd.concat([own, context], axis=1)


def test_a_page_is_small_whatever_the_runs_and_factors() -> None:
    figures = draw_all(evidence())
    assert all(isinstance(figure, Figure) for figure in figures)
    drawn = {figure.key: size(figure.spec) for figure in figures if isinstance(figure, Figure)}
    explorer, note = explorer_data(deltas(), flags(FACTORS), {}, None)
    assert note
    made = fitted(31, 2400, 24)
    assert MAX_COLUMNS - 10 < len(made.treatment_params) <= MAX_COLUMNS
    model = predictor_data(made, made.factors, {}, [])
    assert model is not None
    assert None not in (model["missed"], model["blocks"])
    parts = {
        **drawn,
        "explorer": size(explorer),
        "model": size(model),
        "drawing": len(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")),
    }
    # What the parts leave is for the page's own text: a row of each table for every factor.
    assert sum(parts.values()) < MAX_BYTES - 1000 * FACTORS, parts
