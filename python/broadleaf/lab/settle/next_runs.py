"""Which runs would show the most about what is not decided yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from broadleaf.lab.designs.terms import Terms
from broadleaf.lab.spec.constraints import Constraints
from broadleaf.lab.spec.factors import Config, Factor, Level

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
        weight = np.array([weights.get(name, _ANY) for name in self.terms.names])
        inverse = self._inverse(made)
        candidates = self.rules.sample(self._rng, _CANDIDATES)
        rows = self.terms.matrix(candidates)
        chosen: list[dict[str, Level]] = []
        for _ in range(n):
            moved = rows @ inverse
            gain = (moved**2 @ weight) / (1 + (moved * rows).sum(axis=1))
            best = int(np.argmax(gain))
            chosen.append(dict(candidates[best]))
            inverse = inverse - np.outer(moved[best], moved[best]) / (1 + float(moved[best] @ rows[best]))
        return chosen

    def _inverse(self, made: Sequence[Config]) -> np.ndarray:
        information = _PRIOR_RUNS * np.eye(len(self.terms))
        if made:
            rows = self.terms.matrix(made)
            information += rows.T @ rows
        found: np.ndarray = np.linalg.inv(information)
        return found
