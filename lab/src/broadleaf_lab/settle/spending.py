"""How certain a verdict has to be that may be given at any of several checks."""

from __future__ import annotations

import math

ALPHA = 0.05
_GROWTH = 1.25


def spent(share: float) -> float:
    """How much of the error probability `ALPHA` may be spent after this share of the runs: Lan and DeMets' function of
    Pocock's kind, which leaves enough for early checks.
    """
    return ALPHA * math.log(1 + (math.e - 1) * min(max(share, 0.0), 1.0))


class Looks:
    """The checks of a study that makes at most `max_runs` runs. Each uses what has become available since the last; so
    together they err no more often than one at `ALPHA`, however the checks depend on each other (Bonferroni).
    """

    def __init__(self, max_runs: int, first: int) -> None:
        self.max_runs = max_runs
        self._next, self._spent = first, 0.0

    def due(self, runs: int) -> bool:
        """Whether to check now. The number of runs grows by a quarter from check to check: with more checks, each could
        say less.
        """
        return runs >= min(self._next, self.max_runs)

    def take(self, runs: int) -> float:
        """The error probability of this check."""
        whole = spent(runs / self.max_runs)
        alpha, self._spent = whole - self._spent, whole
        self._next = math.ceil(max(runs * _GROWTH, runs + 1))
        return max(alpha, 1e-9)

    @property
    def last(self) -> float:
        """Roughly what is left for a check after all runs, if two more come before it."""
        return max((ALPHA - self._spent) / 3, 1e-9)
