"""Factors as columns of a model.

A column is centred over its factor's levels, so that zero is the average over them: a factor of two levels is -1/2 and
+1/2 and its coefficient the effect. A factor of L levels, words or numbers, has L-1 columns whose coefficients are the
effects of its levels relative to the default, so that no shape is assumed; a number with more than six levels may have
a natural spline instead. Only levels that were run are in the model: the row of any other is not a number. A nested
factor is zero where it does not exist. Products of columns are the interactions, level by level.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from broadleaf_lab.analysis.frame import Cells, coded
from broadleaf_lab.errors import ConstraintError
from broadleaf_lab.spec import expressions
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Factor, Level

MAX_STEPS = 6
"""A number of up to so many levels has a column for each but one."""
_KNOTS = 5


@dataclass(frozen=True, slots=True)
class Term:
    """A main effect or an interaction: its factors and its columns."""

    factors: tuple[str, ...]
    columns: tuple[int, ...]


class _Coder:
    """The columns of one factor: a row of `table` for each of `levels`."""

    def __init__(self, factor: Factor, levels: Sequence[Level], spline: bool) -> None:
        self.factor, self.levels = factor, tuple(levels)
        self.is_spline = spline
        count = len(self.levels)
        reference = self.levels.index(factor.default) if factor.default in self.levels else 0
        others = [position for position in range(count) if position != reference]
        if spline:
            self.table = _natural_spline(np.array([factor.position(level) for level in self.levels]))
            self.names = [f"{factor.name}~{number}" for number in range(1, self.table.shape[1] + 1)]
        else:
            self.table = np.eye(count)[:, others] - 1 / count
            listed = [f"{factor.name}[{self.levels[position]}]" for position in others]
            self.names = [factor.name] if len(factor.levels) == 2 and count == 2 else listed
        self._position = {level: position for position, level in enumerate(self.levels)}
        # Two more rows: of a level that was not run, and of a factor at its average.
        self._rows = np.vstack([self.table, np.full((1, self.width), np.nan), np.zeros((1, self.width))])

    @property
    def width(self) -> int:
        return int(self.table.shape[1])

    def __call__(self, level: Level) -> np.ndarray:
        row: np.ndarray = self._rows[self.position(level)]
        return row

    @property
    def absent(self) -> int:
        """The position of the row of a factor at its average."""
        return len(self.levels) + 1

    def position(self, level: Level) -> int:
        """The position of a level's row."""
        return self._position.get(level, len(self.levels))

    def rows(self, positions: Sequence[int]) -> np.ndarray:
        """The rows at these positions."""
        rows: np.ndarray = self._rows[np.asarray(positions, dtype=int)]
        return rows


def bends(at: np.ndarray, knots: np.ndarray) -> list[np.ndarray]:
    """What a natural cubic spline adds to the constant and the line: two columns fewer than knots (Hastie, Tibshirani
    and Friedman, The Elements of Statistical Learning, section 5.2.1)."""

    def bend(knot: float) -> np.ndarray:
        cubes = np.maximum(at - knot, 0.0) ** 3 - np.maximum(at - knots[-1], 0.0) ** 3
        bent: np.ndarray = cubes / (knots[-1] - knot)
        return bent

    return [bend(float(knot)) - bend(float(knots[-2])) for knot in knots[:-2]]


def _natural_spline(at: np.ndarray) -> np.ndarray:
    """A cubic spline through the levels, straight beyond the outer ones: orthogonal columns, centred over levels."""
    known = np.unique(at)
    columns = [at, *bends(at, np.quantile(known, np.linspace(0, 1, _KNOTS)))]
    matrix = np.column_stack(columns)
    matrix = (matrix - matrix.mean(axis=0)) / matrix.std(axis=0)
    left, _, _ = np.linalg.svd(matrix, full_matrices=False)
    scaled: np.ndarray = left * np.sqrt(len(at)) / 2
    return scaled


class Coding:
    """The columns of a model over some factors: constant, main effects, pairs, and chosen triples."""

    def __init__(
        self,
        factors: Sequence[Factor],
        pairs: bool | Iterable[tuple[str, str]] = True,
        triples: Iterable[tuple[str, str, str]] = (),
        levels: Mapping[str, Sequence[Level]] | None = None,
        splines: Iterable[str] = (),
    ) -> None:
        """`pairs` is all, none, or those named. `levels` are those that were run (None: all that the factors list);
        `splines` names the factors whose levels lie on a spline.
        """
        self.factors: tuple[Factor, ...] = tuple(factors)
        self.levels: dict[str, tuple[Level, ...]] = {
            f.name: tuple(f.levels if levels is None else levels[f.name]) for f in self.factors
        }
        self.splines: frozenset[str] = frozenset(splines)
        self._coders = {f.name: _Coder(f, self.levels[f.name], f.name in self.splines) for f in self.factors}
        self._rules = Constraints([_conditioned(f, self.factors) for f in self.factors], {})
        self._last: tuple[Cells, np.ndarray] | None = None
        names = [f.name for f in self.factors]
        if isinstance(pairs, bool):
            chosen = list(itertools.combinations(names, 2)) if pairs else []
        else:
            chosen = [(a, b) if names.index(a) < names.index(b) else (b, a) for a, b in pairs]
        self.pairs: tuple[tuple[str, str], ...] = tuple(chosen)
        self.triples: tuple[tuple[str, str, str], ...] = tuple(triples)
        self.column_names: list[str] = ["mean"]
        terms = []
        for factors_of_term in [(name,) for name in names] + list(self.pairs) + list(self.triples):
            start = len(self.column_names)
            parts = [self._coders[name].names for name in factors_of_term]
            self.column_names += [":".join(names) for names in itertools.product(*parts)]
            terms.append(Term(factors_of_term, tuple(range(start, len(self.column_names)))))
        self.terms: tuple[Term, ...] = tuple(terms)

    def but(self, pairs: bool | Iterable[tuple[str, str]], triples: Iterable[tuple[str, str, str]] = ()) -> Coding:
        """The same factors and levels with other interactions."""
        return Coding(self.factors, pairs, triples, self.levels, self.splines)

    def measured(self, factor: str, level: Level) -> bool:
        """Whether a level was run."""
        return level in self.levels[factor]

    def exists(self, factor: str, config: Mapping[str, Level]) -> bool:
        """Whether a nested factor exists in a whole configuration; others always do."""
        return self._rules.exists(factor, config)

    def rows(self, configs: Sequence[Mapping[str, Level]]) -> np.ndarray:
        """The model row of every configuration. An omitted factor is at its average."""
        codes: dict[str, np.ndarray] = {}
        named = {name for config in configs for name in config}
        for factor in self.factors:
            if factor.name not in named:
                continue
            coder = self._coders[factor.name]
            name, position, absent = factor.name, coder.position, coder.absent
            positions = [position(config[name]) if name in config else absent for config in configs]
            if factor.when:
                for number, config in enumerate(configs):
                    # A part of a configuration does not say whether a nested factor exists: it is assumed to.
                    if len(config) >= len(self.factors) and not self._rules.exists(name, config):
                        positions[number] = absent
            codes[name] = coder.rows(positions)
        return self._products(codes, len(configs))

    def cell_rows(self, cells: Cells) -> np.ndarray:
        """The model row of every cell of runs. Those of the last cells are kept: a study is fitted again and again."""
        if self._last is None or self._last[0] is not cells:
            self._last = (cells, self._rows_of(cells))
        return self._last[1]

    def _rows_of(self, cells: Cells) -> np.ndarray:
        codes: dict[str, np.ndarray] = {}
        nested = cells.configs() if any(f.when for f in self.factors) else []
        for position, factor in enumerate(self.factors):
            coder = self._coders[factor.name]
            known = np.array([coder(level) for level in cells.levels[position]]).reshape(
                len(cells.levels[position]), coder.width
            )
            block = known[cells.codes[:, position]]
            if factor.when:
                block[[not self._rules.exists(factor.name, config) for config in nested]] = 0.0
            codes[factor.name] = block
        return self._products(codes, len(cells))

    def rows_between(
        self, start: Mapping[str, Level], goal: Mapping[str, Level], players: Sequence[str], bits: np.ndarray
    ) -> np.ndarray:
        """The model rows of configurations between two: where a row of `bits` is set, that player is at its level of
        `goal`; everything else is as in `start`.
        """
        if any(factor.when for factor in self.factors):
            return self.rows(
                [{**start, **{p: goal[p] for p, on in zip(players, row, strict=True) if on}} for row in bits]
            )
        codes = {}
        for factor in self.factors:
            coder = self._coders[factor.name]
            first = coder(start[factor.name])
            block = np.tile(first, (len(bits), 1))
            if factor.name in players:
                change = coder(goal[factor.name]) - first
                block = block + bits[:, [list(players).index(factor.name)]] * change
            codes[factor.name] = block
        return self._products(codes, len(bits))

    def _products(self, codes: Mapping[str, np.ndarray], length: int) -> np.ndarray:
        # Without codes, a factor is at its average, and so is every product with it.
        whole = len(codes) == len(self.factors)
        # Columns are written one by one.
        rows = np.zeros((length, len(self.column_names)), order="F")
        rows[:, 0] = 1.0
        for term in self.terms:
            if not term.columns or not (whole or all(name in codes for name in term.factors)):
                continue
            product = codes[term.factors[0]]
            for name in term.factors[1:]:
                product = (product[:, :, None] * codes[name][:, None, :]).reshape(length, -1)
            rows[:, term.columns[0] : term.columns[-1] + 1] = product
        return rows

    def row(self, config: Mapping[str, Level]) -> np.ndarray:
        """The model row of one configuration."""
        row: np.ndarray = self.rows([config])[0]
        return row

    def matrix(self, frame: pd.DataFrame) -> np.ndarray:
        """The model rows of all runs."""
        cells = coded(frame, self.factors)
        matrix: np.ndarray = self.cell_rows(cells)[cells.index]
        return matrix

    def term_of(self, *names: str) -> Term | None:
        """The term of these factors, in any order."""
        wanted = set(names)
        return next(
            (term for term in self.terms if set(term.factors) == wanted and len(term.factors) == len(names)), None
        )


def _conditioned(factor: Factor, factors: Sequence[Factor]) -> Factor:
    """A factor whose condition refers only to the given factors: it may refer to some that never varied and so are not
    in the model, and then it was fulfilled wherever its factor was varied.
    """
    if factor.when is not None:
        try:
            expressions.parse(factor.when, {f.name: f for f in factors}, factor.name)
        except ConstraintError:
            return replace(factor, when=None)
    return factor
