"""How sure a verdict has to be that may be given at any of several looks."""

from __future__ import annotations

import math

ALPHA = 0.05
_GROWTH = 1.25


def spent(share: float, alpha: float = ALPHA) -> float:
    """What part of all errors that are allowed may have been made after this share of the runs: Lan and DeMets'
    function of Pocock's kind, which leaves enough for early looks."""
    return alpha * math.log(1 + (math.e - 1) * min(max(share, 0.0), 1.0))


class Looks:
    """The looks at the runs of a study that makes `most_runs` at most. Each takes what has come up since the last; so
    all of them together err no more often than one of `ALPHA`, however the looks depend on each other (Bonferroni)."""

    def __init__(self, most_runs: int, first: int) -> None:
        self.most_runs = most_runs
        self._next, self._spent = first, 0.0

    def due(self, runs: int) -> bool:
        """Whether to look now. Runs grow by a quarter from look to look: more looks would each be able to say less."""
        return runs >= min(self._next, self.most_runs)

    def take(self, runs: int) -> float:
        """The share of errors that this look may make."""
        whole = spent(runs / self.most_runs)
        alpha, self._spent = whole - self._spent, whole
        self._next = math.ceil(max(runs * _GROWTH, runs + 1))
        return max(alpha, 1e-9)

    @property
    def last(self) -> float:
        """About what is left for a look after all runs, if two more come before it."""
        return max((ALPHA - self._spent) / 3, 1e-9)
