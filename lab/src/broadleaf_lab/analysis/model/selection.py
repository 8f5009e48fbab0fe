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
_NEARLY = 5.0
"""How many standard errors a pair has that is nearly or just chosen."""
_NOTHING = 1000.0
"""How many times as likely as any other share of the noise it is that pairs that were not chosen do next to nothing: an
eighth of this if one was chosen, much less the more were. If none was, the runs may be too few to tell
(studies/coverage).
"""


class Freed:
    """Models in each of which the random effects of one row of `columns` are parameters instead. `told` is false for
    those that the runs cannot show; everything else is of the others, in their order.
    """

    def __init__(self, known: Contrasts, columns: np.ndarray) -> None:
        linear = known.linear
        self._known = known
        penalty = linear.penalty[columns]
        shared = known.inverse[columns[:, :, None], columns[:, None, :]]
        # What the runs say about the columns, as a part of what they and the penalty say together.
        root = np.sqrt(penalty)
        said = np.eye(columns.shape[1]) - root[:, :, None] * shared * root[:, None, :]
        self.told: np.ndarray = np.linalg.eigvalsh(said)[:, 0] > _UNTOLD
        self.own: np.ndarray = columns[self.told]
        self._scaled = np.linalg.inv(_diagonals(1 / penalty[self.told]) - shared[self.told])
        self._moves = known.inverse[:, self.own].transpose(1, 0, 2)
        self._seen = known.influence[:, self.own].transpose(1, 0, 2)
        self._rest = np.tile(linear.penalty, (len(self.own), 1))
        np.put_along_axis(self._rest, self.own, 0.0, axis=1)
        pull = self._scaled @ known.params[self.own][:, :, None]
        # Bounded residuals contain less of an effect than the residuals themselves: one step of Newton's method divides
        # by their mean slope.
        self.params: np.ndarray = known.params + (self._moves @ pull)[:, :, 0] / known.slope
        self._residuals = known.residuals - (self._seen @ pull)[:, :, 0]
        added = ((self._seen @ self._scaled) * self._seen).sum(axis=2)
        self._leverages = np.minimum(linear.leverages + added, 1 - 1e-9)
        self._df = max(linear.df - columns.shape[1], 1)
        self._variances = known.variances(self._leverages, self._residuals, self._df)

    def intervals(self, rows: np.ndarray) -> list[list[Interval]]:
        """Intervals of combinations of the parameters: of each model those of its own rows."""
        known = self._known
        inner = self._scaled @ (rows @ self._moves).transpose(0, 2, 1)
        solved = (rows @ known.inverse).transpose(0, 2, 1) + self._moves @ inner
        influence = (rows @ known.influence.T).transpose(0, 2, 1) + self._seen @ inner
        df = self._df
        sigma_square = known.inflation * (self._residuals**2).sum(axis=1, keepdims=True) / df
        drawn = sigma_square * (self._rest[:, None, :] @ solved**2)[:, 0]
        square = known.inflation * (self._variances[:, None, :] @ influence**2)[:, 0] + drawn
        equal = sigma_square * (influence**2).sum(axis=1) + drawn
        # A pair leaves no doubt about what it is tested for: its own columns have no penalty here.
        doubt = (((solved * self._rest[:, :, None]).transpose(0, 2, 1) @ known.strays) ** 2).sum(axis=2)
        estimates = (rows @ self.params[:, :, None])[:, :, 0]
        degrees = self._degrees(influence)
        told = intervals(
            estimates.ravel(), (square + doubt).ravel(), degrees.ravel(), (equal + doubt).ravel(), df, known.alpha
        )
        return [told[start : start + rows.shape[1]] for start in range(0, len(told), rows.shape[1])]

    def _degrees(self, influence: np.ndarray) -> np.ndarray:
        linear, df = self._known.linear, self._df
        if linear.n_runs > _EXACT_RUNS:
            answer: np.ndarray = np.full((len(influence), influence.shape[2]), float(df))
            return answer
        weight = influence**2 / (1 - self._leverages)[:, :, None]
        # The hat matrix of each model is that of all random effects less seen @ scaled @ seen.T; of its squared entries
        # only sums over runs are needed.
        felt = weight[:, :, :, None] * self._seen[:, :, None, :]
        of_runs = np.einsum("girk,girl->grkl", felt, _over_runs(linear.hat, felt))
        of_columns = np.einsum("girk,gil->grkl", felt, self._seen)
        scaled = self._scaled[:, None]
        below = (weight * _over_runs(self._known.kernel, weight)).sum(axis=1)
        below += ((scaled @ of_columns @ scaled) * of_columns - 2 * scaled * of_runs).sum(axis=(2, 3))
        degrees: np.ndarray = np.clip((influence**2).sum(axis=1) ** 2 / np.maximum(below, 1e-300), 1.0, df)
        return degrees


def _diagonals(values: np.ndarray) -> np.ndarray:
    made: np.ndarray = values[:, :, None] * np.eye(values.shape[1])
    return made


def _over_runs(matrix: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A matrix of the runs times the second axis of `values`."""
    found: np.ndarray = np.moveaxis(np.tensordot(matrix, values, (1, 1)), 0, 1)
    return found


def freed(
    known: Contrasts, columns: Mapping[Pair, Sequence[int]], rows: Mapping[Pair, np.ndarray] | None = None
) -> dict[Pair, list[Interval]]:
    """For each pair the intervals of its rows, or of its own columns, in the model in which it is a parameter; without
    the pairs that the runs do not show.
    """
    alike: dict[tuple[int, int], list[Pair]] = {}
    for pair, own in columns.items():
        alike.setdefault((len(own), len(own) if rows is None else len(rows[pair])), []).append(pair)
    found: dict[Pair, list[Interval]] = {}
    for (width, number), pairs in alike.items():
        step = max(1, _AT_ONCE // ((known.linear.n_runs + known.linear.width) * number * (width + 1)))
        for start in range(0, len(pairs), step):
            here = pairs[start : start + step]
            models = Freed(known, np.array([columns[pair] for pair in here]))
            told = [pair for pair, known_of in zip(here, models.told.tolist(), strict=True) if known_of]
            if told:
                asked = np.eye(known.linear.width)[models.own] if rows is None else np.stack([rows[p] for p in told])
                found.update(zip(told, models.intervals(asked), strict=True))
    return found


_AT_ONCE = 1 << 20
"""Numbers in an array of all models, runs and rows together."""


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
            f"{len(self.pairs)} are certainly real; each of the others was tested beside these, and all intervals "
            "allow for them."
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
        _, known = _fitted(full, sample, columns, chosen, blocks, use_robust)
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
    strays = _strays(known, columns, chosen)
    # Pairs are chosen before a background that may be large, so that none is taken for one of the others. Once they
    # are, the rest does little, the more likely the fewer there were; what may do more is among the strays.
    nothing = max(1.0, _NOTHING * len(chosen) / (1 + len(chosen)) ** 3)
    penalty, _ = _fitted(full, sample, columns, chosen, blocks, use_robust, nothing)
    return Chosen(tuple(chosen), len(columns), more_runs, penalty, strays)


def _strays(known: Contrasts, columns: Mapping[Pair, Sequence[int]], chosen: Sequence[Pair]) -> np.ndarray:
    """What pairs that were nearly chosen may be beyond the size of the background, a column for each: the root of its
    square that is expected from its estimate, if it is real, times the root of the probability of that.

    One more real pair is expected than was chosen, and real pairs are as large as those; without any, as large as what
    is about to be chosen. None of them is nearly zero, because what is small belongs to the background: their prior is
    a moment prior (Johnson and Rossell, 2010).
    """
    position = np.cumsum(known.linear.kept) - 1
    inside = position[[column for pair in chosen for column in columns[pair]]]
    size = float(np.mean(known.params[inside] ** 2)) if len(inside) else 0.0
    others: dict[Pair, list[int]] = {
        pair: position[list(own)].tolist() for pair, own in columns.items() if pair not in chosen
    }
    found = []
    for pair, told in freed(known, others).items():
        estimates, squares = np.array([it.estimate for it in told]), np.array([it.se**2 for it in told])
        evidence, expected = moment_prior(estimates, squares, size or _NEARLY**2 * squares)
        # Of several levels the one that stands out most decides, as when pairs are chosen.
        odds = (1 + len(chosen)) / (len(columns) * len(told)) * math.exp(min(float(evidence.max()), 50.0))
        likely = odds / (1 + odds)
        if likely > _MIN_LIKELY:
            column = np.zeros(known.linear.width)
            column[others[pair]] = np.sqrt(likely * expected)
            found.append(column)
    return np.column_stack(found) if found else np.zeros((known.linear.width, 0))


def moment_prior(estimates: np.ndarray, squares: np.ndarray, size: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Of estimates with squared errors `squares`: the logarithm of how many times as likely they are as without an
    effect, and the squares expected of the effects. These have the mean square `size` and a density that is the fourth
    power of the effect times a normal one.
    """
    spread = size / 5
    part = spread / (spread + squares)
    middle, rest = (part * estimates) ** 2, part * squares
    z = middle / rest
    evidence = z / 2 + np.log1p(2 * z + z**2 / 3) + 2.5 * np.log1p(-part)
    # The sixth moment over the fourth.
    return evidence, rest * (z**3 + 15 * z**2 + 45 * z + 15) / (z**2 + 6 * z + 3)


def _untried(p: Mapping[Pair, Sequence[float]], chosen: Sequence[Pair]) -> dict[Pair, list[float]]:
    told = {pair: [v for v in values if v == v] for pair, values in p.items() if pair not in chosen}
    return {pair: values for pair, values in told.items() if values}


def _fitted(
    full: Coding, sample: Sample, columns: Mapping[Pair, Sequence[int]], chosen: Sequence[Pair], blocks: str,
    use_robust: bool, nothing: float = 1.0,
) -> tuple[np.ndarray, Contrasts]:  # fmt: skip
    outside = [column for pair, own in columns.items() if pair not in chosen for column in own]
    kind = sample.choose_blocks(blocks, len(full.column_names) - len(outside))
    penalty = np.zeros(len(full.column_names))
    penalty[outside] = 1.0

    def under(linear: Linear, y: np.ndarray) -> robust.Estimate:
        penalty[outside] = penalty_of(linear, y, nothing)
        made = sample.linear(full, kind, penalty)
        return robust.estimate(made, sample.y, sample.level(made), use_robust)

    first = under(sample.linear(full, kind, penalty), sample.y)
    # Runs far from the model say nothing about the size of pairs.
    estimate = under(first.linear, first.pseudo)
    return penalty, Contrasts(estimate)


def _p_values(
    known: Contrasts, columns: Mapping[Pair, Sequence[int]], chosen: Sequence[Pair]
) -> dict[Pair, list[float]]:
    position = np.cumsum(known.linear.kept) - 1
    kept = {pair: [int(position[c]) for c in own if known.linear.kept[c]] for pair, own in columns.items()}
    told = freed(known, {pair: own for pair, own in kept.items() if pair not in chosen})
    eye = np.eye(known.linear.width)
    told |= {pair: known.intervals(eye[kept[pair]]) for pair in chosen}
    return {pair: [it.p for it in told[pair]] for pair in columns if pair in told}
