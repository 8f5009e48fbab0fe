"""Choosing pairs where there are too few runs for all of them, with all runs used for both choice and sizes.

Every pair is tested beside the main effects and the pairs chosen so far, by a t test that allows for unequal noise; the
strongest is added as long as the false discovery rate over *all* pairs stays at 5 %, and one that no longer reaches it
is removed. The interval of a pair that was not chosen comes from the model with that pair added. So all pairs have an
interval, chosen or not, and no run is set aside.

A pair that just fails to be chosen counts as zero in the model, and what it does is attributed to columns that overlap
with its own. So every interval is widened by what each pair outside may contribute, times the probability that it is
real. Without this, 93 % of the intervals of average effects contained the truth with 12 factors and 80 runs
(studies/coverage).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broadleaf_lab.analysis.model import covariate, robust
from broadleaf_lab.analysis.model.coding import Coding
from broadleaf_lab.analysis.model.contrasts import Contrasts, Doubt, Interval, Pair, intervals
from broadleaf_lab.analysis.model.linear import independent
from broadleaf_lab.analysis.model.sample import Sample
from broadleaf_lab.analysis.multiplicity import pair_rates

_Q = 0.05
_EXACT_RUNS = 400
_MIN_LEFT = 8
_MIN_ODDS = 0.005


class Beside:
    """A fitted model with the columns of one additional pair; `told` is false if the runs cannot show them."""

    def __init__(self, known: Contrasts, columns: np.ndarray) -> None:
        linear = known.linear
        moved = np.column_stack([linear.transform(column) for column in columns.T])
        self._share = linear.solve(np.column_stack([linear.cross(column) for column in columns.T]))
        rest = moved - np.column_stack([linear.transform(linear.values(part)) for part in self._share.T])
        gram = rest.T @ rest
        self.told: bool = bool(independent(gram, (moved**2).sum(axis=0), 1e-6).all())
        self._known = known
        if not self.told:
            return
        self._inverse = np.linalg.inv(gram)
        self._rest = rest
        scaled = rest @ self._inverse
        # Bounded residuals contain less of the pair's effect than the residuals themselves: one step of Newton's method
        # divides by their mean slope.
        bounded = scaled.T @ known.moved
        self.gamma: np.ndarray = bounded / known.slope
        self._residuals = known.residuals - rest @ bounded
        self._leverages = np.minimum(linear.leverages + (scaled * rest).sum(axis=1), 1 - 1e-9)
        self._variances = known.variances(self._leverages, self._residuals)

    @property
    def missing(self) -> tuple[np.ndarray, np.ndarray]:
        """What the model's parameters, and the runs' residuals, have of this pair because it is not in the model."""
        return self._share @ self.gamma, self._rest @ self.gamma

    def intervals(self, rows: np.ndarray, pair_rows: np.ndarray, doubt: Doubt | None = None) -> list[Interval]:
        """Intervals of combinations of the model's parameters and the pair's columns; `doubt` of the other pairs widens
        them.
        """
        own = pair_rows - rows @ self._share
        estimates = rows @ self._known.params + own @ self.gamma
        influence = self._rest @ (self._inverse @ own.T)
        widened = 0.0 if doubt is None else doubt.squares(rows, influence)
        if np.any(rows):
            influence += self._known.linear.design @ self._known.linear.solve(rows.T)
        square = self._known.inflation * (influence**2 * self._variances[:, None]).sum(axis=0)
        df = max(self._known.linear.df - self._rest.shape[1], 1)
        sigma_square = self._known.inflation * float(self._residuals @ self._residuals) / df
        return intervals(
            estimates,
            square + widened,
            self._degrees(influence),
            sigma_square * (influence**2).sum(axis=0) + widened,
            df,
            self._known.alpha,
        )

    def _degrees(self, influence: np.ndarray) -> np.ndarray:
        linear = self._known.linear
        df = float(max(linear.df - self._rest.shape[1], 1))
        if linear.n_runs > _EXACT_RUNS:
            answer: np.ndarray = np.full(influence.shape[1], df)
            return answer
        weight = influence**2 / (1 - self._leverages)[:, None]
        hat = linear.hat - self._rest @ self._inverse @ self._rest.T
        below = np.einsum("ij,ij->j", weight, hat**2 @ weight)
        degrees: np.ndarray = np.clip((influence**2).sum(axis=0) ** 2 / np.maximum(below, 1e-300), 1.0, df)
        return degrees


def probabilities(p: Mapping[Pair, float], chosen: int, n_runs: int) -> dict[Pair, float]:
    """How probable it is that pairs outside the model are real, by their p values; those that are hardly so are left
    out. `chosen` is the number of pairs in the model.

    With the unit-information prior of Kass and Wasserman (1995), and one more real pair expected than was chosen.
    """
    from scipy.special import ndtri

    found = {}
    for pair, value in p.items():
        z = float(ndtri(max(value, 1e-15) / 2))
        odds = (1 + chosen) / len(p) * math.exp(z**2 / 2) / math.sqrt(1 + n_runs)
        if odds > _MIN_ODDS:
            found[pair] = odds / (1 + odds)
    return found


def _doubt(likely: Mapping[Pair, float], made: Mapping[Pair, Beside]) -> Doubt | None:
    """How far pairs outside the model leave it in doubt, from the probabilities that they are real."""
    if not likely:
        return None
    params, runs = zip(*(made[pair].missing for pair in likely), strict=True)
    root = np.sqrt(list(likely.values()))
    return Doubt(tuple(likely), np.column_stack(params) * root, np.column_stack(runs) * root)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pairs of the model, the number of candidates, and the doubt that the others leave."""

    pairs: tuple[Pair, ...]
    candidates: int
    doubt: Doubt | None = None

    @property
    def sentence(self) -> str:
        """What was done, for the reader."""
        return (
            f"Too few runs to fit all {self.candidates} pairs at once: {len(self.pairs)} are in the model; each of the "
            "others was tested beside these."
        )


def suffices(full: Coding, sample: Sample) -> bool:
    """Whether the runs can show all parameters and leave enough to estimate their errors: with fewer than two runs per
    parameter, only if a quarter of their number remains and all columns are nearly orthogonal, as in a fraction made
    for all pairs.
    """
    p, n_runs = len(full.column_names), sample.told
    if n_runs >= 2 * p:
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
    """The columns of every pair in the rows of the full coding."""
    return {(t.factors[0], t.factors[1]): t.columns for t in full.terms if len(t.factors) == 2 and t.columns}


def choose_pairs(full: Coding, sample: Sample, blocks: str, use_robust: bool) -> Chosen:
    """The pairs of the model; all of `full` are tried."""
    columns = pair_columns(full)
    rows = full.cell_rows(sample.cells)
    chosen: list[Pair] = []
    seen: set[frozenset[Pair]] = set()
    while True:
        coding = full.but(chosen)
        known, unsure = _fitted(coding, sample, blocks, use_robust)
        p = _p_values(known, unsure, rows, columns, chosen, coding, sample)
        listed = [(pair, min(1.0, value * len(values))) for pair, values in p.items() for value in values]
        rate: dict[Pair, float] = {}
        for (pair, _), q in zip(listed, pair_rates([value for _, value in listed]), strict=True):
            if q == q:
                rate[pair] = min(rate.get(pair, 1.0), q)
        weak = [pair for pair in chosen if rate.get(pair, 1.0) > _Q]
        if weak:
            following = [pair for pair in chosen if pair != max(weak, key=lambda pair: rate.get(pair, 1.0))]
        else:
            best = min((min(v), pair) for pair, v in _untried(p, chosen).items()) if _untried(p, chosen) else None
            room = known.linear.df - (len(columns[best[1]]) if best else 0)
            if best is None or rate[best[1]] > _Q or room < max(_MIN_LEFT, sample.told // 5):
                break
            following = [*chosen, best[1]]
        if frozenset(following) in seen:
            # Two pairs that can replace each other: the larger model has both, or the stronger one.
            break
        seen.add(frozenset(following))
        chosen = following
    outside = {pair: min(1.0, len(v) * min(v)) for pair, v in _untried(p, chosen).items()}
    likely = probabilities(outside, len(chosen), sample.told)
    made = {pair: Beside(known, rows[:, list(columns[pair])][sample.cells.index]) for pair in likely}
    return Chosen(tuple(chosen), len(columns), _doubt(likely, made))


def _untried(p: Mapping[Pair, Sequence[float]], chosen: Sequence[Pair]) -> dict[Pair, list[float]]:
    told = {pair: [v for v in values if v == v] for pair, values in p.items() if pair not in chosen}
    return {pair: values for pair, values in told.items() if values}


def _fitted(coding: Coding, sample: Sample, blocks: str, use_robust: bool) -> tuple[Contrasts, Doubt | None]:
    width = len(coding.column_names)
    linear = sample.linear(coding, sample.choose_blocks(blocks, width))
    estimate = robust.estimate(linear, sample.y, sample.level(linear), use_robust)
    unsure = covariate.doubt(sample, coding, estimate.linear, estimate.params)
    return Contrasts(estimate, doubt=None if unsure is None else unsure.params), unsure


def _p_values(
    known: Contrasts,
    unsure: Doubt | None,
    rows: np.ndarray,
    columns: Mapping[Pair, tuple[int, ...]],
    chosen: Sequence[Pair],
    coding: Coding,
    sample: Sample,
) -> dict[Pair, list[float]]:
    found: dict[Pair, list[float]] = {}
    linear = known.linear
    kept_index = np.cumsum(linear.kept) - 1
    for pair, own in columns.items():
        if pair in chosen:
            term = coding.term_of(*pair)
            assert term is not None
            at = [int(kept_index[c]) for c in term.columns if linear.kept[c]]
            found[pair] = [it.p for it in known.intervals(np.eye(linear.width)[at])]
            continue
        beside = Beside(known, rows[:, list(own)][sample.cells.index])
        if beside.told:
            size = len(own)
            found[pair] = [it.p for it in beside.intervals(np.zeros((size, linear.width)), np.eye(size), unsure)]
    return found
