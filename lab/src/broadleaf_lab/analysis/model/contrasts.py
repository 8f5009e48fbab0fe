"""Intervals of linear combinations of coefficients, valid where runs spread unequally and where there are few of them.

The covariance is the HC2 sandwich of the bounded residuals. Its quantiles are those of t with the degrees of freedom of
Bell and McCaffrey, which measure how well a contrast's own variance is known; that may be much fewer than the residual
degrees of freedom.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from broadleaf_lab.analysis.model.robust import Estimate

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.linear import Linear

Covariance = Literal["HC2", "HC3", "nonrobust"]
Pair = tuple[str, str]
_EXACT_RUNS = 1500
"""With more runs the residual degrees of freedom are so many that the exact ones would not change an interval."""
_SATURATED = 0.999


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval, 95 % unless the fit says otherwise; `df` are the degrees of freedom of its
    standard error.
    """

    estimate: float
    se: float
    low: float
    high: float
    p: float
    df: float = float("inf")

    @property
    def known(self) -> bool:
        """Whether zero lies outside."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Doubt:
    """What may be wrong with estimates besides noise. Pairs outside the model: each contributes as much as it does
    beside the model, times the root of the probability that it is real. And what treatments may do to a covariate.

    `params` has a row for each parameter, `runs` for each run; both have a column for each pair or part. `own` is the
    index of the pair of interest, about which there is no doubt; -1 if there is none.
    """

    pairs: tuple[Pair, ...]
    params: np.ndarray
    runs: np.ndarray

    own: int = -1

    def but(self, pair: Pair) -> Doubt:
        """The doubt about all other pairs."""
        return replace(self, own=self.pairs.index(pair) if pair in self.pairs else -1)

    def and_of(self, other: Doubt | None) -> Doubt:
        """Both doubts; `own` stays an index of this one's pairs."""
        if other is None:
            return self
        runs = np.hstack([self.runs, other.runs])
        return Doubt(self.pairs + other.pairs, np.hstack([self.params, other.params]), runs, self.own)

    def squares(self, rows: np.ndarray, influence: np.ndarray) -> np.ndarray:
        """What is added to the squared errors of combinations `rows` of parameters, to which the runs contribute
        `influence` besides.
        """
        added = rows @ self.params + influence.T @ self.runs
        if self.own >= 0:
            added[:, self.own] = 0.0
        found: np.ndarray = (added**2).sum(axis=1)
        return found


class Contrasts:
    """The errors of an estimate. `rows` contain one number per parameter.

    `doubt` is what else may be wrong with the parameters (`Doubt.params`); it widens all intervals.
    """

    def __init__(
        self,
        estimate: Estimate,
        covariance: Covariance = "HC2",
        alpha: float = 0.05,
        doubt: np.ndarray | None = None,
    ) -> None:
        linear = estimate.linear
        self.linear: Linear = linear
        self.params: np.ndarray = estimate.params
        self.kind = covariance
        self.slope: float = estimate.slope
        self.alpha: float = alpha
        self.inflation: float = (estimate.inflation / estimate.slope) ** 2
        moved = linear.transform(estimate.pseudo)
        # With random blocks or weights these are whitened residuals.
        self.residuals: np.ndarray = moved - linear.transform(linear.values(estimate.params))
        self.moved: np.ndarray = moved
        self.spread: np.ndarray = estimate.spread * linear.root
        self.doubt: np.ndarray = np.zeros((linear.width, 0)) if doubt is None else doubt

    @functools.cached_property
    def sigma_square(self) -> float:
        """The mean square of the residuals."""
        return float(self.residuals @ self.residuals / max(self.linear.df, 1))

    def variances(self, leverages: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Every run's variance, estimated from its residual."""
        if self.kind == "nonrobust":
            return np.full(len(residuals), self.sigma_square)
        left = np.maximum(1 - leverages, 1e-9)
        own = residuals**2 / (left if self.kind == "HC2" else left**2)
        # A run that is fitted exactly says nothing about its own error.
        told: np.ndarray = np.where(leverages > _SATURATED, self.spread**2, own)
        return told

    @functools.cached_property
    def covariance(self) -> np.ndarray:
        """The covariance of all parameters."""
        if self.kind == "nonrobust":
            equal: np.ndarray = self.inflation * self.sigma_square * self._inverse + self.doubt @ self.doubt.T
            return equal
        answer: np.ndarray = self.inflation * self.linear.sandwich(
            self.variances(self.linear.leverages, self.residuals)
        )
        answer += self.doubt @ self.doubt.T
        return answer

    def degrees(self, rows: np.ndarray) -> np.ndarray:
        """The degrees of freedom of each row's standard error."""
        df = float(max(self.linear.df, 1))
        if self.kind == "nonrobust" or self.linear.n_runs > _EXACT_RUNS:
            return np.full(len(rows), df)
        influence = self.linear.design @ self.linear.solve(rows.T)
        weight = influence**2 / (1 - self.linear.leverages)[:, None]
        kernel = self._kernel
        below = np.einsum("ij,ij->j", weight, kernel @ weight)
        above = (influence**2).sum(axis=0) ** 2
        found = np.where(below > 0, above / np.where(below > 0, below, 1.0), df)
        degrees: np.ndarray = np.clip(found, 1.0, df)
        return degrees

    @functools.cached_property
    def _inverse(self) -> np.ndarray:
        inverse: np.ndarray = self.linear.solve(np.eye(self.linear.width))
        return inverse

    @functools.cached_property
    def _kernel(self) -> np.ndarray:
        return self.linear.hat**2

    def intervals(self, rows: np.ndarray) -> list[Interval]:
        """The interval of each row's combination."""
        if not len(rows):
            return []
        # A contrast involves only few of many columns.
        used = np.flatnonzero(np.any(rows != 0, axis=0))
        here: np.ndarray = rows[:, used]
        part: tuple[np.ndarray, ...] = np.ix_(used, used)
        square = ((here @ self.covariance[part]) * here).sum(axis=1)
        equal = self.inflation * self.sigma_square * ((here @ self._inverse[part]) * here).sum(axis=1)
        equal += ((here @ self.doubt[used]) ** 2).sum(axis=1)
        return intervals(rows @ self.params, square, self.degrees(rows), equal, self.linear.df, self.alpha)


def intervals(
    estimates: np.ndarray,
    squares: np.ndarray,
    degrees: np.ndarray,
    equal: np.ndarray,
    df: int,
    alpha: float = 0.05,
) -> list[Interval]:
    """Student's intervals of estimates with squared standard errors, which miss in `alpha` of all cases.

    The p value is the larger of this test's and that of the test for equal variances (squared errors `equal`, `df`
    degrees of freedom): far out in the tail, where many tests are decided at once, a sandwich of few runs is too
    optimistic.
    """
    from scipy.special import stdtr, stdtrit

    errors, plain = (np.sqrt(np.maximum(square, 0.0)) for square in (squares, equal))
    half = stdtrit(degrees, 1 - alpha / 2) * errors
    size = np.abs(estimates)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * np.maximum(stdtr(degrees, -size / errors), stdtr(max(df, 1), -size / plain))
    p = np.where((errors > 0) & (plain > 0), p, np.nan)
    return [
        Interval(*map(float, entry))
        for entry in zip(estimates, errors, estimates - half, estimates + half, p, degrees, strict=True)
    ]
