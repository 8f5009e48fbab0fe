"""The model as embedded in the page: enough to predict any configuration with its interval, without Python."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from broadleaf_lab.analysis.model import contrasts
from broadleaf_lab.report.figures.base import Unit, on_off, short
from broadleaf_lab.spec.factors import Factor, Level

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.fit import Fit

MAX_COLUMNS = 500
"""Beyond that the matrices alone would take megabytes."""
_LOOKED_AT = 60
_MOST = 32767


def predictor_data(
    fit: Fit, factors: Sequence[Factor], rules: Mapping[str, str], order: Sequence[str]
) -> dict[str, Any] | None:
    """What `predictor.js` reads: the model's rows level by level, coefficients, covariance, and the constraints among
    the factors of the model. `order` are the factors of the initial path. None if the model is too large.

    `fit` is on the scale of logarithms. One quantile serves all intervals: the one of the median measured
    configuration, because degrees of freedom differ little between configurations.
    """
    size = len(fit.treatment_params)
    if size > MAX_COLUMNS:
        return None
    coding = fit.coding
    names = [f.name for f in fit.factors]
    kept = np.flatnonzero(fit.kept)
    square = fit.covariance[:size, :size]
    spreads = np.array([short(value) or 1.0 for value in np.sqrt(np.diag(square))])
    mains = {term.factors[0]: list(term.columns) for term in coding.terms if len(term.factors) == 1}
    described = []
    for factor in fit.factors:
        levels = coding.levels[factor.name]
        # A configuration of one factor has only that factor's columns besides the mean.
        rows = coding.rows([{factor.name: level} for level in levels])[:, mains[factor.name]]
        default = levels.index(factor.default) if factor.default in levels else 0
        last = len(levels) - 1
        described.append(
            {
                "name": factor.name,
                "levels": [on_off(level) for level in levels],
                "values": [plain(level) for level in levels],
                "codes": [[round(float(v), 7) for v in row] for row in rows],
                "base": default,
                "on": last if last != default else 0,
                "when": factor.when or "",
            }
        )
    configs = fit.measured_configs[:_LOOKED_AT]
    degrees = float(np.median(fit.contrasts.degrees(fit.whole(coding.rows(configs)))))
    baseline_us = float(fit.predict([{f.name: f.default for f in fit.factors}])[0][0])
    unit = Unit.of([baseline_us])
    wanted = [*(name for name in order if name in names), *(name for name in names if name not in order)]
    return {
        "factors": described,
        "terms": [[names.index(name) for name in term.factors] for term in coding.terms],
        "kept": kept.tolist(),
        "coefficients": [float(f"{value:.8g}") for value in fit.treatment_params],
        "spreads": spreads.tolist(),
        "covariance": _half(square, spreads),
        "quantile": _quantile(degrees, fit.contrasts.alpha),
        "blocks": _blocks(fit, degrees, spreads),
        "missed": _missed(fit, names, size),
        "rules": [{"name": name, "text": text} for name, text in rules.items() if _speaks_of(text, factors, names)],
        "order": [names.index(name) for name in wanted],
        "unit": unit.name,
        "unit_us": unit.us,
    }


def _quantile(degrees: float, alpha: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 1 - alpha / 2))


def _packed(values: np.ndarray) -> dict[str, Any]:
    """Numbers as multiples of a unit, two bytes each: intervals are shown with three digits."""
    unit = (float(np.abs(values).max(initial=0.0)) or 1.0) / _MOST
    return {"unit": unit, "values": base64.b64encode(np.rint(values / unit).astype("<i2").tobytes()).decode()}


def _half(square: np.ndarray, spreads: np.ndarray) -> dict[str, Any]:
    """A symmetric matrix, each row and column divided by its spread: those of coefficients differ by far."""
    return _packed((square / np.outer(spreads, spreads))[np.triu_indices(len(square))])


def _blocks(fit: Fit, degrees: float, spreads: np.ndarray) -> dict[str, Any] | None:
    """What intervals need where the runs of a block err together; None where that is not asked. Its size depends on
    the parameters, not on the blocks.
    """
    blocks = fit.contrasts.by_block
    if blocks is None:
        return None
    size = len(spreads)
    sums, noise = blocks.sums[:, :size], fit.contrasts.noise[:size, :size]
    later = [(weight, sums[lag:].T @ sums[:-lag]) for lag, weight in contrasts.LAGS.items()]
    return {
        "together": _half(sums.T @ sums, spreads),
        "later": [{"weight": weight, **_half((its + its.T) / 2, spreads)} for weight, its in later],
        "noise": None if np.array_equal(noise, fit.covariance[:size, :size]) else _half(noise, spreads),
        "beyond_chance": blocks.beyond_chance,
        "quantile": _quantile(min(degrees, blocks.df / 2), fit.contrasts.alpha),
    }


def _missed(fit: Fit, names: Sequence[str], size: int) -> dict[str, Any] | None:
    """What the intervals of whole configurations allow for three factors together; None if that is nothing."""
    triples = fit.triples
    if not triples.spreads.any():
        return None
    return {
        "terms": [[names.index(name) for name in term] for term in triples.terms],
        "spreads": [float(f"{spread:.6g}") for spread in triples.spreads],
        "share": _packed(triples.share[:size]),
    }


def plain(level: Level) -> Any:
    """A level in JavaScript: booleans, numbers and text stay what they are."""
    return level.item() if isinstance(level, np.generic) else level


def _speaks_of(text: str, factors: Sequence[Factor], names: Sequence[str]) -> bool:
    """Whether a constraint involves only factors of the model: the others never varied."""
    from broadleaf_lab.spec import expressions

    node = expressions.parse(text, {f.name: f for f in factors}, "constraint")
    return expressions.names(node) <= set(names)
