"""Which runs would show the most about what is not decided yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from broadleaf_lab.designs.terms import Terms
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Config, Factor, Level

_CANDIDATES = 400
_PRIOR_RUNS = 0.5
"""Before any run every term counts as measured by half a run, so that the first runs can be chosen like all others."""
_ANY = 0.02


class NextRuns:
    """Chooses runs one by one: each lowers the variances of the open terms by as much as it can (A-optimality)."""

    def __init__(self, factors: Sequence[Factor], rules: Constraints, rng: np.random.Generator) -> None:
        self.terms: Terms = Terms(factors)
        self.rules: Constraints = rules
        self._rng = rng

    def choose(self, made: Sequence[Config], n: int, weights: Mapping[str, float]) -> list[dict[str, Level]]:
        """`n` runs in addition to those made. `weights` say how valuable it is to know a term, by the name of a factor
        or `A:B`; every other term counts a little, because otherwise it could never surprise.
        """
        candidates = self.rules.sample(self._rng, _CANDIDATES)
        best = self._best(self._rows(made), self.terms.matrix(candidates), n, weights)
        return [dict(candidates[i]) for i in best]

    def choose_pairs(
        self, made: Sequence[tuple[Config, Config]], n: int, weights: Mapping[str, float]
    ) -> list[tuple[dict[str, Level], dict[str, Level]]]:
        """`n` pairs of runs in addition to those made. Both runs of a pair share what disturbs them, so that only their
        difference shows anything.
        """
        candidates = self.rules.sample(self._rng, _CANDIDATES)
        rows = self.terms.matrix(candidates)
        first, second = (self._rng.permutation(len(candidates)) for _ in range(2))
        known = self._difference(self._rows([a for a, _ in made]), self._rows([b for _, b in made]))
        best = self._best(known, self._difference(rows[first], rows[second]), n, weights)
        return [(dict(candidates[first[i]]), dict(candidates[second[i]])) for i in best]

    @staticmethod
    def _difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """What a pair shows, in runs that vary as much as one."""
        shown: np.ndarray = (first - second) / math.sqrt(2)
        return shown

    def _rows(self, configs: Sequence[Config]) -> np.ndarray:
        rows: np.ndarray = self.terms.matrix(configs) if configs else np.zeros((0, len(self.terms)))
        return rows

    def _best(self, known: np.ndarray, rows: np.ndarray, n: int, weights: Mapping[str, float]) -> list[int]:
        """The `n` rows that lower the weighted variances most, in addition to those known."""
        weight = np.array([weights.get(name, _ANY) for name in self.terms.names])
        inverse = np.linalg.inv(_PRIOR_RUNS * np.eye(len(self.terms)) + known.T @ known)
        chosen: list[int] = []
        for _ in range(n):
            moved = rows @ inverse
            gain = (moved**2 @ weight) / (1 + (moved * rows).sum(axis=1))
            best = int(np.argmax(gain))
            chosen.append(best)
            inverse = inverse - np.outer(moved[best], moved[best]) / (1 + float(moved[best] @ rows[best]))
        return chosen
