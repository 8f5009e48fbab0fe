"""A covariate: a number of every run, such as its instructions, that explains some of what varies between runs alike.

A run that happened to have more to do took longer. That part of the noise is removed, but not what a treatment does to
the covariate: saving time by fewer instructions is part of its effect. The covariate is therefore centred on what the
treatments are thought to do to it, and what is not known of that stays in the intervals.

It must be centred on a *model*, not on the mean of each configuration. A column that is centred within configurations
is orthogonal to all treatments, so it moves no estimate: their true errors stay, while the residuals and with them the
intervals shrink (83 to 84 % of them contained the truth where 95 % should, docs/method.md). In
general nothing can be gained for a treatment that changes the covariate, because the change has to be estimated from
the same runs. The gain is for the treatments that do not. Each term of the covariate's model counts by the probability
that it is real: a treatment is as likely as not to change the covariate, and one more pair is expected to change it
than is significant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from broadleaf_lab.analysis.model.coding import Coding, Term
from broadleaf_lab.analysis.model.drift import Nuisance
from broadleaf_lab.analysis.model.linear import Linear
from broadleaf_lab.analysis.model.sample import Sample
from broadleaf_lab.analysis.multiplicity import q_values

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.fit import Fit

_Q = 0.05
_MIN_TOLD = 0.5
_LIKELY = 0.5
_PRIOR = 5.0
"""The variance of effects on the covariate before any run, in squared standard errors: those that are neither clearly
there nor clearly absent. With the unit-information prior, 86 % of the intervals of such treatments held the truth."""
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True)
class Covariate:
    """The column of a model: `values` of every run, less what treatments are thought to do to them, zero on average.

    `unsure` is a root of the covariance of what treatments do to it, a row for each column of `coding`. `changed` are
    the terms that probably change it.
    """

    name: str
    values: np.ndarray
    unsure: np.ndarray
    coding: Coding
    changed: tuple[str, ...]

    def of_runs(self, kept: np.ndarray) -> Covariate:
        """The same of some of the runs."""
        return replace(self, values=self.values[kept])


def numbers(frame: pd.DataFrame, name: str) -> np.ndarray | str:
    """The covariate of every run, as logarithms if all are positive, nan where it is missing; or why the runs cannot
    be adjusted for it.
    """
    values = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=float) if name in frame else np.zeros(0)
    told = np.isfinite(values)
    if not told.any():
        return f"Not adjusted for {name}: no run has it."
    if told.sum() < _MIN_TOLD * len(values):
        return f"Not adjusted for {name}: only {int(told.sum())} of {len(values)} runs have it."
    if np.ptp(values[told]) == 0:
        return f"Not adjusted for {name}: it is the same in all runs."
    return np.log(values) if (values[told] > 0).all() else values


def centred(name: str, values: np.ndarray, made: Fit, sample: Sample) -> Covariate:
    """The covariate's column; `made` is the model of `values` over the runs that have one."""
    coding, width = made.coding, len(made.coding.column_names)
    position = dict(zip(np.flatnonzero(made.kept).tolist(), range(made.linear.size), strict=True))
    tests: list[_Test] = []
    estimate = np.zeros(width)
    covariance = np.zeros((width, width))
    # What a pair in the background may do to the covariate counts as an error, as everywhere.
    background: list[_Test] = []
    for term in coding.terms:
        at = [c for c in term.columns if c in position]
        own = [position[c] for c in at]
        if (pair := term.factors) in made.background:
            freed = made.contrasts_freed((pair[0], pair[1]), np.eye(width)[at])
            if freed is not None:
                smallest_p = min((it.p for it in freed if it.p == it.p), default=1.0)
                gamma = np.array([it.estimate for it in freed])
                background.append(_Test(term, tuple(at), gamma, min(1.0, smallest_p * len(freed))))
        elif at:
            tests.append(_Test.of(term, at, made.params[own], made.covariance[np.ix_(own, own)], made.df))
    inside = len(tests)
    tests += background
    known = [c for test in tests[:inside] for c in test.columns]
    own = [position[c] for c in known]
    covariance[np.ix_(known, known)] = made.covariance[np.ix_(own, own)]
    likely = _probabilities(tests)
    weight = np.zeros(width)
    strays = []
    for number, (test, probability) in enumerate(zip(tests, likely, strict=True)):
        part = np.zeros(width)
        part[list(test.columns)] = test.estimate
        if number < inside:
            estimate += probability * part
            weight[list(test.columns)] = math.sqrt(probability)
            strays.append(math.sqrt(probability * (1 - probability)) * part)
        else:
            strays.append(math.sqrt(probability) * part)
    size, basis = np.linalg.eigh(weight[:, None] * covariance * weight)
    unsure = np.column_stack([basis * np.sqrt(np.maximum(size, 0.0)), *strays])
    length = np.abs(unsure).max(axis=0)
    unsure = unsure[:, length > _NEGLIGIBLE * max(float(length.max()), _NEGLIGIBLE)]
    told = np.isfinite(values)
    rest = values - (coding.cell_rows(sample.cells) @ estimate)[sample.cells.index]
    # A run without the number counts as an average one.
    rest = np.where(told, rest - rest[told].mean(), 0.0)
    changed = [" x ".join(t.term.factors) for t, p in zip(tests, likely, strict=True) if p > _LIKELY]
    return Covariate(name, rest, unsure, coding, tuple(changed))


def adjusted(sample: Sample, covariate: Covariate) -> Sample:
    """The sample with the covariate's column."""
    time = sample.time
    matrix = np.column_stack([time.matrix, covariate.values])
    return replace(sample, time=Nuisance(matrix, (*time.names, covariate.name)), covariate=covariate)


def slope(sample: Sample, linear: Linear, params: np.ndarray) -> float:
    """The coefficient of the covariate; 0 without one."""
    if sample.covariate is None or not linear.kept_time[-1]:
        return 0.0
    return float(params[-1])


def doubt(sample: Sample, coding: Coding, linear: Linear, params: np.ndarray) -> np.ndarray | None:
    """What is not known of the treatments' effects on the covariate, as a doubt about the parameters of a model of
    `sample`; None without a covariate.
    """
    it = sample.covariate
    steep = slope(sample, linear, params)
    if it is None or steep == 0.0:
        return None
    unsure = steep * it.unsure
    columns_of = {term.factors: term.columns for term in coding.terms}
    position = np.cumsum(linear.kept) - 1
    moved: np.ndarray = np.zeros((linear.width, unsure.shape[1]))
    outside: list[int] = []
    for term in it.coding.terms:
        columns = columns_of.get(term.factors)
        if columns is None:
            outside += [column for column in term.columns if np.any(unsure[column])]
            continue
        for mine, full in zip(columns, term.columns, strict=True):
            if linear.kept[mine]:
                moved[position[mine]] += unsure[full]
    if outside:
        # Terms outside the model act through the columns that overlap with theirs.
        seen = it.coding.cell_rows(sample.cells)[:, outside][sample.cells.index]
        moved += linear.solve(np.column_stack([linear.cross(column) for column in seen.T])) @ unsure[outside]
    return moved


def sentence(covariate: Covariate, steep: float, sigma: float) -> str:
    """What the adjustment did, for the reader."""
    square = float(np.var(covariate.values)) * steep**2
    share = square / (square + sigma**2) if square else 0.0
    text = f"Adjusted for {covariate.name}: it explains {100 * share:.0f} % of what varies between runs alike."
    if covariate.changed:
        text += f" Changed by {', '.join(covariate.changed)}: that stays part of their effects,"
        text += " whose intervals are no narrower."
    return text


@dataclass(frozen=True, slots=True)
class _Test:
    """Whether treatments change the covariate by a term: its columns in the full coding, its estimate, its p value."""

    term: Term
    columns: tuple[int, ...]
    estimate: np.ndarray
    p: float

    @classmethod
    def of(cls, term: Term, columns: Sequence[int], estimate: np.ndarray, covariance: np.ndarray, df: int) -> _Test:
        from scipy import stats

        wald = float(estimate @ np.linalg.lstsq(covariance, estimate, rcond=1e-12)[0]) / len(estimate)
        return cls(term, tuple(columns), estimate, float(stats.f.sf(wald, len(estimate), max(df, 1))))


def _probabilities(tests: Sequence[_Test]) -> list[float]:
    """How probable each term is."""
    from scipy import stats

    found = [0.0] * len(tests)
    for kind in (1, 2):
        mine = [number for number, test in enumerate(tests) if len(test.term.factors) == kind]
        real = sum(q <= _Q for q in q_values([tests[number].p for number in mine]))
        odds = 1.0 if kind == 1 else (1 + real) / max(len(mine), 1)
        for number in mine:
            size = len(tests[number].estimate)
            square = float(stats.chi2.isf(max(tests[number].p, 1e-300), size))
            log_odds = math.log(odds) + square / 2 - size / 2 * math.log(1 + _PRIOR)
            found[number] = 1 / (1 + math.exp(-min(max(log_odds, -700.0), 700.0)))
    return found
