"""Intervals of linear combinations of coefficients, valid where runs spread unequally and where there are few of them.

The covariance is the HC2 sandwich of the bounded residuals. Its quantiles are those of t with the degrees of freedom of
Bell and McCaffrey, which measure how well a contrast's own variance is known; that may be much fewer than the residual
degrees of freedom.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
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
_MIN_BLOCKS, _MIN_IN_BLOCK = 6, 4
LAGS = {1: 2 / 3, 2: 1 / 3}
_BEYOND_CHANCE = 3.0
"""By how many standard errors the runs of a block have to err together before errors are those of blocks."""
_LOOKED_AT = 60
_SEEN = 1e-3
"""A direction of a block's errors of which residuals show less than this part is not estimated from them."""


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


class Contrasts:
    """The errors of an estimate. `rows` contain one number per parameter.

    Random effects (columns with a penalty) count as what is still unknown of them: drawing them to zero is an error,
    too. `strays` are what some of them may be beyond their common variance: a root of its covariance,
    with a row for each parameter.
    """

    def __init__(
        self,
        estimate: Estimate,
        covariance: Covariance = "HC2",
        alpha: float = 0.05,
        strays: np.ndarray | None = None,
    ) -> None:
        linear = estimate.linear
        self.linear: Linear = linear
        self.params: np.ndarray = estimate.params
        self.kind = covariance
        self.slope: float = estimate.slope
        self.alpha: float = alpha
        self.inflation: float = (estimate.inflation / estimate.slope) ** 2
        self.pseudo: np.ndarray = estimate.pseudo
        moved = linear.transform(estimate.pseudo)
        # With random blocks or weights these are whitened residuals.
        self.residuals: np.ndarray = moved - linear.transform(linear.values(estimate.params))
        self.moved: np.ndarray = moved
        self.spread: np.ndarray = estimate.spread * linear.root
        self.strays: np.ndarray = np.zeros((linear.width, 0)) if strays is None else strays
        # A random effect is wrong by the part of it that the penalty keeps out of the estimates.
        self.doubt: np.ndarray = linear.solve(linear.penalty[:, None] * self.strays)

    @functools.cached_property
    def sigma_square(self) -> float:
        """The mean square of the residuals."""
        return float(self.residuals @ self.residuals / max(self.linear.df, 1))

    def variances(self, leverages: np.ndarray, residuals: np.ndarray, df: int) -> np.ndarray:
        """Every run's variance, estimated from residuals with `df` degrees of freedom; the runs are the last axis."""
        if self.kind == "nonrobust":
            mean = (residuals**2).sum(axis=-1, keepdims=True) / max(df, 1)
            shared: np.ndarray = np.broadcast_to(mean, residuals.shape)
            return shared
        left = np.maximum(1 - leverages, 1e-9)
        own = residuals**2 / (left if self.kind == "HC2" else left**2)
        # A run that is fitted exactly says nothing about its own error.
        told: np.ndarray = np.where(leverages > _SATURATED, self.spread**2, own)
        return told

    @functools.cached_property
    def covariance(self) -> np.ndarray:
        """The covariance of all parameters."""
        if self.kind == "nonrobust":
            equal: np.ndarray = self.inflation * self.sigma_square * self.inverse + self.doubt @ self.doubt.T
            return equal
        answer: np.ndarray = self.noise.copy()
        drawn = self.inverse * self.linear.penalty
        answer += self.inflation * self.sigma_square * (drawn @ self.inverse) + self.doubt @ self.doubt.T
        return answer

    @functools.cached_property
    def noise(self) -> np.ndarray:
        """The covariance of the parameters by the noise of the runs alone."""
        variances = self.variances(self.linear.leverages, self.residuals, self.linear.df)
        answer: np.ndarray = self.inflation * self.linear.sandwich(variances)
        return answer

    def degrees(self, rows: np.ndarray) -> np.ndarray:
        """The degrees of freedom of each row's standard error."""
        df = float(max(self.linear.df, 1))
        if self.kind == "nonrobust" or self.linear.n_runs > _EXACT_RUNS:
            return np.full(len(rows), df)
        influence = self.influence @ rows.T
        weight = influence**2 / (1 - self.linear.leverages)[:, None]
        below = np.einsum("ij,ij->j", weight, self.kernel @ weight)
        above = (influence**2).sum(axis=0) ** 2
        found = np.where(below > 0, above / np.where(below > 0, below, 1.0), df)
        degrees: np.ndarray = np.clip(found, 1.0, df)
        return degrees

    @functools.cached_property
    def inverse(self) -> np.ndarray:
        """The inverse of the cross products."""
        inverse: np.ndarray = self.linear.solve(np.eye(self.linear.width))
        return inverse

    @functools.cached_property
    def influence(self) -> np.ndarray:
        """How much each run (a row) moves each parameter."""
        influence: np.ndarray = self.linear.design @ self.inverse
        return influence

    @functools.cached_property
    def kernel(self) -> np.ndarray:
        """The squares of the hat matrix."""
        kernel: np.ndarray = self.linear.hat**2
        return kernel

    def intervals(self, rows: np.ndarray, aside: np.ndarray | float = 0.0) -> list[Interval]:
        """The interval of each row's combination; `aside` are squared errors of what is not in the model."""
        if not len(rows):
            return []
        # A contrast involves only few of many columns.
        used = np.flatnonzero(np.any(rows != 0, axis=0))
        here: np.ndarray = rows[:, used]
        part: tuple[np.ndarray, ...] = np.ix_(used, used)
        square = ((here @ self.covariance[part]) * here).sum(axis=1)
        equal = self.inflation * self.sigma_square * ((here @ self.inverse[part]) * here).sum(axis=1)
        equal += ((here @ self.doubt[used]) ** 2).sum(axis=1)
        square, equal, degrees = square + aside, equal + aside, self.degrees(rows)
        if (blocks := self.by_block) is not None:
            # What drifts slowly moves all runs of a block alike, and more where a setting is sensitive to it.
            own = ((here @ self.noise[part]) * here).sum(axis=1)
            sums = rows @ blocks.sums.T
            together = (sums**2).sum(axis=1)
            # Decided by the blocks alone: with the next ones, chance would decide in one answer of twenty.
            alike = together > own * blocks.beyond_chance
            # What is slower than a block is also in the next ones (Newey and West, 1987).
            for lag, weight in LAGS.items():
                together += 2 * weight * np.maximum((sums[:, lag:] * sums[:, :-lag]).sum(axis=1), 0.0)
            square = np.where(alike, square + together - own, square)
            equal = np.where(alike, np.maximum(equal, square), equal)
            degrees = np.where(alike, np.minimum(degrees, blocks.df / 2), degrees)
        return intervals(rows @ self.params, square, degrees, equal, self.linear.df, self.alpha)

    @functools.cached_property
    def by_block(self) -> ByBlock | None:
        """The errors by block; None if there are too few or too small blocks."""
        linear = self.linear
        number = linear.groups.number
        if self.kind == "nonrobust" or number < _MIN_BLOCKS or linear.n_runs < _MIN_IN_BLOCK * number:
            return None
        if linear.n_runs > _EXACT_RUNS:
            # With so many runs their fit hardly makes errors smaller, but for the mean over blocks.
            errors = self.residuals / np.sqrt(np.maximum(1 - linear.leverages, 1e-9))
            sums = np.sqrt(self.inflation * number / (number - 1)) * linear.by_block(errors)
            return ByBlock(sums, float(number - 1))
        sums = np.sqrt(self.inflation) * linear.by_block(self._raised(self.residuals))
        return ByBlock(sums, self._block_degrees())

    def _raised(self, residuals: np.ndarray) -> np.ndarray:
        """Residuals raised to the size of errors, block by block (Bell and McCaffrey, 2002). A run's own leverage does
        not tell by how much: a setting times a block may be nearly a pair of the model, and then hardly any of what
        that block contributes is left in its residuals; of another setting, all of it is.
        """
        found: np.ndarray = np.zeros(residuals.shape)
        for block in range(self.linear.groups.number):
            here = np.flatnonzero(self.linear.groups.index == block)
            left, basis = np.linalg.eigh(self.linear.hat[np.ix_(here, here)])
            factor = np.where(left > _SEEN, 1 / np.sqrt(np.maximum(left, _SEEN)), 0.0)
            found[here] = (basis * factor) @ (basis.T @ residuals[here])
        return found

    def _block_degrees(self) -> float:
        """With how many degrees of freedom squared errors by block tell a variance: the median over the parameters of
        treatments (Satterthwaite), some of them where there are very many.
        """
        from scipy import sparse

        linear = self.linear
        own = np.flatnonzero(linear.penalty[: linear.size] == 0)[1:]
        own = own[:: max(1, len(own) // _LOOKED_AT)]
        runs = np.arange(linear.n_runs)
        member = sparse.csr_matrix((np.ones(linear.n_runs), (linear.groups.index, runs)))
        influence = linear.design @ linear.solve(np.eye(linear.width)[:, own])
        found = []
        for raised in self._raised(influence).T:
            seen = member @ (linear.design * raised[:, None])
            together = np.diag(member @ raised**2) - seen @ linear.solve(seen.T)
            if size := np.trace(together):
                found.append(size**2 / (together**2).sum())
        return float(np.median(found)) if found else float(linear.groups.number - 1)


@dataclass(frozen=True, slots=True)
class ByBlock:
    """What each block (a row) contributes to the errors of the parameters, and with how many degrees of freedom the
    squares of that tell their variance.
    """

    sums: np.ndarray
    df: float

    @property
    def beyond_chance(self) -> float:
        """The ratio of the squared errors of blocks to those of their runs from which errors are those of blocks."""
        return float(1 + _BEYOND_CHANCE * np.sqrt(2 / self.df))


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
