"""The model of a study: main effects, pairs, blocks and time, with robust intervals for any contrast."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from broadleaf.lab.analysis import frame as frames
from broadleaf.lab.analysis import nuisance, selection
from broadleaf.lab.analysis import scale as scales
from broadleaf.lab.analysis.coding import Coding, independent_columns
from broadleaf.lab.analysis.scale import LambdaProfile, Scale
from broadleaf.lab.errors import AnalysisError
from broadleaf.lab.factors import Factor, Level

if TYPE_CHECKING:
    from broadleaf.lab.analysis.effects import Context, DifferenceUs, Effect
    from broadleaf.lab.analysis.interactions import Interaction
    from broadleaf.lab.analysis.sensitivity import Shift

Blocks = Literal["fixed", "random", "none"]
Covariance = Literal["HC2", "HC3", "nonrobust"]
_Q = 0.05
_LEAST_RUNS_PER_PARAMETER = 1.25
_DRIFT_TERMS = 5


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval."""

    estimate: float
    se: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class LackOfFit:
    """The F test of what the model leaves against what replicates differ by. `significant` at 5 %: interactions of more
    than two factors remain."""

    f: float
    p: float
    df_model: int
    df_pure: int
    pure_error_sd: float

    @property
    def significant(self) -> bool:
        return self.p < 0.05


@dataclass(frozen=True, slots=True)
class DriftTerm:
    """A coefficient of time: `time` is the change from the first run to the last, `day.cos` and `day.sin` the hour."""

    name: str
    interval: Interval
    unit: str


class Fit:
    """A fitted model. Made by `fit`; rows of contrasts have one number per `coding.column_names`."""

    def __init__(
        self,
        frame: pd.DataFrame,
        coding: Coding,
        scale: Scale,
        blocks: Literal["auto"] | Blocks,
        drift: bool,
        covariance: Covariance,
        notes: tuple[str, ...] = (),
    ) -> None:
        import statsmodels.api as sm

        self.scale: Scale = scale
        self.frame, self.coding, self.notes = frame, coding, notes
        self.factors, self.with_drift = coding.factors, drift
        y = scales.transform(frame["y_us"].to_numpy(dtype=float), scale)
        treatment = coding.matrix(frame)
        time = nuisance.drift(frame) if drift else nuisance.Nuisance(np.zeros((len(y), 0)), ())
        block = nuisance.blocks(frame)
        self.blocks: Blocks = _choose_blocks(blocks, treatment, time, block)
        other = np.hstack([block.matrix, time.matrix]) if self.blocks == "fixed" else time.matrix
        names = (*block.names, *time.names) if self.blocks == "fixed" else time.names

        # What blocks and drift explain is not credited to a treatment: they come first, after the constant.
        q = other.shape[1]
        keep = independent_columns(np.hstack([treatment[:, :1], other, treatment[:, 1:]]))
        self.kept = np.concatenate([keep[:1], keep[1 + q :]])
        self._other, self._other_names = (
            other[:, keep[1 : 1 + q]],
            [n for n, k in zip(names, keep[1 : 1 + q], strict=True) if k],
        )
        self._treatment = treatment
        design = np.hstack([treatment[:, self.kept], self._other])
        if len(y) <= design.shape[1]:
            raise AnalysisError(
                f"{len(y)} runs cannot tell {design.shape[1]} parameters: make more runs, or leave out pairs."
            )
        self.block_share = 0.0
        self._whiten: np.ndarray | None = None
        if self.blocks == "random":
            self.block_share = _block_variance_ratio(y, design, frame["block"].to_numpy())
            self._whiten = _whitening(frame["block"].to_numpy(), self.block_share)
        self._y, self._design = y, design
        white_y, white = (y, design) if self._whiten is None else (self._whiten @ y, self._whiten @ design)
        # With random blocks these are whitened: ordinary least squares on them is the generalised one.
        self.white_design, self.white_y = white, white_y
        self.covariance_type: Covariance = covariance
        self.result: Any = sm.OLS(white_y, white).fit(cov_type=covariance, use_t=True)
        self.df = int(self.result.df_resid)
        self.params: np.ndarray = np.asarray(self.result.params)
        self._covariance: np.ndarray = np.asarray(self.result.cov_params())
        self._size = int(self.kept.sum())

    # --- what was fitted -------------------------------------------------------------------------------------------

    @property
    def treatment_params(self) -> np.ndarray:
        """The coefficients of the kept columns of the coding."""
        return self.params[: self._size]

    @property
    def design_names(self) -> list[str]:
        """Names of the coefficients: kept treatment columns, then blocks and drift."""
        return [n for n, k in zip(self.coding.column_names, self.kept, strict=True) if k] + self._other_names

    @property
    def coefficients(self) -> dict[str, float]:
        """Every coefficient by name."""
        return dict(zip(self.design_names, self.params.tolist(), strict=True))

    @property
    def covariance(self) -> np.ndarray:
        """The robust covariance of `coefficients`."""
        return self._covariance

    @property
    def dropped(self) -> list[str]:
        """Columns the runs cannot tell from others, such as the product of two factors that exclude each other. They
        count as zero: the effect of such a factor is the one where the other is at its default."""
        return [n for n, k in zip(self.coding.column_names, self.kept, strict=True) if not k]

    @property
    def fitted(self) -> np.ndarray:
        """The model's value of every run, on the fit's scale, with its block and time."""
        values: np.ndarray = self._design @ self.params
        return values

    @property
    def residuals(self) -> np.ndarray:
        """Measured less fitted, on the fit's scale."""
        rest: np.ndarray = self._y - self.fitted
        return rest

    @property
    def leverages(self) -> np.ndarray:
        """How much of its own fitted value each run decides."""
        basis, _ = np.linalg.qr(self.white_design)
        leverages: np.ndarray = np.minimum((basis**2).sum(axis=1), 1 - 1e-9)
        return leverages

    @property
    def sigma(self) -> float:
        """The residual standard deviation on the fit's scale."""
        return float(np.sqrt(self.result.scale))

    @property
    def r_squared(self) -> float:
        """The part of the variance explained."""
        return float(1 - self.residuals @ self.residuals / np.sum((self._y - self._y.mean()) ** 2))

    @property
    def n_runs(self) -> int:
        return len(self._y)

    def drift_terms(self) -> list[DriftTerm]:
        """The coefficients of time and hour that could be told."""
        found = []
        for place, name in enumerate(self._other_names):
            if not name.startswith("block["):
                row = np.zeros(len(self.params))
                row[self._size + place] = 1.0
                found.append(DriftTerm(name, self._interval(row), scales.UNITS[self.scale]))
        return found

    # --- contrasts -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _aliases(self) -> np.ndarray:
        kept = self._treatment[:, self.kept]
        aliases: np.ndarray = np.linalg.lstsq(kept, self._treatment[:, ~self.kept], rcond=None)[0]
        return aliases

    def estimable(self, row: np.ndarray) -> bool:
        """Whether the runs tell this contrast. One of main effects alone is told if each of them is."""
        if self.kept.all():
            return True
        main = [column for term in self.coding.terms if len(term.factors) == 1 for column in term.columns]
        used = np.flatnonzero(row)
        if not self.kept[used].any():
            return False
        if set(used) <= {0, *main}:
            return bool(self.kept[used].all())
        return bool(np.allclose(row[self.kept] @ self._aliases, row[~self.kept], atol=1e-6))

    def contrast(self, row: np.ndarray) -> Interval:
        """A linear combination of the coding's coefficients."""
        full = np.zeros(len(self.params))
        full[: self._size] = np.asarray(row, dtype=float)[self.kept]
        return self._interval(full)

    def _interval(self, row: np.ndarray) -> Interval:
        from scipy import stats

        estimate = float(row @ self.params)
        se = float(np.sqrt(max(row @ self._covariance @ row, 0.0)))
        half = self.t_quantile * se
        p = float(2 * stats.t.sf(abs(estimate) / se, self.df)) if se > 0 else float("nan")
        return Interval(estimate, se, estimate - half, estimate + half, p)

    def df_quantile(self, probability: float) -> float:
        """The quantile of t at the fit's degrees of freedom."""
        from scipy import stats

        return float(stats.t.ppf(probability, self.df))

    @functools.cached_property
    def t_quantile(self) -> float:
        """What 95 % intervals multiply a standard error with."""
        return self.df_quantile(0.975)

    def effects(self, context: Context = "average") -> list[Effect]:
        """The effect of every factor: on average over the others, at the baseline, the best, or a configuration."""
        from broadleaf.lab.analysis.effects import effects

        return effects(self, context)

    def differences_us(self, context: Context = "average") -> list[DifferenceUs]:
        """The same in microseconds per task."""
        from broadleaf.lab.analysis.effects import differences_us

        return differences_us(self, context)

    @functools.cached_property
    def _interactions(self) -> list[Interaction]:
        from broadleaf.lab.analysis.interactions import interactions

        return interactions(self)

    def interactions(self, rope_pct: float = 1.0) -> list[Interaction]:
        """Every pair that could be told, with its class and its q value."""
        from broadleaf.lab.analysis.interactions import interactions

        return self._interactions if rope_pct == 1.0 else interactions(self, rope_pct)

    def predict(self, configs: Sequence[Mapping[str, Level]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Microseconds per task of configurations with the 95 % interval of that mean, at the mean block and time."""
        rows = self.coding.rows(configs)[:, self.kept]
        mean = rows @ self.treatment_params
        spread = np.einsum("ij,jk,ik->i", rows, self._covariance[: self._size, : self._size], rows)
        half = self.t_quantile * np.sqrt(np.maximum(spread, 0.0))
        centre, low, high = (scales.to_us(value, self.scale) for value in (mean, mean - half, mean + half))
        return (centre, high, low) if self.scale == "rate" else (centre, low, high)

    def bootstrap(self, rng: np.random.Generator, draws: int) -> np.ndarray:
        """Treatment coefficients (kept x draws) of models refitted with the runs' residuals of random sign."""
        rest = self.white_y - self.white_design @ self.params
        rest = rest / np.sqrt(1 - self.leverages)
        solve = np.linalg.pinv(self.white_design)[: self._size]
        signs = rng.integers(0, 2, (len(rest), draws)) * 2.0 - 1.0
        drawn: np.ndarray = self.treatment_params[:, None] + solve @ (rest[:, None] * signs)
        return drawn

    # --- the data --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def measured_configs(self) -> list[dict[str, Level]]:
        """Every configuration that was run, once."""
        return frames.cells(self.frame, self.factors)[1]

    @functools.cached_property
    def best_config(self) -> dict[str, Level]:
        """Of the configurations that were run, the one predicted fastest."""
        mean = self.predict(self.measured_configs)[0]
        return self.measured_configs[int(np.nanargmin(mean))]

    @functools.cached_property
    def lack_of_fit(self) -> LackOfFit | None:
        """Whether the model misses something, as far as replicates tell; None where nothing repeats."""
        from scipy import stats

        cell, kept = frames.cells(self.frame, self.factors)
        if self._whiten is None:
            # A cell of one run is fitted exactly and tells nothing of pure error.
            repeated = np.flatnonzero(np.bincount(cell)[cell] > 1)
            if not len(repeated):
                return None
            within = _within(np.column_stack([self._y, self._other])[repeated], cell[repeated])
            rank = int(np.linalg.matrix_rank(within[:, 1:])) if within.shape[1] > 1 else 0
            df_pure = len(repeated) - len(np.unique(cell[repeated])) - rank
            rest = within[:, 0] - within[:, 1:] @ np.linalg.lstsq(within[:, 1:], within[:, 0], rcond=None)[0]
        else:
            full = self._whiten @ np.hstack([np.eye(len(kept))[cell], self._other])
            df_pure = len(cell) - int(np.linalg.matrix_rank(full))
            rest = self.white_y - full @ np.linalg.lstsq(full, self.white_y, rcond=None)[0]
        df_model = self.df - df_pure
        pure = float(rest @ rest)
        # Replicates equal to the last digit, as without noise, tell nothing: rounding is no error to test against.
        if df_pure < 1 or df_model < 1 or pure <= 1e-20 * float(self._y @ self._y):
            return None
        f = (float(self.result.ssr) - pure) / df_model / (pure / df_pure)
        return LackOfFit(f, float(stats.f.sf(f, df_model, df_pure)), df_model, df_pure, float(np.sqrt(pure / df_pure)))

    @functools.cached_property
    def lambda_profile(self) -> LambdaProfile:
        """On which scale effects add up; `scale.answer` also counts the interactions of each scale."""
        return scales.profile_of(self.factors, self.frame, self._other)

    def sensitivity(self) -> list[Shift]:
        """Effects that robust regression or leaving out noisy blocks moves by more than a standard error."""
        from broadleaf.lab.analysis.sensitivity import shifts

        return shifts(self)


def fit(
    factors: Sequence[Factor],
    frame: pd.DataFrame,
    scale: Literal["auto"] | Scale = "log",
    pairs: bool | Sequence[tuple[str, str]] = True,
    blocks: Literal["auto"] | Blocks = "auto",
    drift: bool = True,
    covariance: Covariance = "HC2",
    triples: bool = True,
) -> Fit:
    """Fits a model to runs as `frame.load` gives them.

    `scale` "auto" is the one on which effects are most nearly additive. `blocks` "auto" gives every block its own mean
    if twice as many degrees of freedom as treatment parameters are left, else a random one. With more parameters than
    half the runs, of which some are confounded or next to nothing is left to know errors by, one half of the blocks
    chooses the pairs and the other half tells their sizes. Where replicates show
    that pairs do not suffice, `triples` adds those of factors whose three pairs are all significant.

    Intervals use HC2 errors: like HC3 they allow for unequal variances, but HC3 overstates variances by 1/(1 - p/N),
    which in designs of few runs per parameter makes intervals too wide to be 95 % ones. AnalysisError if the runs
    cannot tell the main effects.
    """
    if frame.empty:
        raise AnalysisError("no runs to fit: make runs first (`broadleaf lab run`).")
    notes: list[str] = []
    if scale == "auto":
        other = np.hstack(
            [nuisance.blocks(frame).matrix, nuisance.drift(frame).matrix if drift else np.zeros((len(frame), 0))]
        )
        scale = scales.profile_of(factors, frame, other).best
    coding = Coding(factors, pairs)
    if coding.pairs and not _suffices(frame, coding):
        chosen = selection.choose_pairs(factors, frame, scale, coding, drift)
        frame, coding = chosen.confirm, Coding(factors, chosen.pairs)
        notes.append(chosen.sentence)
    made = Fit(frame, coding, scale, blocks, drift, covariance, tuple(notes))
    lack = made.lack_of_fit
    if lack is None or not lack.significant:
        return made
    notes.append(f"Higher-order interactions remain: lack of fit F = {lack.f:.2f}, p = {lack.p:.2g}.")
    found = _triples(made) if triples and coding.pairs else []
    if found and made.df > 3 * len(found):
        wider = Coding(factors, coding.pairs, found)
        whole = Fit(frame, wider, scale, blocks, drift, covariance)
        # A fraction of all configurations cannot tell every triple from the rest.
        told = [t.factors for t in wider.terms if len(t.factors) == 3 and whole.kept[list(t.columns)].all()]
        if told:
            coding = Coding(factors, coding.pairs, [(a, b, c) for a, b, c in told])
            notes.append("Added three-way terms: " + ", ".join(" x ".join(names) for names in told) + ".")
    return Fit(frame, coding, scale, blocks, drift, covariance, tuple(notes))


def _suffices(frame: pd.DataFrame, coding: Coding) -> bool:
    """Whether the runs tell all parameters and leave enough to know their errors by: with fewer than two runs per
    parameter only where no parameter is confounded with others and a quarter of their number is left. A fraction that
    is made to tell all pairs must not be split, for its halves tell less than half of what it does."""
    p, n = len(coding.column_names), len(frame)
    if n >= 2 * p:
        return True
    return n >= _LEAST_RUNS_PER_PARAMETER * p + _DRIFT_TERMS and bool(independent_columns(coding.matrix(frame)).all())


def _triples(made: Fit) -> list[tuple[str, str, str]]:
    import itertools

    significant = {frozenset((pair.a, pair.b)) for pair in made.interactions() if pair.q <= _Q}
    names = [f.name for f in made.factors]
    return [
        (a, b, c)
        for a, b, c in itertools.combinations(names, 3)
        if {frozenset((a, b)), frozenset((a, c)), frozenset((b, c))} <= significant
    ]


def _choose_blocks(
    asked: Literal["auto"] | Blocks, treatment: np.ndarray, time: nuisance.Nuisance, block: nuisance.Nuisance
) -> Blocks:
    if not block.names:
        return "none"
    if asked != "auto":
        return asked
    left = len(treatment) - treatment.shape[1] - len(block.names) - len(time.names)
    return "fixed" if left >= 2 * treatment.shape[1] else "random"


def _block_variance_ratio(y: np.ndarray, design: np.ndarray, block: np.ndarray) -> float:
    """The variance between blocks over that within, by restricted maximum likelihood; 0 where it cannot be told."""
    import warnings

    from statsmodels.regression.mixed_linear_model import MixedLM

    with warnings.catch_warnings():
        # No variance between blocks is an answer here, not a failure.
        warnings.simplefilter("ignore")
        try:
            mixed = MixedLM(y, design, groups=block).fit(reml=True)
        except (np.linalg.LinAlgError, ValueError):
            return 0.0
    ratio = float(np.asarray(mixed.cov_re).item() / mixed.scale)
    return ratio if np.isfinite(ratio) and ratio > 0 else 0.0


def _whitening(block: np.ndarray, ratio: float) -> np.ndarray:
    out = np.eye(len(block))
    for label in np.unique(block):
        here = np.flatnonzero(block == label)
        shrink = (1 - 1 / np.sqrt(1 + len(here) * ratio)) / len(here)
        out[np.ix_(here, here)] -= shrink
    return out


def _within(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), values.shape[1]))
    np.add.at(sums, group, values)
    centred: np.ndarray = values - (sums / counts[:, None])[group]
    return centred
