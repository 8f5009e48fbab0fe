"""Effects of single factors: on average over the others, at the baseline, or in any configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from broadleaf_lab.analysis.model import scale as scales
from broadleaf_lab.analysis.model.contrasts import Interval, intervals
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.spec.factors import Factor, Level

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.fit import Fit

Context = Literal["average", "baseline", "best"] | Mapping[str, Level]
_DRAWS = 2000
_MAX_CONTEXTS = 1000


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of setting a factor to `level` instead of its default.

    `estimate` and the intervals are on the fit's scale (`unit`); a negative one is faster except in tasks/s. `ratio`
    is time after over time before, whatever the scale, and `ratio_low` to `ratio_high` its 95 % interval where the
    scale has one. The simultaneous interval holds for all effects of the list at once (Bonferroni).
    """

    factor: str
    level: Level
    estimate: float
    ci_low: float
    ci_high: float
    ci_low_simultaneous: float
    ci_high_simultaneous: float
    p: float
    ratio: float
    unit: str
    se: float = float("nan")
    context: str = "average"
    ratio_low: float = float("nan")
    ratio_high: float = float("nan")
    ratio_low_simultaneous: float = float("nan")
    ratio_high_simultaneous: float = float("nan")


@dataclass(frozen=True, slots=True)
class DifferenceUs:
    """The effect of a factor in microseconds per task, predicted by a model of any scale, with a bootstrap interval."""

    factor: str
    level: Level
    before_us: float
    after_us: float
    delta_us: float
    ci_low: float
    ci_high: float
    context: str = "average"


def context_config(fit: Fit, context: Context) -> dict[str, Level] | None:
    """The configuration that a context names; None for the average over all."""
    if not isinstance(context, str):
        return {f.name: context.get(f.name, f.default) for f in fit.factors}
    if context == "average":
        return None
    if context == "baseline":
        return {f.name: f.default for f in fit.factors}
    if context == "best":
        return fit.best_config
    raise AnalysisError(f"unknown context {context!r}: choose average, baseline or best, or pass a configuration.")


def levels_of(fit: Fit, factor: Factor) -> list[Level]:
    """The levels that were run, apart from the default."""
    return [level for level in fit.coding.levels[factor.name] if level != factor.default]


def contrast_row(fit: Fit, factor: Factor, level: Level, config: Mapping[str, Level] | None) -> np.ndarray:
    """The contrast of `level` against the default, in a configuration of the others or on their average."""
    others = {} if config is None else dict(config)
    rows = fit.coding.rows([{**others, factor.name: level}, {**others, factor.name: factor.default}])
    row: np.ndarray = rows[0] - rows[1]
    return row


def effects(fit: Fit, context: Context = "average") -> list[Effect]:
    """An effect per factor and level other than its default. A nested factor is omitted where it does not exist, and so
    is whatever the runs cannot show (a level that was never run).
    """
    from scipy import stats

    config = context_config(fit, context)
    name = context if isinstance(context, str) else "configuration"
    asked = []
    for factor in fit.factors:
        if config is not None and not fit.coding.exists(factor.name, config):
            continue
        for level in levels_of(fit, factor):
            row = contrast_row(fit, factor, level, config)
            if fit.estimable(row):
                asked.append((factor, level))
    if not asked:
        return []
    others = {} if config is None else config
    changes = fit.changes(
        [{**others, f.name: level} for f, level in asked], [{**others, f.name: f.default} for f, _ in asked]
    )
    told = [_widened(fit, it, factor) for (factor, _), it in zip(asked, changes, strict=True)]
    wide = stats.t.ppf(1 - fit.alpha / (2 * len(asked)), [it.df for it in told])
    found = []
    for (factor, level), it, quantile in zip(asked, told, wide.tolist(), strict=True):
        half = quantile * it.se
        ratio, low, high = _ratio(fit, factor, level, config, it.estimate, it.low, it.high)
        all_low, all_high = it.estimate - half, it.estimate + half
        _, wide_low, wide_high = _ratio(fit, factor, level, config, it.estimate, all_low, all_high)
        found.append(
            Effect(factor.name, level, it.estimate, it.low, it.high, all_low, all_high, it.p,
                   ratio, scales.UNITS[fit.scale], it.se, name, low, high, wide_low, wide_high)
        )  # fmt: skip
    return found


def _widened(fit: Fit, it: Interval, factor: Factor) -> Interval:
    """The interval of an effect of a number on a spline: both levels may deviate from it."""
    stray = fit.stray.get(factor.name, 0.0)
    if not stray:
        return it
    square = np.array([it.se**2 + 2 * stray])
    return intervals(np.array([it.estimate]), square, np.array([it.df]), square, fit.df, fit.alpha)[0]


def _ratio(
    fit: Fit, factor: Factor, level: Level, config: Mapping[str, Level] | None, estimate: float, low: float, high: float
) -> tuple[float, float, float]:
    if fit.scale == "log":
        return float(np.exp(estimate)), float(np.exp(low)), float(np.exp(high))
    others = {} if config is None else dict(config)
    before = float(fit.coding.row({**others, factor.name: factor.default})[fit.kept] @ fit.treatment_params)
    if before <= 0:
        return float("nan"), 0.0, float("inf")
    # A time or a rate below zero cannot be: the model of this scale has nothing to say there, and the interval ends.
    middle, least, most = (max((before + change) / before, 0.0) for change in (estimate, low, high))
    if fit.scale == "us":
        return middle or float("nan"), least, most
    slowest, fastest = (1 / rate if rate else float("inf") for rate in (least, most))
    return 1 / middle if middle else float("nan"), fastest, slowest


def differences_us(fit: Fit, context: Context = "average") -> list[DifferenceUs]:
    """Effects in microseconds per task, whatever the fit's scale.

    On a logarithmic scale a difference depends on where it starts, so "average" is the mean over the configurations
    that were run (a sample of them where there are very many). The interval comes from coefficients drawn from their
    distribution (`Fit.bootstrap`).
    """
    rng = np.random.default_rng(1)
    config = context_config(fit, context)
    contexts = fit.measured_configs if config is None else [config]
    if len(contexts) > _MAX_CONTEXTS:
        contexts = [contexts[i] for i in rng.choice(len(contexts), _MAX_CONTEXTS, replace=False).tolist()]
    name = context if isinstance(context, str) else "configuration"
    found = []
    for factor in fit.factors:
        here = [c for c in contexts if fit.coding.exists(factor.name, c)]
        if not here:
            continue
        start = [{**c, factor.name: factor.default} for c in here]
        before = scales.to_us(fit.coding.rows(start)[:, fit.kept] @ fit.treatment_params, fit.scale).mean()
        for level in levels_of(fit, factor):
            if not fit.estimable(contrast_row(fit, factor, level, config)):
                continue
            goal = [{**c, factor.name: level} for c in here]
            after = scales.to_us(fit.coding.rows(goal)[:, fit.kept] @ fit.treatment_params, fit.scale).mean()
            if not np.isfinite(after - before):
                # The scale has no time there.
                continue
            # With a degree of freedom or two, a few draws are beyond all numbers: those are no times.
            with np.errstate(over="ignore", invalid="ignore"):
                drawn = scales.to_us(fit.draws([*start, *goal], rng, _DRAWS), fit.scale)
                changes = drawn[len(here) :].mean(axis=0) - drawn[: len(here)].mean(axis=0)
            low, high = np.nanquantile(changes, [0.025, 0.975])
            found.append(
                DifferenceUs(
                    factor.name,
                    level,
                    float(before),
                    float(after),
                    float(after - before),
                    float(low),
                    float(high),
                    name,
                )
            )
    return found
