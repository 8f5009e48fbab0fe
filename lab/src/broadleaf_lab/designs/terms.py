"""The model by which a design is judged: an intercept, main effects level by level, and all pairs of levels.

Columns are scaled so that a design with all combinations equally often gives the identity: two levels -1 and 1, more
levels orthonormal contrasts, numbers of more than six levels orthogonal polynomials of up to degree 4 on their scale.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broadleaf_lab.spec.factors import Config, Factor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAX_STEPS = 6
_DEGREES = 4
"""As many as the spline that the analysis fits to a number of more levels has columns."""


class Terms:
    """The columns of a model over some factors. `names` has one name per column; several columns may share one."""

    def __init__(self, factors: Sequence[Factor], pairs: bool = True) -> None:
        import numpy as np

        self.factors: tuple[Factor, ...] = tuple(factors)
        self._codes = {f.name: _coding(f) for f in factors}
        self._index = {f.name: {level: i for i, level in enumerate(f.levels)} for f in factors}
        self.names: list[str] = ["1"]
        self._columns: list[tuple[tuple[str, int], ...]] = [()]
        for f in factors:
            for column in range(self._codes[f.name].shape[1]):
                self.names.append(f.name)
                self._columns.append(((f.name, column),))
        if pairs:
            for one, other in itertools.combinations(factors, 2):
                for i, j in itertools.product(self._pair_columns(one), self._pair_columns(other)):
                    self.names.append(f"{one.name}:{other.name}")
                    self._columns.append(((one.name, i), (other.name, j)))
        self._numpy = np

    def _pair_columns(self, factor: Factor) -> range:
        return range(self._codes[factor.name].shape[1])

    def __len__(self) -> int:
        return len(self.names)

    def matrix(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        """One row for each configuration."""
        np = self._numpy
        coded = {
            f.name: self._codes[f.name][[self._index[f.name][config[f.name]] for config in configs]]
            for f in self.factors
        }
        columns = []
        for parts in self._columns:
            column = np.ones(len(configs))
            for name, index in parts:
                column = column * coded[name][:, index]
            columns.append(column)
        return np.column_stack(columns)


def _coding(factor: Factor) -> NDArray[np.float64]:
    """The code of every level: one row each."""
    import numpy as np

    n = len(factor.levels)
    if n == 2:
        return np.array([[1.0] if level != factor.default else [-1.0] for level in factor.levels])
    if factor.is_numeric and n > _MAX_STEPS:
        x = np.array([factor.position(level) for level in factor.levels])
        powers = np.vander((x - x.mean()) / np.ptp(x), _DEGREES + 1, increasing=True)
    else:
        # Deviations from the mean of all levels, made orthonormal: a design does not depend on which contrasts these
        # are.
        powers = np.column_stack([np.ones(n), np.eye(n)[:, 1:]])
    q, r = np.linalg.qr(powers)
    signs = np.sign(np.diag(r))
    return np.asarray((q * signs)[:, 1:] * np.sqrt(n))


_DEPENDENT = 1e-10
"""A column is a combination of earlier ones if no more than this part of its square is left."""


def independent(gram: NDArray[np.float64], raw: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which columns are not combinations of earlier ones, from their cross products; `raw` are their squares before
    anything was removed.
    """
    import numpy as np

    size = len(gram)
    keep: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
    scale = np.sqrt(np.where(raw > 0, raw, 1.0))
    rest = gram / np.outer(scale, scale)
    factor = np.zeros((size, size))
    used = 0
    for column in range(size):
        own = factor[column, :used]
        left = rest[column, column] - own @ own
        if left <= _DEPENDENT:
            continue
        factor[column:, used] = (rest[column:, column] - factor[column:, :used] @ own) / np.sqrt(left)
        keep[column] = True
        used += 1
    return keep


def efficiency(matrix: NDArray[np.float64]) -> tuple[float, float]:
    """D-efficiency in per cent relative to an orthogonal design with columns of the same length, and the largest
    variance inflation factor.
    """
    import numpy as np

    n, p = matrix.shape
    sign, log_det = np.linalg.slogdet(matrix.T @ matrix / n)
    if sign <= 0:
        return 0.0, float("inf")
    log_det -= float(np.log((matrix**2).mean(axis=0)).sum())
    centred = matrix[:, 1:] - matrix[:, 1:].mean(axis=0)
    spread = np.sqrt((centred**2).mean(axis=0))
    if p == 1 or float(spread.min()) < 1e-12:
        return 100.0 * float(np.exp(log_det / p)), 1.0 if p == 1 else float("inf")
    correlation = (centred / spread).T @ (centred / spread) / n
    return 100.0 * float(np.exp(log_det / p)), float(np.diag(np.linalg.pinv(correlation)).max())
