"""The model of a study: main effects, pairs, blocks and time, with robust intervals for any contrast."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model import curves, misfit, rejected, robust, selection
from broadleaf_lab.analysis.model import scale as scales
from broadleaf_lab.analysis.model.background import Triples
from broadleaf_lab.analysis.model.coding import Coding
from broadleaf_lab.analysis.model.contrasts import Contrasts, Covariance, Interval
from broadleaf_lab.analysis.model.linear import Blocks, Linear
from broadleaf_lab.analysis.model.misfit import LackOfFit
from broadleaf_lab.analysis.model.sample import Sample
from broadleaf_lab.analysis.model.scale import LambdaProfile, Scale
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.spec.factors import Factor, Level
from broadleaf_lab.spec.study import StudySpec

if TYPE_CHECKING:
    from broadleaf_lab.analysis.effects import Context, DifferenceUs, Effect
    from broadleaf_lab.analysis.interactions import Interaction
    from broadleaf_lab.analysis.model.rejected import Quadrant, Tail
    from broadleaf_lab.analysis.model.robust import Estimate

__all__ = ["Fit", "Interval", "LackOfFit", "fit"]
_Q = 0.05
_CERTAIN = 2.0
"""By how many standard errors a coefficient has to differ from zero to tell which configuration is the fastest."""


@dataclass(frozen=True, slots=True)
class DriftTerm:
    """A coefficient of time: `time` is the change from the first run to the last, `day.cos` and `day.sin` the hour."""

    name: str
    interval: Interval
    unit: str


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How a model is fitted; `fit` explains each option. `stray` is the variance by which levels of a number may
    deviate from its spline.
    """

    blocks: Literal["auto"] | Blocks = "auto"
    covariance: Covariance = "HC2"
    robust: bool = True
    alpha: float = 0.05
    stray: Mapping[str, float] = field(default_factory=dict)


class Fit:
    """A fitted model. Made by `fit`; rows of contrasts have one number per `coding.column_names`.

    If the runs do not suffice for all pairs at once, those in `background` are random effects, and `penalty` is that of
    every column (`strays` are those of `Contrasts`). `linear` may be passed if another fit of the same runs has already
    computed it.
    """

    def __init__(
        self,
        sample: Sample,
        coding: Coding,
        options: FitOptions | None = None,
        notes: tuple[str, ...] = (),
        linear: Linear | None = None,
        penalty: np.ndarray | None = None,
        strays: np.ndarray | None = None,
    ) -> None:
        options = options or FitOptions()
        self.options: FitOptions = options
        self.sample: Sample = sample
        self.coding: Coding = coding
        self.notes: tuple[str, ...] = notes
        self.scale: Scale = sample.scale
        self.frame: pd.DataFrame = sample.frame
        self.factors: tuple[Factor, ...] = coding.factors
        self.penalty: np.ndarray | None = penalty
        self.background: frozenset[tuple[str, ...]] = frozenset(
            () if penalty is None else (t.factors for t in coding.terms if penalty[list(t.columns)].any())
        )
        self.stray: Mapping[str, float] = options.stray
        self.alpha: float = options.alpha
        if linear is None:
            drawn = 0 if penalty is None else int((penalty > 0).sum())
            kind = sample.choose_blocks(options.blocks, len(coding.column_names) - drawn)
            linear = sample.linear(coding, kind, penalty)
        if linear.df < 1:
            raise AnalysisError(
                f"{linear.n_runs} runs cannot determine {linear.n_parameters} parameters: make more runs, or leave out "
                "pairs."
            )
        self.blocks: Blocks = linear.blocks
        self.estimate: Estimate = robust.estimate(linear, sample.y, sample.level(linear), options.robust)
        self.linear: Linear = self.estimate.linear
        self.kept: np.ndarray = linear.kept
        self.block_share: float = self.linear.ratio
        self.params: np.ndarray = self.estimate.params
        self.contrasts: Contrasts = Contrasts(self.estimate, options.covariance, options.alpha, strays)
        self.df: int = linear.df
        self._size = linear.size
        self._pairs: dict[float, list[Interaction]] = {}
        self.quadrant: Quadrant | None = None

    # --- what was fitted -------------------------------------------------------------------------------------------

    @property
    def treatment_params(self) -> np.ndarray:
        """The coefficients of the kept columns of the coding."""
        return self.params[: self._size]

    @property
    def design_names(self) -> list[str]:
        """Names of the coefficients: kept treatment columns, then time."""
        time = [n for n, k in zip(self.sample.time.names, self.linear.kept_time, strict=True) if k]
        return [n for n, k in zip(self.coding.column_names, self.kept, strict=True) if k] + time

    @property
    def coefficients(self) -> dict[str, float]:
        """Every coefficient by name."""
        return dict(zip(self.design_names, self.params.tolist(), strict=True))

    @property
    def covariance(self) -> np.ndarray:
        """The robust covariance of `coefficients`."""
        return self.contrasts.covariance

    @property
    def dropped(self) -> list[str]:
        """Columns that the runs cannot distinguish from others, such as the product of two factors that exclude each
        other. They count as zero: the effect of such a factor is the one with the other factor at its default.
        """
        return [n for n, k in zip(self.coding.column_names, self.kept, strict=True) if not k]

    @property
    def fitted(self) -> np.ndarray:
        """The model's value of every run, on the fit's scale, with its block and time."""
        return self.linear.fitted(self.params, self.estimate.pseudo)

    @property
    def fitted_us(self) -> np.ndarray:
        """The same in microseconds per task."""
        return scales.to_us(self.fitted, self.scale)

    @property
    def residuals(self) -> np.ndarray:
        """Measured less fitted, on the fit's scale."""
        rest: np.ndarray = self.sample.y - self.fitted
        return rest

    @property
    def weights(self) -> np.ndarray:
        """How much each run counts: 1 fully, 0 not at all."""
        return self.estimate.weight

    @property
    def sigma(self) -> float:
        """The standard deviation of a run on the fit's scale, without disturbed runs."""
        return float(np.sqrt(np.mean(self.estimate.spread**2)))

    @property
    def r_squared(self) -> float:
        """The explained share of the variance, with each run counting as in the fit."""
        y, weight = self.sample.y, self.weights
        middle = float(weight @ y / weight.sum())
        return float(1 - weight @ self.residuals**2 / (weight @ (y - middle) ** 2))

    @property
    def n_runs(self) -> int:
        return len(self.sample.y)

    def drift_terms(self) -> list[DriftTerm]:
        """The coefficients of time and hour that could be estimated."""
        names = self.design_names[self._size :]
        rows = np.eye(len(self.params))[self._size :]
        told = self.contrasts.intervals(rows)
        return [DriftTerm(name, it, scales.UNITS[self.scale]) for name, it in zip(names, told, strict=True)]

    # --- contrasts -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _aliases(self) -> np.ndarray:
        gram = self.linear.treatment_gram
        aliases: np.ndarray = np.linalg.lstsq(gram[np.ix_(self.kept, self.kept)], gram[np.ix_(self.kept, ~self.kept)])[
            0
        ]
        return aliases

    def estimable(self, row: np.ndarray) -> bool:
        """Whether the runs can show this contrast: not if it involves a level that was never run. A contrast of main
        effects alone can be shown if each of them can.
        """
        used = np.flatnonzero(row)
        if np.isnan(row).any() or not len(used):
            return False
        if self.kept.all():
            return True
        main = [column for term in self.coding.terms if len(term.factors) == 1 for column in term.columns]
        if not self.kept[used].any():
            return False
        if set(used) <= {0, *main}:
            return bool(self.kept[used].all())
        return bool(np.allclose(row[self.kept] @ self._aliases, row[~self.kept], atol=1e-6))

    def estimable_rows(self, rows: np.ndarray) -> np.ndarray:
        """`estimable` of many contrasts, one a row."""
        answer: np.ndarray = np.zeros(len(rows), dtype=bool)
        if self.kept.all():
            answer[:] = rows.any(axis=1) & ~np.isnan(rows).any(axis=1)
        else:
            answer[:] = [self.estimable(row) for row in rows]
        return answer

    def contrast(self, row: np.ndarray) -> Interval:
        """A linear combination of the coding's coefficients."""
        return self.contrasts_of([row])[0]

    def contrasts_of(self, rows: Sequence[np.ndarray] | np.ndarray) -> list[Interval]:
        """Many combinations at once."""
        return self.contrasts.intervals(self.whole(rows))

    def changes(
        self, after: Sequence[Mapping[str, Level]], before: Sequence[Mapping[str, Level]] | None = None
    ) -> list[Interval]:
        """The differences between configurations, or their means without `before`; factors that both omit are at their
        average. Unlike a combination of coefficients, a difference between whole configurations also contains what the
        model has no coefficients for, and its interval allows for that.
        """
        rows = self.coding.rows(after)
        if before is not None:
            rows = rows - self.coding.rows(before)
        whole = self.whole(rows)
        return self.contrasts.intervals(whole, self.triples.squares(whole, after, before))

    @functools.cached_property
    def triples(self) -> Triples:
        """What is not in the model of three factors at once."""
        return Triples(self.coding, self.sample, self.contrasts, self.real_pairs)

    def real_pairs(self) -> list[frozenset[str]]:
        """The pairs that certainly interact."""
        return [frozenset((p.a, p.b)) for p in self.interactions() if p.q <= _Q] if self.coding.pairs else []

    def whole(self, rows: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Combinations of the treatments' coefficients as combinations of all parameters."""
        asked = np.asarray(rows, dtype=float).reshape(-1, len(self.kept))
        answer: np.ndarray = np.hstack([asked[:, self.kept], np.zeros((len(asked), len(self.params) - self._size))])
        return answer

    def contrasts_freed(self, rows: Mapping[tuple[str, str], np.ndarray]) -> dict[tuple[str, str], list[Interval]]:
        """Combinations, by pair of the background, each in the model in which that pair is a parameter; without the
        pairs that the runs do not show.
        """
        position = np.cumsum(self.kept) - 1
        columns = {pair: position[list(own)].tolist() for pair, own in selection.pair_columns(self.coding).items()}
        asked = {pair: self.whole(its) for pair, its in rows.items() if pair in columns}
        return selection.freed(self.contrasts, {pair: columns[pair] for pair in asked}, asked)

    def df_quantile(self, probability: float) -> float:
        """The quantile of t at the fit's degrees of freedom."""
        from scipy import stats

        return float(stats.t.ppf(probability, self.df))

    def effects(self, context: Context = "average") -> list[Effect]:
        """The effect of every factor: on average over the others, at the baseline, the best, or a configuration."""
        from broadleaf_lab.analysis.effects import effects

        return effects(self, context)

    def differences_us(self, context: Context = "average") -> list[DifferenceUs]:
        """The same in microseconds per task."""
        from broadleaf_lab.analysis.effects import differences_us

        return differences_us(self, context)

    def interactions(self, rope_pct: float = 1.0) -> list[Interaction]:
        """Every pair that could be estimated, with its class and its q value."""
        from broadleaf_lab.analysis.interactions import interactions

        if rope_pct not in self._pairs:
            self._pairs[rope_pct] = interactions(self, rope_pct)
        return self._pairs[rope_pct]

    def _repr_html_(self) -> str:
        from broadleaf_lab.analysis.inline import fit_html

        return fit_html(self)

    def predict(self, configs: Sequence[Mapping[str, Level]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Microseconds per task of configurations with the 95 % interval of that mean, at the mean block and time."""
        told = self.changes(configs)
        centre, low, high = (
            scales.to_us(np.array([getattr(it, name) for it in told]), self.scale)
            for name in ("estimate", "low", "high")
        )
        return (centre, high, low) if self.scale == "rate" else (centre, low, high)

    def bootstrap(self, rng: np.random.Generator, draws: int) -> np.ndarray:
        """Treatment coefficients (kept x draws) drawn from Student's distribution around the estimate with the robust
        covariance. This gives what refitting to resampled runs would, at no cost per run.
        """
        size, basis = np.linalg.eigh(self.covariance[: self._size, : self._size])
        root = basis * np.sqrt(np.maximum(size, 0.0))
        spread = np.sqrt(self.df / rng.chisquare(self.df, draws))
        drawn: np.ndarray = self.treatment_params[:, None] + root @ rng.standard_normal((self._size, draws)) * spread
        return drawn

    def draws(self, configs: Sequence[Mapping[str, Level]], rng: np.random.Generator, number: int) -> np.ndarray:
        """What each configuration (a row) may be, on the fit's scale: `number` draws, each of all of them at once."""
        rows = self.coding.rows(configs)
        drawn: np.ndarray = rows[:, self.kept] @ self.bootstrap(rng, number)
        drawn += self.triples.draws(self.whole(rows), configs, rng, number)
        return drawn

    # --- the data --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def measured_configs(self) -> list[dict[str, Level]]:
        """Every configuration that was run, once each."""
        return self.sample.cells.configs()

    @functools.cached_property
    def best_config(self) -> dict[str, Level]:
        """The configuration with the fastest prediction, among those that were run.

        Coefficients count less the less certain they are, and nothing within two standard errors: the fastest of many
        uncertain predictions is the one that noise favours most, and its effects would look larger than they are.
        """
        size, square = self.treatment_params, np.diag(self.covariance)[: self._size]
        part = np.maximum(1 - _CERTAIN**2 * square / np.maximum(size**2, 1e-300), 0.0)
        part[0] = 1.0
        mean = self.linear.rows @ (part * size)
        best = int(np.argmax(mean) if self.scale == "rate" else np.argmin(mean))
        cells = self.sample.cells
        return {n: known[c] for n, known, c in zip(cells.names, cells.levels, cells.codes[best], strict=True)}

    @functools.cached_property
    def lack_of_fit(self) -> LackOfFit | None:
        """Whether the model misses something, as far as replicates show; None if nothing repeats."""
        # Replicates are compared with a model in which all runs have the same weight.
        linear = self.linear.unweighted
        if linear.blocks == "random":
            linear = linear.with_ratio(self.linear.ratio)
        params = linear.least_squares(self.estimate.pseudo)
        rest = linear.transform(self.estimate.pseudo) - linear.transform(linear.values(params))
        return misfit.lack_of_fit(linear, self.estimate.pseudo, float(rest @ rest))

    @functools.cached_property
    def tails(self) -> dict[tuple[str, Level], Tail]:
        """The slow runs of every level, which count for nothing in a robust fit."""
        return rejected.tails(self)

    @functools.cached_property
    def disowned(self) -> str | None:
        """Why nothing can be concluded from a model without pairs: replicates show that it misses something, or whole
        quadrants are far from it. None if nothing speaks against it.
        """
        if self.coding.pairs or len(self.factors) < 2:
            return None
        if self.quadrant is not None:
            return "because a model without pairs is wrong here"
        lack = self.lack_of_fit
        return "because a model without pairs misses something" if lack is not None and lack.significant else None

    @functools.cached_property
    def lambda_profile(self) -> LambdaProfile:
        """On which scale effects add up; `scale.answer` also counts the interactions on each scale."""
        return scales.profile_of(self.coding, self.sample)

    def on(self, scale: Scale) -> Fit:
        """The same model of the same runs on another scale."""
        if scale == self.scale:
            return self
        sample = self.sample.on(scale)
        options = replace(self.options, blocks=self.blocks, stray={})
        if self.penalty is None:
            # Its columns do not depend on the scale.
            return Fit(sample, self.coding, options, linear=self.linear.unweighted)
        return _selected(sample, self.coding, options, [])


def fit(
    factors: Sequence[Factor],
    frame: pd.DataFrame,
    scale: Literal["auto"] | Scale = "log",
    pairs: bool | Sequence[tuple[str, str]] = True,
    blocks: Literal["auto"] | Blocks = "auto",
    drift: bool | Literal["line"] = True,
    covariance: Covariance = "HC2",
    triples: bool = True,
    robust: bool = True,
    alpha: float = 0.05,
) -> Fit:
    """Fits a model to runs in the form that `frame.load` returns.

    `scale` "auto" is the one on which effects are most nearly additive. `blocks` "auto" gives every block its own mean
    if at least twice as many degrees of freedom as treatment parameters remain, otherwise a random one. A number with
    up to six levels has an effect for each; one with more has a spline, unless that misses something. If the runs do
    not suffice for all pairs at once, those that are certainly real are in the model, and each of the others is
    estimated beside it. If replicates show that pairs do not suffice, `triples` adds those of factors whose three pairs
    are all significant.

    `drift` removes what changes with time: a smooth curve, or a line. `robust` is Tukey's bisquare (MM): runs far from
    the model do not count; without it, or if these runs gather where two levels meet whose pair is not in the model,
    least squares. Intervals use
    HC2 errors, which allow for unequal variances, with the degrees of freedom of each contrast's own error; they miss
    in `alpha` of all cases. Raises AnalysisError if the runs cannot show the main effects.
    """
    if frame.empty:
        raise AnalysisError("no runs to fit: do some runs first (`broadleaf-lab run`).")
    frame = frames.designed(frame)
    levels = frames.measured(frame, factors)
    sample = Sample.of(frame, factors, "log" if scale == "auto" else scale, drift)
    stray = curves.splines(factors, sample, levels, blocks)
    options = FitOptions(blocks, covariance, robust, alpha, stray)
    full = Coding(factors, pairs, (), levels, stray)
    if scale == "auto":
        sample = sample.on(scales.profile_of(full, sample).best)
    notes: list[str] = []
    if full.pairs and not selection.suffices(full, sample):
        return _selected(sample, full, options, notes)
    made = Fit(sample, full, options, tuple(notes))
    if options.robust and (where := rejected.quadrant(made)) is not None:
        notes.append(where.sentence)
        made = Fit(sample, full, replace(options, robust=False), tuple(notes))
        made.quadrant = where
    lack = made.lack_of_fit
    if lack is None or not lack.significant:
        return made
    notes.append(f"Higher-order interactions remain: lack of fit F = {lack.f:.2f}, p = {lack.p:.2g}.")
    coding = full
    found = _triples(made) if triples and full.pairs else []
    if found and made.df > 3 * len(found):
        wider = full.but(full.pairs, found)
        whole = sample.linear(wider, sample.choose_blocks(options.blocks, len(wider.column_names)))
        # A fraction of all configurations cannot distinguish every triple from the rest.
        told = [t.factors for t in wider.terms if len(t.factors) == 3 and whole.kept[list(t.columns)].all()]
        if told and whole.df > whole.size // 4:
            coding = full.but(full.pairs, [(a, b, c) for a, b, c in told])
            notes.append("Added three-way terms: " + ", ".join(" x ".join(names) for names in told) + ".")
    if coding is full:
        made.notes = tuple(notes)
        return made
    return Fit(sample, coding, made.options, tuple(notes))


def _selected(sample: Sample, full: Coding, options: FitOptions, notes: list[str]) -> Fit:
    """The model of main effects and the pairs that are certainly real."""
    mains = full.but(False)
    if sample.told < len(mains.column_names) + 3:
        made = f"{len(sample.y)} runs{' two at once' if sample.paired else ''}"
        raise AnalysisError(f"{made} cannot determine {len(mains.column_names) - 1} main effects: make more runs.")
    chosen = selection.choose_pairs(full, sample, options.blocks, options.robust)
    return Fit(sample, full, options, (*notes, chosen.sentence), penalty=chosen.penalty, strays=chosen.strays)


def _triples(made: Fit) -> list[tuple[str, str, str]]:
    significant = set(made.real_pairs())
    names = [f.name for f in made.factors]
    found = [
        (a, b, c)
        for a, b, c in itertools.combinations(names, 3)
        if {frozenset((a, b)), frozenset((a, c)), frozenset((b, c))} <= significant
    ]
    return found


def of_study(
    study: StudySpec, scale: Literal["auto"] | Scale = "log", response: str = "time_per_task_us", **options: Any
) -> Fit:
    """The model over the factors that were varied in a study's runs. `options` are those of `fit`."""
    runs = frames.load(study.runs_path, study.factors, None, response)
    return fit([f for f in study.factors if runs[f.name].nunique() > 1], runs, scale, **options)
