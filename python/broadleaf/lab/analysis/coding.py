"""Factors as columns of a model.

A column is centred over its factor's levels, so that zero is the average over them: a factor of two levels is -1/2 and
+1/2 and its coefficient the effect; a factor of L categories has L-1 columns whose coefficients are the effects of its
levels over the default (they span what sum coding spans); a number has an orthogonal linear and a quadratic column on
its scale. A nested factor is zero where it does not exist. Products of columns are the interactions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from broadleaf.lab import expressions
from broadleaf.lab.analysis.frame import cells
from broadleaf.lab.constraints import Constraints
from broadleaf.lab.errors import ConstraintError
from broadleaf.lab.factors import Factor, Level


@dataclass(frozen=True, slots=True)
class Term:
    """A main effect or an interaction: its factors and its columns."""

    factors: tuple[str, ...]
    columns: tuple[int, ...]


class _Curve:
    """Linear and quadratic columns of a number, orthogonal over the levels, each of range 1."""

    def __init__(self, factor: Factor) -> None:
        self.factor = factor
        at = np.array([factor.position(level) for level in factor.levels])
        self.middle, self.width = float(at.mean()), float(np.ptp(at))
        line = (at - self.middle) / self.width
        basis = np.column_stack([np.ones_like(line), line])
        self.fit = np.linalg.lstsq(basis, line**2, rcond=None)[0]
        self.height = float(np.ptp(line**2 - basis @ self.fit)) if len(at) > 2 else 0.0

    def __call__(self, level: Level) -> list[float]:
        line = (self.factor.position(level) - self.middle) / self.width
        if self.height == 0.0:
            return [line]
        return [line, (line**2 - self.fit[0] - self.fit[1] * line) / self.height]


class _Steps:
    """A column per level other than the default: 1 at this level, less the mean over the levels."""

    def __init__(self, factor: Factor) -> None:
        self.factor = factor

    def __call__(self, level: Level) -> list[float]:
        share = 1 / len(self.factor.levels)
        return [(1.0 if level == other else 0.0) - share for other in self.factor.others]


class Coding:
    """The columns of a model over some factors: constant, main effects, pairs, and chosen triples."""

    def __init__(
        self,
        factors: Sequence[Factor],
        pairs: bool | Iterable[tuple[str, str]] = True,
        triples: Iterable[tuple[str, str, str]] = (),
    ) -> None:
        """`pairs` is all, none, or those named."""
        self.factors = tuple(factors)
        self._coders = {f.name: _Curve(f) if f.is_numeric else _Steps(f) for f in self.factors}
        self._rules = Constraints([_conditioned(f, self.factors) for f in self.factors], {})
        names = [f.name for f in self.factors]
        if isinstance(pairs, bool):
            chosen = list(itertools.combinations(names, 2)) if pairs else []
        else:
            chosen = [(a, b) if names.index(a) < names.index(b) else (b, a) for a, b in pairs]
        self.pairs: tuple[tuple[str, str], ...] = tuple(chosen)
        self.triples = tuple(triples)
        self.column_names: list[str] = ["mean"]
        terms = []
        for factors_of_term in [(name,) for name in names] + list(self.pairs) + list(self.triples):
            start = len(self.column_names)
            parts = self._parts if len(factors_of_term) == 1 else self._linear_parts
            self.column_names += [":".join(names) for names in itertools.product(*map(parts, factors_of_term))]
            terms.append(Term(factors_of_term, tuple(range(start, len(self.column_names)))))
        self.terms: tuple[Term, ...] = tuple(terms)

    def _parts(self, name: str) -> list[str]:
        factor = next(f for f in self.factors if f.name == name)
        if factor.is_numeric:
            return [name, f"{name}^2"][: len(self._coders[name](factor.default))]
        return [name] if len(factor.levels) == 2 else [f"{name}[{level}]" for level in factor.others]

    def _linear_parts(self, name: str) -> list[str]:
        # A curve interacts by its slope only: quadratic by quadratic would cost more runs than it tells.
        factor = next(f for f in self.factors if f.name == name)
        return self._parts(name)[:1] if factor.is_numeric else self._parts(name)

    def exists(self, factor: str, config: Mapping[str, Level]) -> bool:
        """Whether a nested factor exists in a whole configuration; others always do."""
        return self._rules.exists(factor, config)

    def rows(self, configs: Sequence[Mapping[str, Level]]) -> np.ndarray:
        """The model row of every configuration. A factor that one leaves out is at its average."""
        codes: dict[str, np.ndarray] = {}
        for factor in self.factors:
            coder = self._coders[factor.name]
            width = len(coder(factor.default))
            known: dict[Level, list[float]] = {}
            block = np.zeros((len(configs), width))
            for number, config in enumerate(configs):
                if factor.name not in config:
                    continue
                # A part of a configuration does not tell whether a nested factor exists: it does then.
                if factor.when and len(config) >= len(self.factors) and not self._rules.exists(factor.name, config):
                    continue
                level = config[factor.name]
                if level not in known:
                    known[level] = coder(level)
                block[number] = known[level]
            codes[factor.name] = block
        return self._products(codes, len(configs))

    def rows_between(
        self, start: Mapping[str, Level], goal: Mapping[str, Level], players: Sequence[str], bits: np.ndarray
    ) -> np.ndarray:
        """The model rows of configurations between two: where a row of `bits` is set, that player is at its level of
        `goal`, all else as in `start`."""
        if any(factor.when for factor in self.factors):
            return self.rows(
                [{**start, **{p: goal[p] for p, on in zip(players, row, strict=True) if on}} for row in bits]
            )
        codes = {}
        for factor in self.factors:
            coder = self._coders[factor.name]
            first = np.array(coder(start[factor.name]))
            block = np.tile(first, (len(bits), 1))
            if factor.name in players:
                change = np.array(coder(goal[factor.name])) - first
                block = block + bits[:, [list(players).index(factor.name)]] * change
            codes[factor.name] = block
        return self._products(codes, len(bits))

    def _products(self, codes: Mapping[str, np.ndarray], length: int) -> np.ndarray:
        numeric = {f.name for f in self.factors if f.is_numeric}
        out = [np.ones((length, 1))]
        for term in self.terms:
            if len(term.factors) == 1:
                out.append(codes[term.factors[0]])
                continue
            product = np.ones((length, 1))
            for name in term.factors:
                part = codes[name][:, :1] if name in numeric else codes[name]
                product = (product[:, :, None] * part[:, None, :]).reshape(length, -1)
            out.append(product)
        rows: np.ndarray = np.hstack(out)
        return rows

    def row(self, config: Mapping[str, Level]) -> np.ndarray:
        """The model row of one configuration."""
        row: np.ndarray = self.rows([config])[0]
        return row

    def matrix(self, frame: pd.DataFrame) -> np.ndarray:
        """The model rows of all runs."""
        index, kept = cells(frame, self.factors)
        matrix: np.ndarray = self.rows(kept)[index]
        return matrix

    def term_of(self, *names: str) -> Term | None:
        """The term of these factors, in any order."""
        wanted = set(names)
        return next(
            (term for term in self.terms if set(term.factors) == wanted and len(term.factors) == len(names)), None
        )


def _conditioned(factor: Factor, factors: Sequence[Factor]) -> Factor:
    """A factor whose condition speaks of the given factors only: it may speak of some that never varied and so are not
    in the model, and then it was fulfilled wherever its factor was varied."""
    if factor.when is not None:
        try:
            expressions.parse(factor.when, {f.name: f for f in factors}, factor.name)
        except ConstraintError:
            return replace(factor, when=None)
    return factor


def independent_columns(matrix: np.ndarray, tolerance: float = 1e-8) -> np.ndarray:
    """Which columns are no combination of those before them."""
    norms = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(norms > 0, norms, 1.0)
    keep: np.ndarray = norms > 0
    if matrix.shape[0] >= matrix.shape[1] and keep.all():
        diagonal = np.abs(np.diag(np.linalg.qr(scaled, mode="r")))
        if diagonal.min() > tolerance:
            return keep
    basis = np.zeros((matrix.shape[0], min(matrix.shape)))
    size = 0
    for column in range(matrix.shape[1]):
        if not keep[column] or size == basis.shape[1]:
            keep[column] = False
            continue
        rest = scaled[:, column].copy()
        for _ in range(2):
            rest -= basis[:, :size] @ (basis[:, :size].T @ rest)
        length = float(np.linalg.norm(rest))
        if length <= tolerance:
            keep[column] = False
            continue
        basis[:, size] = rest / length
        size += 1
    return keep
