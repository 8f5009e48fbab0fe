"""Least squares over runs of few configurations in many blocks, without a column for any block.

A run's row is that of its configuration (a *cell*) and its time columns. Block means are removed from the data instead
of being estimated beside the effects (Frisch, Waugh and Lovell): exactly for blocks with a mean of their own, in part
(quasi-demeaning) for random ones. So only a few passes over numbers grow with the runs; matrices have the size of the
cells and of the parameters. Runs may have weights: everything is then as if each run had been multiplied by the root of
its weight.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Literal

import numpy as np

from broadleaf_lab.designs.terms import independent

Blocks = Literal["fixed", "random", "none"]
_CHUNK_BYTES = 1 << 26


class Groups:
    """Which block each run is in."""

    def __init__(self, labels: np.ndarray) -> None:
        self.index: np.ndarray
        self.sizes: np.ndarray
        known, self.index, self.sizes = np.unique(labels, return_inverse=True, return_counts=True)
        self.number: int = len(known)

    def means(self, values: np.ndarray) -> np.ndarray:
        """The mean over each block."""
        found: np.ndarray = np.bincount(self.index, values, self.number) / self.sizes
        return found


class Linear:
    """Rows `cell_rows[cell]` beside `time`, and the least-squares solution for them. `ratio` is the variance between
    blocks over that within, for random blocks; 0 until `with_ratio` sets it.

    Columns that are combinations of earlier ones (the constant, then time, then the treatments in order) are omitted:
    `kept` says which of the treatment columns remain, `kept_time` which of time. Parameters are in that order: kept
    treatment columns, kept time columns.

    A treatment column with a `penalty` is a random effect whose variance is that of a run divided by the penalty: it is
    drawn towards zero, and it is always kept, because the penalty decides what the runs do not.
    """

    def __init__(
        self,
        cell_rows: np.ndarray,
        cell: np.ndarray,
        time: np.ndarray,
        groups: Groups,
        blocks: Blocks,
        penalty: np.ndarray | None = None,
    ) -> None:
        self.cell: np.ndarray = cell
        self.groups: Groups = groups
        self.weight: np.ndarray | None = None
        self._origin: Linear | None = None
        self.ratio: float = 0.0
        self.blocks: Blocks = blocks
        self.n_runs: int = len(cell)
        width = cell_rows.shape[1]
        raw = self._cross_products(cell_rows, time)
        means = self._block_means(cell_rows, time) if blocks != "none" else np.zeros((0, len(raw)))
        gram = self._without_blocks(raw, means)
        order = np.concatenate([[0], np.arange(width, width + time.shape[1]), np.arange(1, width)])
        drawn = np.zeros(len(raw))
        drawn[:width] = 0.0 if penalty is None else penalty
        order = order[drawn[order] == 0]
        used: np.ndarray = drawn > 0
        used[order] = independent(gram[np.ix_(order, order)], np.diag(raw)[order])
        self.penalty: np.ndarray = drawn[used]
        self.kept: np.ndarray = used[:width]
        self.kept_time: np.ndarray = used[width:]
        self.treatment_gram: np.ndarray = raw[:width, :width]
        self._raw, self._means = raw[np.ix_(used, used)], means[:, used]
        self.gram: np.ndarray = gram[np.ix_(used, used)] + np.diag(self.penalty)
        self.rows: np.ndarray = cell_rows if self.kept.all() else cell_rows[:, self.kept]
        self.time: np.ndarray = time[:, self.kept_time]
        self.size: int = self.rows.shape[1]
        self.width: int = self.size + self.time.shape[1]
        # The means of absorbed blocks are parameters too; a random effect is one only as far as the runs determine it.
        self.n_parameters: int = self.width + (groups.number - 1 if blocks == "fixed" else 0)
        if self.penalty.any():
            self.n_parameters -= int(self.penalty @ np.diag(self.solve(np.eye(self.width))))
        self.df: int = self.n_runs - self.n_parameters

    def with_ratio(self, ratio: float) -> Linear:
        """The same columns with another variance between random blocks, in proportion to that of a run of weight 1."""
        made = self._copy()
        made.ratio = ratio
        made.gram = made._without_blocks(self._raw, self._means) + np.diag(self.penalty)
        return made

    def with_weight(self, weight: np.ndarray) -> Linear:
        """The same columns with runs weighted by `weight`, the inverse of their variances in any unit."""
        made = self._copy()
        made.weight, made._origin = weight, self.unweighted
        made._raw = made._cross_products(self.rows, self.time)
        if self.blocks != "none":
            made._means = made._block_means(self.rows, self.time)
        made.gram = made._without_blocks(made._raw, made._means) + np.diag(self.penalty)
        return made

    @property
    def n_fixed(self) -> int:
        """How many parameters are not random effects, without blocks."""
        return self.width - int((self.penalty > 0).sum())

    @property
    def unweighted(self) -> Linear:
        """The same columns with the same weight for all runs."""
        return self if self._origin is None else self._origin

    def _copy(self) -> Linear:
        made = copy.copy(self)
        for name in ("_factor", "design", "leverages", "hat", "masses", "root"):
            made.__dict__.pop(name, None)
        return made

    @functools.cached_property
    def masses(self) -> np.ndarray:
        """The weight of every block: the sum of those of its runs."""
        if self.weight is None:
            alike: np.ndarray = self.groups.sizes.astype(float)
            return alike
        found: np.ndarray = np.bincount(self.groups.index, self.weight, self.groups.number)
        return found

    @functools.cached_property
    def root(self) -> np.ndarray:
        """The root of every run's weight."""
        found: np.ndarray = np.ones(self.n_runs) if self.weight is None else np.sqrt(self.weight)
        return found

    def _weighted(self, values: np.ndarray) -> np.ndarray:
        if self.weight is None:
            return values
        found: np.ndarray = values * (self.weight if values.ndim == 1 else self.weight[:, None])
        return found

    def _mean_by_block(self, values: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.bincount(self.groups.index, self._weighted(values), self.groups.number) / self.masses
        return found

    def _cross_products(self, rows: np.ndarray, time: np.ndarray) -> np.ndarray:
        cells = len(rows)
        count = np.bincount(self.cell, self.weight, cells).astype(float)
        weighed = self._weighted(time)
        side = rows.T @ _binned(self.cell, weighed, cells)
        found: np.ndarray = np.block([[weighted_gram(rows, count), side], [side.T, time.T @ weighed]])
        return found

    def _without_blocks(self, raw: np.ndarray, means: np.ndarray) -> np.ndarray:
        """The cross products of columns after `transform`."""
        if self.blocks == "none":
            return raw
        if self.blocks == "fixed":
            mass = float(self.masses.sum())
            mean = (self.masses @ means) / mass
            gram: np.ndarray = raw - weighted_gram(means, self.masses) + mass * np.outer(mean, mean)
        else:
            gram = raw - weighted_gram(means, self.masses * self._removed_twice)
        return gram

    def _block_means(self, rows: np.ndarray, time: np.ndarray) -> np.ndarray:
        from scipy import sparse

        groups = self.groups
        each = np.ones(self.n_runs) if self.weight is None else self.weight
        counts = sparse.csr_matrix((each, (groups.index, self.cell)), shape=(groups.number, len(rows)))
        sums = np.hstack([counts @ rows, _binned(groups.index, self._weighted(time), groups.number)])
        means: np.ndarray = sums / self.masses[:, None]
        return means

    @property
    def _shrink(self) -> np.ndarray:
        shrink: np.ndarray = 1 - 1 / np.sqrt(1 + self.masses * self.ratio)
        return shrink

    @property
    def _removed_twice(self) -> np.ndarray:
        """The part of a random block's mean that is removed by two transforms."""
        shrink = self._shrink
        share: np.ndarray = 2 * shrink - shrink**2
        return share

    def transform(self, values: np.ndarray) -> np.ndarray:
        """Numbers of the runs without block means, each times the root of its weight. The grand mean stays."""
        moved = values
        if self.blocks == "fixed":
            means = self._mean_by_block(values)
            moved = values - (means - self.masses @ means / self.masses.sum())[self.groups.index]
        elif self.blocks == "random":
            moved = values - (self._shrink * self._mean_by_block(values))[self.groups.index]
        return moved if self.weight is None else moved * self.root

    def values(self, params: np.ndarray) -> np.ndarray:
        """What the parameters predict for every run, without its block."""
        found: np.ndarray = (self.rows @ params[: self.size])[self.cell]
        return found + self.time @ params[self.size :] if self.time.shape[1] else found

    def fitted(self, params: np.ndarray, y: np.ndarray) -> np.ndarray:
        """What parameters and blocks predict for every run; blocks as in `y`."""
        found = self.values(params)
        if self.blocks == "none":
            return found
        rest = self._mean_by_block(y - found)
        if self.blocks == "random":
            rest *= self.masses * self.ratio / (1 + self.masses * self.ratio)
        with_blocks: np.ndarray = found + rest[self.groups.index]
        return with_blocks

    def cross(self, values: np.ndarray) -> np.ndarray:
        """The products of every column with numbers of the runs, both without blocks."""
        moved = values
        if self.blocks == "fixed":
            means = self._mean_by_block(values)
            moved = values - (means - self.masses @ means / self.masses.sum())[self.groups.index]
        elif self.blocks == "random":
            moved = values - (self._removed_twice * self._mean_by_block(values))[self.groups.index]
        moved = self._weighted(moved)
        by_cell = np.bincount(self.cell, moved, len(self.rows))
        answer: np.ndarray = np.concatenate([self.rows.T @ by_cell, self.time.T @ moved])
        return answer

    @functools.cached_property
    def _factor(self) -> np.ndarray:
        from scipy.linalg import cholesky

        factor: np.ndarray = cholesky(self.gram)
        return factor

    @property
    def log_determinant(self) -> float:
        """That of the cross products."""
        return 2 * float(np.log(np.diag(self._factor)).sum())

    def solve(self, right: np.ndarray) -> np.ndarray:
        """The inverse of the cross products times `right`."""
        # `cho_solve` takes several times as long to look at its arguments as this does for a matrix of this size.
        from scipy.linalg.lapack import dpotrs

        found: np.ndarray = dpotrs(self._factor, right)[0]
        return found

    def least_squares(self, y: np.ndarray) -> np.ndarray:
        """The parameters of least squares."""
        return self.solve(self.cross(y))

    def chunks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The rows of the design without block means, a few at a time."""
        step = max(1, _CHUNK_BYTES // (8 * self.width))
        if self.n_runs <= step:
            yield slice(0, self.n_runs), self.design
            return
        for start in range(0, self.n_runs, step):
            here = slice(start, min(start + step, self.n_runs))
            yield here, self._part(here)

    @functools.cached_property
    def design(self) -> np.ndarray:
        """All rows at once, without block means: only if there are few."""
        return self._part(slice(0, self.n_runs))

    def _part(self, here: slice) -> np.ndarray:
        part: np.ndarray = np.hstack([self.rows[self.cell[here]], self.time[here]])
        index = self.groups.index[here]
        if self.blocks == "fixed":
            means = self._means
            part -= (means - (self.masses @ means) / self.masses.sum())[index]
        elif self.blocks == "random":
            part -= (self._shrink[:, None] * self._means)[index]
        if self.weight is not None:
            part *= self.root[here, None]
        return part

    @functools.cached_property
    def leverages(self) -> np.ndarray:
        """How much each run determines its own fitted value."""
        from scipy.linalg import solve_triangular

        factor = np.linalg.cholesky(self.gram)
        found: np.ndarray = np.empty(self.n_runs)
        for here, part in self.chunks():
            found[here] = (solve_triangular(factor, part.T, lower=True, check_finite=False) ** 2).sum(axis=0)
        if self.blocks == "fixed":
            found += self._weighted(1 / self.masses[self.groups.index] - 1 / self.masses.sum())
        answer: np.ndarray = np.minimum(found, 1 - 1e-9)
        return answer

    def sandwich(self, weights: np.ndarray) -> np.ndarray:
        """The covariance of the parameters if each run's error has the variance `weights`."""
        meat = np.zeros((self.width, self.width))
        root = np.sqrt(weights)
        for here, part in self.chunks():
            part = part * root[here, None]
            meat += part.T @ part
        inner = self.solve(meat)
        covariance: np.ndarray = self.solve(inner.T)
        answer: np.ndarray = (covariance + covariance.T) / 2
        return answer

    def by_block(self, errors: np.ndarray) -> np.ndarray:
        """The parameters' errors that each block contributes, one a row, for the errors of the runs."""
        sums = np.zeros((self.groups.number, self.width))
        for here, part in self.chunks():
            sums += _binned(self.groups.index[here], part * errors[here, None], self.groups.number)
        found: np.ndarray = self.solve(sums.T).T
        return found

    @functools.cached_property
    def hat(self) -> np.ndarray:
        """The matrix that turns the runs' numbers, without block means, into residuals; only for few runs."""
        design = self.design
        hat: np.ndarray = np.eye(self.n_runs) - design @ self.solve(design.T)
        if self.blocks == "fixed":
            same = self.groups.index[:, None] == self.groups.index[None, :]
            hat -= (same / self.masses[self.groups.index] - 1 / self.masses.sum()) * np.outer(self.root, self.root)
        return hat


def weighted_gram(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """rows' diag(weights) rows, without a second copy of many rows."""
    step = max(1, _CHUNK_BYTES // (8 * max(1, rows.shape[1])))
    found = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        found += (part * weights[start : start + step, None]).T @ part
    answer: np.ndarray = found
    return answer


def _binned(index: np.ndarray, columns: np.ndarray, size: int) -> np.ndarray:
    found = np.zeros((size, columns.shape[1]))
    for number in range(columns.shape[1]):
        found[:, number] = np.bincount(index, columns[:, number], size)
    answer: np.ndarray = found
    return answer


def block_variance_ratio(linear: Linear, y: np.ndarray) -> float:
    """The variance between blocks over that within, by restricted maximum likelihood."""
    from scipy.optimize import minimize_scalar

    def deviance(log_ratio: float) -> float:
        ratio = float(np.exp(log_ratio))
        made = linear.with_ratio(ratio)
        white = made.transform(y)
        right = made.cross(y)
        rest = float(white @ white - right @ made.solve(right))
        left = made.n_runs - made.n_fixed
        scale = max(rest, 1e-300) / left
        spread = float(np.log1p(linear.masses * ratio).sum())
        height = made.log_determinant
        return float(left * np.log(scale)) + spread + height

    found = minimize_scalar(deviance, bounds=(-9.0, 9.0), method="bounded", options={"xatol": 1e-3})
    ratio = float(np.exp(found.x))
    return ratio if np.isfinite(found.fun) and ratio > 1e-3 else 0.0
