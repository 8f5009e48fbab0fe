"""Choosing pairs where there are too few runs for all of them, with all runs used for both choice and sizes.

The pairs that are certainly real are parameters like main effects. All others are random effects around zero, whose
common variance the runs determine (a mixed model; in genetics, tests of single markers before a polygenic background).
So what they may do counts as an error in every answer: on average, where the design confounds them with an effect, and
in a single configuration, where they are part of the truth.

Every pair is tested as a parameter before the background of all others, by a t test that allows for unequal noise. The
strongest is chosen as long as the false discovery rate over *all* pairs stays at 5 %, and one that no longer reaches it
returns to the background. The interval of a pair that was not chosen is that of this test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broadleaf_lab.analysis.model import robust
from broadleaf_lab.analysis.model.background import penalty_of
from broadleaf_lab.analysis.model.coding import Coding
from broadleaf_lab.analysis.model.contrasts import Contrasts, Interval, Pair, intervals
from broadleaf_lab.analysis.model.linear import Linear
from broadleaf_lab.analysis.model.sample import Sample
from broadleaf_lab.analysis.multiplicity import pair_rates

_Q = 0.05
_ENOUGH = 2
"""With as many runs per parameter, all pairs are parameters."""
_EXACT_RUNS = 400
_MIN_LEFT = 8
_UNTOLD = 1e-6
_MIN_LIKELY = 0.005


class Freed:
    """A model in which some random effects are parameters instead; `told` is false if the runs cannot show them."""

    def __init__(self, known: Contrasts, columns: Sequence[int]) -> None:
        linear = known.linear
        self._own = own = list(columns)
        self._known = known
        self._moves = linear.solve(np.eye(linear.width)[:, own])
        penalty = linear.penalty[own]
        # What the runs say about the columns, as a part of what they and the penalty say together.
        said = np.eye(len(own)) - np.sqrt(penalty)[:, None] * self._moves[own] * np.sqrt(penalty)
        self.told: bool = bool(np.linalg.eigvalsh(said)[0] > _UNTOLD)
        if not self.told:
            return
        self._rest = linear.penalty.copy()
        self._rest[own] = 0.0
        self._scaled = np.linalg.inv(np.diag(1 / penalty) - self._moves[own])
        self._seen = linear.design @ self._moves
        pull = self._scaled @ known.params[own]
        # Bounded residuals contain less of an effect than the residuals themselves: one step of Newton's method divides
        # by their mean slope.
        self.params: np.ndarray = known.params + self._moves @ pull / known.slope
        self._residuals = known.residuals - self._seen @ pull
        added = ((self._seen @ self._scaled) * self._seen).sum(axis=1)
        self._leverages = np.minimum(linear.leverages + added, 1 - 1e-9)
        self._df = max(linear.df - len(own), 1)
        self._variances = known.variances(self._leverages, self._residuals, self._df)

    def intervals(self, rows: np.ndarray) -> list[Interval]:
        """Intervals of combinations of the parameters."""
        known, linear = self._known, self._known.linear
        solved = linear.solve(rows.T)
        solved += self._moves @ (self._scaled @ (self._moves.T @ rows.T))
        influence = linear.design @ solved
        df = self._df
        sigma_square = known.inflation * float(self._residuals @ self._residuals) / df
        drawn = sigma_square * (self._rest @ solved**2)
        square = known.inflation * (influence**2 * self._variances[:, None]).sum(axis=0) + drawn
        equal = sigma_square * (influence**2).sum(axis=0) + drawn
        # A pair leaves no doubt about what it is tested for.
        others = known.strays[:, ~np.any(known.strays[self._own] != 0, axis=0)]
        doubt = ((solved.T @ (self._rest[:, None] * others)) ** 2).sum(axis=1)
        return intervals(rows @ self.params, square + doubt, self._degrees(influence), equal + doubt, df, known.alpha)

    def _degrees(self, influence: np.ndarray) -> np.ndarray:
        linear, df = self._known.linear, self._df
        if linear.n_runs > _EXACT_RUNS:
            answer: np.ndarray = np.full(influence.shape[1], float(df))
            return answer
        weight = influence**2 / (1 - self._leverages)[:, None]
        hat = linear.hat - self._seen @ self._scaled @ self._seen.T
        below = np.einsum("ij,ij->j", weight, hat**2 @ weight)
        degrees: np.ndarray = np.clip((influence**2).sum(axis=0) ** 2 / np.maximum(below, 1e-300), 1.0, df)
        return degrees


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pairs that are parameters of the model, how many more runs would suffice for all `candidates`, the penalty of
    every column of the full coding, and what pairs that were nearly chosen may be (`Contrasts.strays`).
    """

    pairs: tuple[Pair, ...]
    candidates: int
    more_runs: int
    penalty: np.ndarray
    strays: np.ndarray

    @property
    def sentence(self) -> str:
        """What was done, for the reader."""
        return (
            f"Too few runs to fit all {self.candidates} pairs at once ({self.more_runs} more would do): "
            f"{len(self.pairs)} are certainly real; each of the others was tested beside these, and what they may do "
            "is part of all intervals."
        )


def suffices(full: Coding, sample: Sample) -> bool:
    """Whether the runs can show all parameters and leave enough to estimate their errors: with fewer than two runs per
    parameter, only if a quarter of their number remains and all columns are nearly orthogonal, as in a fraction made
    for all pairs.
    """
    p, n_runs = len(full.column_names), sample.told
    if n_runs >= _ENOUGH * p:
        return True
    if n_runs < 1.25 * p + 5:
        return False
    linear = sample.linear(full, "fixed" if sample.paired else "none")
    if not linear.kept.all():
        return False
    # The variance inflation of every column compared with a design in which none overlap.
    inverse = np.diag(linear.solve(np.eye(linear.width)))[1 : linear.size]
    square = np.diag(linear.gram)[1 : linear.size]
    return bool((inverse * square).max() < _MAX_INFLATED)


_MAX_INFLATED = 2.5


def pair_columns(full: Coding) -> dict[Pair, tuple[int, ...]]:
    """The columns of every pair."""
    return {(t.factors[0], t.factors[1]): t.columns for t in full.terms if len(t.factors) == 2 and t.columns}


def choose_pairs(full: Coding, sample: Sample, blocks: str, use_robust: bool) -> Chosen:
    """The pairs that are parameters of the model, among all of `full`."""
    columns = pair_columns(full)
    chosen: list[Pair] = []
    seen: set[frozenset[Pair]] = set()
    while True:
        penalty, known = _fitted(full, sample, columns, chosen, blocks, use_robust)
        p = _p_values(known, columns, chosen)
        listed = [(pair, min(1.0, value * len(values))) for pair, values in p.items() for value in values]
        rate: dict[Pair, float] = {}
        for (pair, _), q in zip(listed, pair_rates([value for _, value in listed]), strict=True):
            if q == q:
                rate[pair] = min(rate.get(pair, 1.0), q)
        weak = [pair for pair in chosen if rate.get(pair, 1.0) > _Q]
        untried = _untried(p, chosen)
        if weak:
            following = [pair for pair in chosen if pair != max(weak, key=lambda pair: rate.get(pair, 1.0))]
        else:
            best = min((min(values), pair) for pair, values in untried.items()) if untried else None
            room = known.linear.df - (len(columns[best[1]]) if best else 0)
            if best is None or rate[best[1]] > _Q or room < max(_MIN_LEFT, sample.told // 5):
                break
            following = [*chosen, best[1]]
        if frozenset(following) in seen:
            # Two pairs that can replace each other: the larger model has both, or the stronger one.
            break
        seen.add(frozenset(following))
        chosen = following
    more_runs = max(1, _ENOUGH * len(full.column_names) - sample.told)
    return Chosen(tuple(chosen), len(columns), more_runs, penalty, _strays(known, columns, chosen, sample.told))


def _strays(
    known: Contrasts, columns: Mapping[Pair, Sequence[int]], chosen: Sequence[Pair], n_runs: int
) -> np.ndarray:  # fmt: skip
    """What pairs that were nearly chosen may be beyond the size of the background, a column for each: the root of its
    square that is expected from its estimate, if it is real, times the root of the probability of that.

    One more real pair is expected than was chosen, and real pairs are as large as those; without any, as large as one
    run tells (the unit-information prior of Kass and Wasserman, 1995).
    """
    position = np.cumsum(known.linear.kept) - 1
    eye = np.eye(known.linear.width)
    inside = position[[column for pair in chosen for column in columns[pair]]]
    size = float(np.mean(known.params[inside] ** 2)) if len(inside) else 0.0
    found = []
    for pair, own in columns.items():
        at = position[list(own)]
        if pair in chosen or not (freed := Freed(known, at.tolist())).told:
            continue
        told = freed.intervals(eye[at])
        estimates, squares = np.array([it.estimate for it in told]), np.array([it.se**2 for it in told])
        prior = size or n_runs * squares
        part = prior / (prior + squares)
        # Of several levels the one that stands out most decides, as when pairs are chosen.
        evidence = float((estimates**2 / squares * part + np.log1p(-part)).max()) / 2 - math.log(len(at))
        odds = (1 + len(chosen)) / len(columns) * math.exp(min(evidence, 50.0))
        likely = odds / (1 + odds)
        if likely > _MIN_LIKELY:
            found.append(eye[:, at] @ np.sqrt(likely * ((part * estimates) ** 2 + part * squares)))
    return np.column_stack(found) if found else np.zeros((known.linear.width, 0))


def _untried(p: Mapping[Pair, Sequence[float]], chosen: Sequence[Pair]) -> dict[Pair, list[float]]:
    told = {pair: [v for v in values if v == v] for pair, values in p.items() if pair not in chosen}
    return {pair: values for pair, values in told.items() if values}


def _fitted(
    full: Coding, sample: Sample, columns: Mapping[Pair, Sequence[int]], chosen: Sequence[Pair], blocks: str,
    use_robust: bool,
) -> tuple[np.ndarray, Contrasts]:  # fmt: skip
    outside = [column for pair, own in columns.items() if pair not in chosen for column in own]
    kind = sample.choose_blocks(blocks, len(full.column_names) - len(outside))
    penalty = np.zeros(len(full.column_names))
    penalty[outside] = 1.0

    def under(linear: Linear, y: np.ndarray) -> robust.Estimate:
        penalty[outside] = penalty_of(linear, y)
        made = sample.linear(full, kind, penalty)
        return robust.estimate(made, sample.y, sample.level(made), use_robust)

    first = under(sample.linear(full, kind, penalty), sample.y)
    # Runs far from the model say nothing about the size of pairs.
    estimate = under(first.linear, first.pseudo)
    return penalty, Contrasts(estimate)


def _p_values(
    known: Contrasts, columns: Mapping[Pair, Sequence[int]], chosen: Sequence[Pair]
) -> dict[Pair, list[float]]:
    found: dict[Pair, list[float]] = {}
    linear = known.linear
    kept_index = np.cumsum(linear.kept) - 1
    eye = np.eye(linear.width)
    for pair, own in columns.items():
        at = [int(kept_index[c]) for c in own if linear.kept[c]]
        if pair in chosen:
            found[pair] = [it.p for it in known.intervals(eye[at])]
            continue
        freed = Freed(known, at)
        if freed.told:
            found[pair] = [it.p for it in freed.intervals(eye[at])]
    return found
