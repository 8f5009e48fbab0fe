"""Choosing pairs where there are too few runs for all of them: one half of the blocks chooses, the other half tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from broadleaf.lab.analysis import nuisance
from broadleaf.lab.analysis import scale as scales
from broadleaf.lab.analysis.coding import Coding, independent_columns
from broadleaf.lab.errors import AnalysisError
from broadleaf.lab.factors import Factor


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pairs one half chose, and the runs of the other half."""

    pairs: tuple[tuple[str, str], ...]
    confirm: pd.DataFrame
    n_choosing: int

    @property
    def sentence(self) -> str:
        """What was done, for the reader."""
        return (
            f"Too few runs for all pairs: {self.n_choosing} runs chose {len(self.pairs)} pairs, intervals come from "
            f"the other {len(self.confirm)} runs."
        )


def choose_pairs(
    factors: Sequence[Factor], frame: pd.DataFrame, scale: scales.Scale, coding: Coding, drift: bool, seed: int = 1
) -> Chosen:
    """Selects pairs by cross-validated LASSO on half of the blocks. Main effects are not penalised and stay in the
    model, so that every pair has both its factors there (strong heredity), and the LASSO has only pairs to choose
    among. AnalysisError if half of the runs cannot tell the main effects."""
    from sklearn.linear_model import LassoCV
    from sklearn.model_selection import KFold

    choosing = _half(frame, seed)
    first, second = (frame[choosing].reset_index(drop=True), frame[~choosing].reset_index(drop=True))
    mains = len(Coding(factors, pairs=False).column_names)
    if min(len(first), len(second)) < mains + 3:
        raise AnalysisError(
            f"{len(frame)} runs are too few to choose among {len(coding.pairs)} pairs and still tell {mains - 1} main "
            "effects: make more runs, or leave out pairs (pairs=False)."
        )
    y = scales.transform(first["y_us"].to_numpy(dtype=float), scale)
    matrix = coding.matrix(first)
    single = [column for term in coding.terms if len(term.factors) == 1 for column in term.columns]
    time = nuisance.drift(first) if drift else nuisance.Nuisance(np.zeros((len(first), 0)), ())
    other = np.hstack([matrix[:, [0, *single]], nuisance.blocks(first).matrix, time.matrix])
    other = other[:, independent_columns(other)]
    if other.shape[1] > len(first) // 2:
        # Too few runs to take out blocks as well: the choice is noisier, what is told of it is not.
        other = matrix[:, [0, *single]]
    basis, _ = np.linalg.qr(other)
    columns = matrix[:, 1 + len(single) :]
    y, columns = y - basis @ (basis.T @ y), columns - basis @ (basis.T @ columns)
    spread = columns.std(axis=0)
    spread[spread < 1e-12] = 1.0
    folds = KFold(5, shuffle=True, random_state=seed)
    model = LassoCV(cv=folds, fit_intercept=False, max_iter=20_000).fit(columns / spread, y)
    size = np.abs(model.coef_)
    first_pair = 1 + len(single)
    strength = {
        pair: float(size[[c - first_pair for c in term.columns]].max())
        for pair, term in zip(coding.pairs, coding.terms[len(coding.factors) :], strict=True)
    }
    pairs = sorted((pair for pair in coding.pairs if strength[pair] > 0), key=lambda pair: -strength[pair])
    room = max(0, len(second) // 2 - mains)
    return Chosen(tuple(pairs[:room]), second, len(first))


def _half(frame: pd.DataFrame, seed: int) -> np.ndarray:
    """True for the runs of a random half of the blocks; of the runs, where there are fewer than four blocks."""
    rng = np.random.default_rng(seed)
    blocks = frame["block"].to_numpy()
    labels = np.unique(blocks[~np.isnan(blocks)])
    chosen: np.ndarray
    if len(labels) >= 4:
        chosen = np.isin(blocks, rng.permutation(labels)[: len(labels) // 2])
        return chosen
    chosen = np.zeros(len(frame), dtype=bool)
    chosen[rng.permutation(len(frame))[: len(frame) // 2]] = True
    return chosen
