"""Where the runs are that are far from a model, and so count for nothing in a robust fit.

Single disturbed runs are anywhere. Where they gather at a level, that setting makes some runs slow, which the effect on
the other runs does not show. Where they gather in a quadrant, where two levels meet, the model lacks a pair.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from broadleaf_lab.spec.factors import Level, column_value

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.fit import Fit

_COUNTS = 0.1
"""A run whose weight is lower is far from the model."""
_DOUBTED = 0.9
"""One that a robust fit would rather have without."""
_ALPHA, _MISFIT = 0.05, 0.001
_POSSIBLE = 0.2


@dataclass(frozen=True, slots=True)
class Quadrant:
    """Two levels where the runs gather that are far from a model without their pair."""

    levels: tuple[tuple[str, Level], ...]
    far: int
    runs: int

    @property
    def sentence(self) -> str:
        """The finding in words."""
        a, b = (f"{name}={column_value(level)}" for name, level in self.levels)
        return (
            f"{self.far} of the {self.runs} runs with {a} and {b} are far from a model without that pair: it is the "
            "model that is wrong there, so all runs count."
        )


@dataclass(frozen=True, slots=True)
class Tail:
    """The slow runs of a level, far above what the model says of their configuration, and those of its default. `times`
    is their median over the model's, `p` Fisher's that the level has no more of them, for this level alone;
    `p_of_all` is times the number of levels.
    """

    far: int
    runs: int
    default_far: int
    default_runs: int
    times: float
    p: float
    p_of_all: float

    @property
    def proven(self) -> bool:
        """Whether the level makes some runs slow."""
        return self.p_of_all <= _ALPHA

    @property
    def possible(self) -> bool:
        """Whether slow runs are too unequally many to claim that the level makes no difference."""
        return self.p <= _POSSIBLE

    @property
    def text(self) -> str:
        """Such as `12 of 80 runs with it took about 2.0 times as long as the model says, 1 of 80 without it`."""
        took = f"took about {self.times:.1f} times as long as the model says"
        without = f"{self.default_far or 'none'} of {self.default_runs} without it"
        return f"{self.far} of {self.runs} runs with it {took}, {without}"


def tails(fit: Fit) -> dict[tuple[str, Level], Tail]:
    """The slow runs of every level that was run besides the default; none if no run is far above the model."""
    from scipy import stats

    rest = -fit.residuals if fit.scale == "rate" else fit.residuals
    slow = (fit.weights < _COUNTS) & (rest > 0)
    if not slow.any():
        return {}
    us = fit.frame["y_us"].to_numpy(dtype=float)
    times = us / fit.fitted_us
    cells = fit.sample.cells
    tested = []
    for position, factor in enumerate(fit.factors):
        codes = cells.codes[cells.index, position]
        at = {level: codes == code for code, level in enumerate(cells.levels[position])}
        if (default := at.get(factor.default)) is None:
            continue
        for level, here in at.items():
            if level != factor.default:
                far, runs, other, others = (
                    int(n) for n in (slow[here].sum(), here.sum(), slow[default].sum(), default.sum())
                )
                p = float(stats.hypergeom.sf(far - 1, runs + others, far + other, runs))
                typical = float(np.median(times[here & slow])) if far else 1.0
                tested.append(((factor.name, level), Tail(far, runs, other, others, typical, p, p)))
    return {key: replace(tail, p_of_all=min(1.0, tail.p * len(tested))) for key, tail in tested}


def quadrant(fit: Fit) -> Quadrant | None:
    """The two levels, of factors whose pair is not in the model, at which the runs far from it gather, if any do."""
    from scipy import stats

    far = fit.weights < _DOUBTED
    if far.sum() < 3:
        return None
    cells = fit.sample.cells
    codes = cells.codes[cells.index]
    names = cells.names
    found: list[tuple[float, Quadrant]] = []
    for a, b in itertools.combinations(range(len(names)), 2):
        if fit.coding.term_of(names[a], names[b]) is not None:
            continue
        for i, j in itertools.product(range(len(cells.levels[a])), range(len(cells.levels[b]))):
            here = (codes[:, a] == i) & (codes[:, b] == j)
            # Where they are far on both sides, it is the noise that differs.
            side = max(int((far & here & up).sum()) for up in (fit.residuals > 0, fit.residuals < 0))
            p = float(stats.hypergeom.sf(side - 1, len(far), int(far.sum()), int(here.sum())))
            levels = ((names[a], cells.levels[a][i]), (names[b], cells.levels[b][j]))
            found.append((p, Quadrant(levels, side, int(here.sum()))))
    p, where = min(found, key=lambda entry: entry[0], default=(1.0, None))
    return where if p * len(found) <= _MISFIT else None
