"""What the model leaves unexplained, compared with the differences between replicates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from broadleaf_lab.analysis.model.linear import Groups, Linear

_MAX_CELLS = 400
_POWER = 0.8


@dataclass(frozen=True, slots=True)
class LackOfFit:
    """The F test of what the model leaves unexplained against the differences between replicates. `significant` at 5 %:
    interactions of more than two factors remain. `unseen` is the size on the fit's scale up to which this test would
    miss one interaction of three two-level factors in a fifth of all cases or more.
    """

    f: float
    p: float
    df_model: int
    df_pure: int
    pure_error_sd: float
    unseen: float

    @property
    def significant(self) -> bool:
        return self.p < 0.05


def lack_of_fit(linear: Linear, y: np.ndarray, rest_square: float) -> LackOfFit | None:
    """Whether the model misses something, as far as replicates show; None if nothing repeats. `rest_square` is the
    residual sum of squares of `y`. A cell with one run is fitted exactly and says nothing about pure error; of very
    many that repeat, those with the most runs are used.
    """
    from scipy import stats

    count = np.bincount(linear.cell)
    repeated = np.flatnonzero(count > 1)
    if not len(repeated):
        return None
    repeated = repeated[np.argsort(-count[repeated], kind="stable")][:_MAX_CELLS]
    position = np.full(len(count), -1)
    position[repeated] = np.arange(len(repeated))
    used = np.flatnonzero(position[linear.cell] >= 0)
    pure, df_pure = _pure_error(linear, y[used], position[linear.cell[used]], used)
    df_model = linear.df - df_pure
    # Replicates that agree to the last digit, as without noise, say nothing: rounding is not an error to test against.
    if df_pure < 1 or df_model < 1 or pure <= 1e-20 * float(y @ y):
        return None
    f = max(rest_square - pure, 0.0) / df_model / (pure / df_pure)
    sd = float(np.sqrt(pure / df_pure))
    # Such an interaction of size h moves each run by h/8 either way.
    unseen = 8 * sd * math.sqrt(_shift(df_model, df_pure) / linear.n_runs)
    return LackOfFit(f, float(stats.f.sf(f, df_model, df_pure)), df_model, df_pure, sd, unseen)


def _shift(df_model: int, df_pure: int) -> float:
    """The noncentrality at which the F test at 5 % finds what is missing in four of five cases."""
    from scipy import optimize, stats

    limit = float(stats.f.isf(0.05, df_model, df_pure))
    high = 10.0
    while stats.ncf.sf(limit, df_model, df_pure, high) < _POWER:
        high *= 2
    return float(optimize.brentq(lambda x: stats.ncf.sf(limit, df_model, df_pure, x) - _POWER, 1e-6, high))


def _pure_error(linear: Linear, y: np.ndarray, cell: np.ndarray, used: np.ndarray) -> tuple[float, int]:
    """The residual sum of squares of repeated cells, each with its own mean, beside blocks and time; and its degrees
    of freedom.
    """
    from scipy import sparse

    cells = int(cell.max()) + 1
    numbers = np.column_stack([y, linear.time[used]])
    if linear.blocks == "none":
        sizes = np.bincount(cell, minlength=cells)
        means = np.column_stack([np.bincount(cell, column, cells) for column in numbers.T]) / sizes[:, None]
        within = numbers - means[cell]
        return _left(within, len(y) - cells)
    groups = Groups(linear.groups.index[used])
    share = np.ones(groups.number)
    if linear.blocks == "random":
        # For a random block only a part is removed, as large as the part that the model removes from the whole block.
        whole = linear.groups.sizes[np.unique(linear.groups.index[used])]
        share = groups.sizes * linear.ratio / (1 + whole * linear.ratio)
    table = sparse.csr_matrix((np.ones(len(y)), (groups.index, cell)), shape=(groups.number, cells))
    scaled = sparse.diags(share / groups.sizes) @ table
    normal = np.diag(np.bincount(cell, minlength=cells).astype(float)) - (table.T @ scaled).toarray()
    means = np.column_stack([groups.means(column) for column in numbers.T]) * share[:, None]
    moved = numbers - means[groups.index]
    right = np.column_stack([np.bincount(cell, column, cells) for column in moved.T])
    size, basis = np.linalg.eigh(normal)
    told = size > 1e-8 * max(float(size[-1]), 1.0)
    solution = basis[:, told] @ ((basis[:, told].T @ right) / size[told][:, None])
    rest = numbers - solution[cell]
    if linear.blocks == "fixed":
        within = rest - np.column_stack([groups.means(column) for column in rest.T])[groups.index]
        return _left(within, len(y) - int(told.sum()) - groups.number)
    partly = np.column_stack([groups.means(column) for column in rest.T])
    part = 1 - np.sqrt(1 - share)
    return _left(rest - partly[groups.index] * part[groups.index, None], len(y) - int(told.sum()))


def _left(within: np.ndarray, df: int) -> tuple[float, int]:
    y, time = within[:, 0], within[:, 1:]
    if time.shape[1]:
        solution, _, rank, _ = np.linalg.lstsq(time, y, rcond=1e-9)
        y, df = y - time @ solution, df - int(rank)
    return float(y @ y), df
