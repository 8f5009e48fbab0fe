"""A model of main effects and pairs, fitted to the runs made so far: where to search next.

It only guides the search. It is selected and fitted on the same noisy runs, so none of its numbers is reported as an
effect; reported numbers come from fresh runs.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence

import numpy as np

from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Config, Factor, Level
from broadleaf_lab.tune.meter import Trial

_STARTS = 24


class PairModel:
    """Log time as a sum of a term for each level and one for each pair of levels, sparse by cross-validation."""

    def __init__(self, factors: Sequence[Factor], trials: Sequence[Trial]) -> None:
        from sklearn.linear_model import LassoCV

        self.factors: tuple[Factor, ...] = tuple(factors)
        self._codes = [_code(factor) for factor in self.factors]
        self._columns: list[tuple[int, ...]] = []
        configs = [trial.config for trial in trials]
        y = np.array([trial.log for trial in trials])
        x, self._terms = self._matrix(configs)
        self._mean, self._spread = x.mean(axis=0), x.std(axis=0)
        self._spread[self._spread < 1e-9] = np.inf
        scaled = (x - self._mean) / self._spread
        folds = min(5, len(trials))
        with warnings.catch_warnings():
            # A lack of convergence at the smallest penalties does not matter here: cross-validation does not choose
            # those.
            warnings.simplefilter("ignore")
            lasso = LassoCV(cv=folds, alphas=40, max_iter=3000, selection="cyclic").fit(scaled, y)
        kept = np.flatnonzero(lasso.coef_)
        self._coefficients = np.zeros(x.shape[1])
        self._constant = float(y.mean())
        if 0 < len(kept) < len(y) * 0.7:
            # The penalty that selects also shrinks: the selected terms are fitted again with a slight one.
            chosen = scaled[:, kept]
            gram = chosen.T @ chosen + 0.5 * np.eye(len(kept))
            self._coefficients[kept] = np.linalg.solve(gram, chosen.T @ (y - self._constant))
        else:
            self._coefficients[:] = lasso.coef_
        degrees = max(1, len(y) - 1 - len(kept))
        self.residual_sd: float = float(np.sqrt(np.sum((y - self._predict(x)) ** 2) / degrees))
        self._tabulate()

    def predict(self, configs: Sequence[Config]) -> np.ndarray:
        """Log time of each configuration."""
        return self._predict(self._matrix(configs)[0])

    def _predict(self, x: np.ndarray) -> np.ndarray:
        result: np.ndarray = self._constant + ((x - self._mean) / self._spread) @ self._coefficients
        return result

    def _matrix(self, configs: Sequence[Config]) -> tuple[np.ndarray, list[tuple[tuple[int, int], ...]]]:
        """Columns, and the (factor, part of its code) that each is the product of."""
        blocks = [
            np.array([code[factor.levels.index(config[factor.name])] for config in configs])
            for factor, code in zip(self.factors, self._codes, strict=True)
        ]
        columns: list[np.ndarray] = []
        terms: list[tuple[tuple[int, int], ...]] = []
        for i, block in enumerate(blocks):
            for a in range(block.shape[1]):
                columns.append(block[:, a])
                terms.append(((i, a),))
        for (i, one), (j, other) in itertools.combinations(enumerate(blocks), 2):
            # A curve's second part is omitted from pairs: it would add too many columns for a search to learn.
            for a in range(_pairing_width(self.factors[i], one)):
                for b in range(_pairing_width(self.factors[j], other)):
                    columns.append(one[:, a] * other[:, b])
                    terms.append(((i, a), (j, b)))
        return np.column_stack(columns), terms

    def _tabulate(self) -> None:
        """The model as a cost for each level and each pair of levels, up to a constant."""
        weights = self._coefficients / self._spread
        self._single = [np.zeros(len(factor.levels)) for factor in self.factors]
        self._pair: dict[tuple[int, int], np.ndarray] = {}
        for weight, term in zip(weights, self._terms, strict=True):
            if weight == 0:
                continue
            i, a = term[0]
            if len(term) == 1:
                self._single[i] += weight * self._codes[i][:, a]
                continue
            j, b = term[1]
            table = self._pair.setdefault((i, j), np.zeros((len(self._codes[i]), len(self._codes[j]))))
            table += weight * np.outer(self._codes[i][:, a], self._codes[j][:, b])

    def cost(self, config: Config) -> float:
        """What `argmin` minimises: the log time up to a constant."""
        at = [factor.levels.index(config[factor.name]) for factor in self.factors]
        single = sum(float(table[at[i]]) for i, table in enumerate(self._single))
        return single + sum(float(table[at[i], at[j]]) for (i, j), table in self._pair.items())

    def argmin(
        self, constraints: Constraints, rng: np.random.Generator, excluded: Sequence[Config] = ()
    ) -> dict[str, Level]:
        """The possible configuration with the smallest predicted time, except for `excluded` ones: the best end of
        descents by one level at a time.
        """
        taken = [dict(config) for config in excluded]
        ends: list[dict[str, Level]] = []
        for config in constraints.sample(rng, _STARTS):
            here, cost = dict(config), self.cost(config)
            while True:
                near = [c for c in changes_of_one(here, self.factors, constraints) if c not in taken]
                best = min(near, key=self.cost, default=None)
                if best is None or self.cost(best) >= cost - 1e-12:
                    break
                here, cost = best, self.cost(best)
            if here not in taken:
                ends.append(here)
        return min(ends, key=self.cost) if ends else constraints.sample(rng, 1)[0]


def changes_of_one(config: Config, factors: Sequence[Factor], constraints: Constraints) -> list[dict[str, Level]]:
    """The possible configurations one change away; a factor that exists only because of what was changed is reset with
    it.
    """
    found: list[dict[str, Level]] = []
    for factor in factors:
        for level in factor.levels:
            if level != config[factor.name]:
                changed = constraints.settle({**config, factor.name: level})
                if changed[factor.name] == level and constraints.allows(changed):
                    found.append(changed)
    return found


def _code(factor: Factor) -> np.ndarray:
    """A row of numbers for each level."""
    code: np.ndarray
    if factor.is_numeric:
        at = np.array([factor.position(level) for level in factor.levels], dtype=float)
        middle, half = (at.max() + at.min()) / 2, (at.max() - at.min()) / 2
        line = (at - middle) / half
        code = np.stack([line, line**2] if len(at) > 2 else [line], axis=1)
    elif len(factor.levels) == 2:
        code = np.array([[-0.5], [0.5]])
    else:
        code = np.eye(len(factor.levels)) - 1 / len(factor.levels)
    return code


def _pairing_width(factor: Factor, block: np.ndarray) -> int:
    return 1 if factor.is_numeric else block.shape[1]
