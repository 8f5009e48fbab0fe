"""Regression that a few disturbed runs do not move: an MM estimate with Tukey's bisquare.

A run beyond 4.685 standard deviations counts for nothing, others nearly as in least squares (95 % efficient if errors
are normal); with few runs per parameter, the others count exactly as in least squares. The start and the scale come
from Huber's convex estimate. Each step is least squares on *pseudo-values*, the fitted values plus the bounded
residuals, so that one factorisation serves all steps, including absorbed and random blocks; because the curvature of
both losses is at most 1, each step lowers the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from broadleaf_lab.analysis.model.linear import Linear, block_variance_ratio

_HUBER, _BISQUARE = 1.345, 4.685
_MAX_STEPS = 300
_MAX_PARAMETERS = 0.2
"""With more parameters per run than this, the bounding function costs more power than it saves (studies/coverage): runs
that the bisquare rejects are left out, the others count fully."""
_MAX_ADMISSIONS = 5
_MIN_SLOPE, _MIN_KEPT = 0.25, 0.7
_MAD = 0.6744897501960817
_UNEQUAL_T = 3.5
_MIN_FOR_SPREADS = 40
_MAX_WEIGHINGS = 3
_WORTH_WEIGHTS = 1.25
"""If spreads differ by less, weights would save less than a twentieth of the runs."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The parameters, and what determines their errors: `pseudo` are the pseudo-values, `psi` the bounded residuals,
    `slope` the mean derivative of the bounding function, `inflation` Huber's correction of standard errors for the
    number of parameters, `spread` every run's standard deviation. `weight` is 1 for a run that counts fully, 0 for one
    that does not count.
    """

    linear: Linear
    params: np.ndarray
    pseudo: np.ndarray
    psi: np.ndarray
    weight: np.ndarray
    slope: float
    inflation: float
    spread: np.ndarray


def estimate(linear: Linear, y: np.ndarray, level: np.ndarray | None = None, robust: bool = True) -> Estimate:
    """The MM estimate, or least squares if not `robust` or if the runs fit to the last digit. If the runs of some
    settings clearly vary more than the others, each run is weighted by the inverse of its variance.

    `level` gives the assumed proportions of the runs' spreads (None: all alike). The variance of random blocks is
    estimated again from the pseudo-values.
    """
    linear = _with_ratio(linear, y)
    params, residuals = _plain(linear, y)
    height = np.ones(len(y)) if level is None else level
    scale = _mad(residuals / height, linear)
    if not robust or linear.df < 3 or scale <= 1e-10 * max(1.0, float(np.abs(y).max())):
        return _least_squares(linear, y, params, residuals)
    params, residuals = _descend(linear, y, params, height * scale, _huber)
    scale = _mad(residuals / height, linear)
    if level is None:
        for _ in range(_MAX_WEIGHINGS):
            more = _unequal(linear, residuals / (height * scale))
            if float(more.max()) <= _WORTH_WEIGHTS * float(more.min()):
                break
            # Runs of a quiet setting tell more than those of a noisy one, by the inverse of their variances.
            height = height * more
            linear = linear.with_weight(height**-2)
            scale = _mad(residuals / height, linear)
            params, residuals = _descend(linear, y, params, height * scale, _huber)
            scale = _mad(residuals / height, linear)
    if linear.blocks == "random":
        # An outlier makes its block look different from the others.
        bounded = height * scale * _bisquare(residuals / (height * scale))[0]
        linear = _with_ratio(linear, y - residuals + bounded)
    spread = height * scale
    params, residuals = _descend(linear, y, params, spread, _bisquare)
    if linear.n_parameters > _MAX_PARAMETERS * len(y):
        return _rejected(linear, y, params, spread, np.abs(residuals) < _BISQUARE * spread)
    value, _ = _bisquare(residuals / spread)
    # Residuals are smaller than errors, and their slope larger, because each run influences its own fit. Correcting for
    # all of that makes intervals too wide, correcting for none of it too narrow; half gives 95 % (studies/coverage).
    slope = _bisquare(residuals / spread / (1 - linear.leverages) ** 0.25)[1]
    mean = float(slope.mean())
    if mean < _MIN_SLOPE:
        # If half of the runs are beyond reach, the rest alone gives no reliable answer.
        return _least_squares(linear, y, *_plain(linear, y))
    share = linear.n_parameters / len(y)
    inflation = 1 + share * float(slope.var()) / mean**2
    psi = spread * value
    standard = np.abs(residuals / spread)
    weight = np.where(standard > 1e-12, np.abs(value) / np.maximum(standard, 1e-12), 1.0)
    return Estimate(linear, params, y - residuals + psi, psi, weight, mean, inflation, spread)


def _least_squares(linear: Linear, y: np.ndarray, params: np.ndarray, residuals: np.ndarray) -> Estimate:
    standard = residuals * linear.root
    sigma = float(np.sqrt(standard @ standard / max(linear.df, 1)))
    return Estimate(linear, params, y, residuals, np.ones(len(y)), 1.0, 1.0, sigma / linear.root)


def _rejected(linear: Linear, y: np.ndarray, params: np.ndarray, spread: np.ndarray, kept: np.ndarray) -> Estimate:
    """Least squares over the runs that the bisquare did not reject, and those of them that this admits again: runs
    omitted from a fit lie farther from it than those included.
    """
    reach = _BISQUARE / np.sqrt(1 - linear.leverages)
    residuals = y - linear.fitted(params, y)
    admitted = kept
    for _ in range(_MAX_ADMISSIONS):
        params, residuals = _descend(linear, y, params, spread, lambda z, kept=kept: (np.where(kept, z, 0.0), kept))
        square = float(((residuals / spread)[kept] ** 2).sum()) / max(linear.df - int((~kept).sum()), 1)
        admitted = kept | (np.abs(residuals) < reach * spread * max(np.sqrt(square), 1.0))
        if admitted.all() or (admitted == kept).all():
            break
        kept = admitted
    if admitted.all():
        return _least_squares(linear, y, *_plain(linear, y))
    psi = np.where(kept, residuals, 0.0)
    share = float(kept.mean())
    if share < _MIN_KEPT:
        return _least_squares(linear, y, *_plain(linear, y))
    return Estimate(linear, params, y - residuals + psi, psi, kept.astype(float), share, 1.0, spread)


def _plain(linear: Linear, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    params = linear.least_squares(y)
    return params, y - linear.fitted(params, y)


def _with_ratio(linear: Linear, y: np.ndarray) -> Linear:
    return linear.with_ratio(block_variance_ratio(linear, y)) if linear.blocks == "random" else linear


def _descend(
    linear: Linear, y: np.ndarray, params: np.ndarray, spread: np.ndarray, bound: object
) -> tuple[np.ndarray, np.ndarray]:
    pseudo = y
    tolerance = 1e-7 * float(np.median(spread))
    fitted = linear.fitted(params, pseudo)
    for _ in range(_MAX_STEPS):
        bounded, _ = bound((y - fitted) / spread)  # type: ignore[operator]
        pseudo = fitted + spread * bounded
        params = linear.least_squares(pseudo)
        before, fitted = fitted, linear.fitted(params, pseudo)
        if float(np.abs(fitted - before).max()) < tolerance:
            break
    return params, y - fitted


def _huber(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.clip(z, -_HUBER, _HUBER), (np.abs(z) < _HUBER).astype(float)


def _bisquare(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    part = np.maximum(1 - (z / _BISQUARE) ** 2, 0.0)
    return z * part**2, part * (5 * part - 4)


def _mad(residuals: np.ndarray, linear: Linear) -> float:
    """The normalised median of absolute residuals, each corrected for the run's own influence."""
    return float(np.median(np.abs(residuals) / np.sqrt(1 - linear.leverages))) / _MAD


def _unequal(linear: Linear, standard: np.ndarray) -> np.ndarray:
    """In which proportion runs spread, as far as single treatment columns show it beyond doubt; otherwise the runs of a
    noisy setting would be taken for outliers.
    """
    n = len(standard)
    flat: np.ndarray = np.ones(n)
    if n < _MIN_FOR_SPREADS:
        return flat
    # Bounded, so that neither a residual of zero nor an outlier decides.
    logs = np.log(np.clip(np.abs(standard) / np.sqrt(1 - linear.leverages), 0.1, 8.0))
    cells = len(linear.rows)
    count = np.bincount(linear.cell, minlength=cells).astype(float)
    mean = float(logs.mean())
    by_cell = np.bincount(linear.cell, logs - mean, cells)
    middle = (count @ linear.rows) / n
    square = count @ linear.rows**2 - n * middle**2
    known = square > 1e-9 * n
    slope = np.where(known, (by_cell @ linear.rows) / np.where(known, square, 1.0), 0.0)
    sigma = float(logs.std())
    sure = known & (np.abs(slope) * np.sqrt(np.where(known, square, 1.0)) > _UNEQUAL_T * sigma)
    if not sure.any():
        return flat
    from broadleaf_lab.analysis.model.linear import weighted_gram

    chosen = linear.rows[:, sure] - middle[sure]
    found = np.linalg.lstsq(weighted_gram(chosen, count), chosen.T @ by_cell, rcond=None)[0]
    height: np.ndarray = np.exp(np.clip(chosen @ found, -2.0, 2.0))[linear.cell]
    return height
