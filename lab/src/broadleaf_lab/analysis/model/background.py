"""How large effects are that are not parameters of a model: the variance of random effects, from the runs themselves.

Its likelihood (restricted, as for blocks) is computed for shares of what main effects leave unexplained, and averaged
over them. An average is never zero, unlike the most likely value, which would be zero in half of the studies with small
effects; the intervals would then say that there are none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from broadleaf_lab.analysis.model.coding import Coding
from broadleaf_lab.analysis.model.linear import Linear
from broadleaf_lab.spec.factors import Level

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.contrasts import Contrasts
    from broadleaf_lab.analysis.model.sample import Sample

_SHARES = np.array([0.002, 0.015, *np.arange(0.05, 0.96, 0.05)])


def penalty_of(linear: Linear, y: np.ndarray, nothing: float = 1.0) -> float:
    """The penalty of all columns of `linear` that have one: the variance of a run over that of an effect. `nothing` is
    how many times as likely as any other share it is that they do next to nothing.
    """
    free = linear.penalty == 0
    gram = linear.gram - np.diag(linear.penalty)
    moments, moved = linear.cross(y), linear.transform(y)
    own = gram[np.ix_(~free, ~free)]
    # Without what the parameters explain.
    share = np.linalg.solve(gram[np.ix_(free, free)], np.column_stack([gram[np.ix_(free, ~free)], moments[free]]))
    rest = gram[np.ix_(~free, free)] @ share
    square = float(moved @ moved - moments[free] @ share[:, -1])
    left = linear.n_runs - int(free.sum()) - (linear.groups.number - 1 if linear.blocks == "fixed" else 0)
    sizes, basis = np.linalg.eigh(own - rest[:, :-1])
    along = basis.T @ (moments[~free] - rest[:, -1])
    prior = np.ones(len(_SHARES)) if nothing == 1 else _mostly_nothing(nothing)
    return 1 / variance_ratio(sizes, along, square, left, float(np.trace(own)) / linear.n_runs, prior)


def variance_ratio(
    sizes: np.ndarray, along: np.ndarray, square: float, left: int, unit: float, prior: np.ndarray
) -> float:
    """The variance of random effects over that of a run. `sizes` are the eigenvalues of their cross products beside the
    parameters, `along` those with the residuals along each eigenvector, `square` the residuals' sum of squares with
    `left` degrees of freedom; `unit` is what random effects of variance 1 add to the variance of a run, and `prior`
    weighs the shares that they have in what is unexplained.
    """
    if unit <= 0 or square <= 0 or left < 1:
        return 1e-9
    ratios = _SHARES / (1 - _SHARES) / unit
    grown = 1 + ratios[:, None] * np.maximum(sizes, 0.0)
    rest = np.maximum(square - ratios * (along**2 / grown).sum(axis=1), 1e-12 * square)
    log_likelihood = -0.5 * (left * np.log(rest) + np.log(grown).sum(axis=1))
    weight = prior * np.exp(log_likelihood - log_likelihood.max())
    return float(weight @ ratios / weight.sum())


def _mostly_nothing(weight: float) -> np.ndarray:
    """A prior of the shares: the smallest is so likely, and much of the noise seldom is theirs."""
    prior: np.ndarray = np.where(_SHARES < 0.01, weight, (1 - _SHARES) ** 3)
    return prior


class Triples:
    """What three factors together may do beyond their pairs: random effects that are not in the model. They are part of
    the truth in a single configuration, so an answer about one has to allow for them.
    """

    def __init__(
        self, coding: Coding, sample: Sample, known: Contrasts, likely: Callable[[], Sequence[frozenset[str]]]
    ) -> None:
        """`likely` gives the pairs that are real: of very many triples, those with one of them count."""
        linear = known.linear
        inside = set(coding.triples)
        names = [f.name for f in coding.factors]
        outside = [triple for triple in itertools.combinations(names, 3) if triple not in inside]
        if len(outside) > _MAX_TRIPLES:
            real = likely()
            outside = [triple for triple in outside if any(pair <= set(triple) for pair in real)][:_MAX_TRIPLES]
        self._wide = coding.but(coding.pairs, (*coding.triples, *outside))
        self._start = len(coding.column_names)
        self._variances: np.ndarray = np.zeros(len(self._wide.column_names) - self._start)
        self._share: np.ndarray = np.zeros((linear.width, 0))
        if len(self._wide.column_names) == self._start:
            return
        columns, cross, moments = self._products(sample, linear, known)
        self._share = linear.solve(columns)
        gram = cross - columns.T @ self._share
        sizes, basis = np.linalg.eigh((gram + gram.T) / 2)
        unit = float(np.trace(cross)) / linear.n_runs
        drawn = linear.penalty @ known.params**2
        square = float(known.residuals @ known.residuals) + float(drawn)
        left = linear.n_runs - linear.n_fixed - (linear.groups.number - 1 if linear.blocks == "fixed" else 0)
        along = basis.T @ (moments - columns.T @ known.params)
        ratio = variance_ratio(sizes, along, square, left, unit, _FEW)
        self.odds: np.ndarray = self._odds(known)
        strays = stray_squares(np.diag(cross), basis, np.maximum(sizes, 0.0), along, ratio, known, self.odds)
        self._variances = strays + np.full(len(strays), ratio * known.inflation * known.sigma_square)

    def _odds(self, known: Contrasts) -> np.ndarray:
        """How likely each column is to be real before the runs say anything about it. One of all is expected to be, and
        if the runs show which factors do something on average, it is one of three such factors in half of all cases
        (heredity; Chipman, 1996).
        """
        linear = known.linear
        place = np.cumsum(linear.kept) - 1
        told = {
            term.factors[0]: known.intervals(np.eye(linear.width)[place[[c for c in term.columns if linear.kept[c]]]])
            for term in self._wide.terms
            if len(term.factors) == 1
        }
        sure = {name for name, its in told.items() if any(it.p < _SURE for it in its)}
        triples = [term for term in self._wide.terms if min(term.columns, default=0) >= self._start]
        active = np.concatenate([[set(term.factors) <= sure] * len(term.columns) for term in triples])
        odds: np.ndarray = np.full(len(active), 1.0 / len(active))
        if active.any() and not active.all():
            odds[:] = np.where(active, _HEREDITY / active.sum(), (1 - _HEREDITY) / (~active).sum())
        return odds

    def _products(self, sample: Sample, linear: Linear, known: Contrasts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the triples with the model's columns, with each other and with the runs."""
        penalty = np.zeros(len(self._wide.column_names))
        penalty[: self._start][linear.kept] = linear.penalty[: linear.size]
        penalty[self._start :] = 1.0
        wide = sample.linear(self._wide, linear.blocks, penalty)
        if linear.weight is not None:
            wide = wide.with_weight(linear.weight)
        if linear.blocks == "random":
            wide = wide.with_ratio(linear.ratio)
        mine: np.ndarray = np.zeros(wide.width, dtype=bool)
        mine[linear.size : wide.size] = True
        cross = wide.gram[np.ix_(mine, mine)] - np.diag(wide.penalty[mine])
        return wide.gram[np.ix_(~mine, mine)], cross, wide.cross(known.pseudo)[mine]

    def squares(
        self, rows: np.ndarray, after: Sequence[Mapping[str, Level]], before: Sequence[Mapping[str, Level]] | None
    ) -> np.ndarray:
        """The squared errors of the differences `rows` between configurations (of means, without `before`)."""
        if not self._variances.any():
            return np.zeros(len(rows))
        missed = self._missed(rows, after)
        if before is not None:
            missed += self._wide.rows(before)[:, self._start :]
        found: np.ndarray = missed**2 @ self._variances
        return found

    def draws(
        self, rows: np.ndarray, configs: Sequence[Mapping[str, Level]], rng: np.random.Generator, number: int
    ) -> np.ndarray:
        """What they may do to the means of configurations, a row for each; the draws are of all at once."""
        if not self._variances.any():
            return np.zeros((len(rows), number))
        missed = self._missed(rows, configs) * self.spreads
        drawn: np.ndarray = missed @ rng.standard_normal((missed.shape[1], number))
        return drawn

    @property
    def spreads(self) -> np.ndarray:
        """The standard deviation of each of their coefficients."""
        spreads: np.ndarray = np.sqrt(self._variances)
        return spreads

    @property
    def terms(self) -> list[tuple[str, ...]]:
        """The factors of each, in the order of their columns."""
        return [term.factors for term in self._wide.terms if min(term.columns, default=0) >= self._start]

    @property
    def share(self) -> np.ndarray:
        """What the model's coefficients (rows) take over of each of their columns."""
        return self._share

    def _missed(self, rows: np.ndarray, configs: Sequence[Mapping[str, Level]]) -> np.ndarray:
        found: np.ndarray = rows @ self._share - self._wide.rows(configs)[:, self._start :]
        return found


def stray_squares(
    whole: np.ndarray, basis: np.ndarray, sizes: np.ndarray, along: np.ndarray, ratio: float, known: Contrasts,
    odds: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """What each triple may be beyond their common variance: the square expected from its own estimate, if it is real,
    times the probability of that. Each is estimated as a parameter beside the others; if
    it is real, it is as large as one run tells.

    `whole` are the squares of their columns, `basis` and `sizes` the eigenvectors and eigenvalues of their cross
    products beside the model, `along` the runs along each eigenvector, `odds` how likely each is before that.
    """
    grown = 1 + ratio * sizes
    seen = basis**2 @ (sizes / grown)
    found: np.ndarray = np.zeros(len(seen))
    # Little is known of one that the model's own columns nearly explain.
    told = seen > _TOLD * whole
    basis, seen = basis[told], seen[told]
    pulls = (basis @ (along / grown)) / seen
    # Without what the triple itself explains.
    left = float(known.residuals @ known.residuals) - pulls**2 * seen
    noise = known.inflation * np.maximum(left, 0.0) / max(known.linear.df - 1, 1)
    estimates, squares = pulls / known.slope, noise * (basis**2 @ (1 / grown)) / seen
    part = known.linear.n_runs / (1 + known.linear.n_runs)
    evidence = estimates**2 / np.maximum(squares, 1e-300) * part + np.log1p(-part)
    raised = odds[told] * np.exp(np.minimum(evidence / 2, 50.0))
    likely = raised / (1 + raised)
    found[told] = np.where(likely > _MIN_LIKELY, likely * ((part * estimates) ** 2 + part * squares), 0.0)
    return found


_TOLD = 0.1
_SURE = 1e-3
_HEREDITY = 0.5
_MIN_LIKELY = 0.005
_MAX_TRIPLES = 600
_FEW = _mostly_nothing(1000.0)
"""Triples are rarer than pairs, and a large one is allowed for by itself."""
