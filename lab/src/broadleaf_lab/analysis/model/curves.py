"""How levels of a number enter the model: each separately up to six, more on a spline, unless that misses a bend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from broadleaf_lab.analysis.model.coding import MAX_STEPS, Coding
from broadleaf_lab.analysis.model.sample import Sample
from broadleaf_lab.spec.factors import Factor, Level

_MIN_RUNS_PER_LEVEL = 4


def splines(
    factors: Sequence[Factor], sample: Sample, levels: Mapping[str, Sequence[Level]], blocks: str
) -> dict[str, float]:
    """The numbers whose levels lie on a spline, each with the variance by which a level may still deviate from it.

    A spline that a test at 5 % rejects in favour of separate levels is replaced by these. A spline that passes may
    still be wrong in ways that the test cannot see. The price is a variance, estimated from the same comparison, that
    widens the intervals of that number's effects.
    """
    from scipy import stats

    found: dict[str, float] = {}
    many = [f for f in factors if f.is_numeric and len(levels[f.name]) > MAX_STEPS]
    for factor in many:
        smooth = Coding(factors, False, (), levels, {f.name for f in many})
        steps = Coding(factors, False, (), levels, {f.name for f in many} - {factor.name})
        if len(sample.y) < steps.cell_rows(sample.cells).shape[1] + _MIN_RUNS_PER_LEVEL * len(levels[factor.name]):
            found[factor.name] = 0.0
            continue
        rests, dfs = [], []
        for coding in (smooth, steps):
            linear = sample.linear(coding, sample.choose_blocks(blocks, len(coding.column_names)))
            rest = sample.y - linear.fitted(linear.least_squares(sample.y), sample.y)
            # Bounded, so that an outlier does not count as a bend.
            scale = max(float(np.median(np.abs(rest))) / 0.6745, 1e-300)
            pseudo = sample.y - rest + np.clip(rest, -3 * scale, 3 * scale)
            rest = pseudo - linear.fitted(linear.least_squares(pseudo), pseudo)
            rests.append(float(rest @ rest))
            dfs.append(linear.df)
        extra, left = dfs[0] - dfs[1], dfs[1]
        noise = rests[1] / max(left, 1)
        mean_square = max(rests[0] - rests[1], 0.0) / max(extra, 1)
        if noise > 0 and float(stats.f.sf(mean_square / noise, extra, left)) < 0.05:
            continue
        runs_per_level = len(sample.y) / len(levels[factor.name])
        found[factor.name] = max(0.0, (mean_square - noise) / runs_per_level)
    return found
