"""Everything the figures of a study are drawn from, as plain tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd


@dataclass(frozen=True, slots=True)
class Roles:
    """Which factors play the parts that the canon of figures has.

    `first` and `second` do most, and the same work where such a pair exists; `flip` helps on one end of the speed range
    and hinders on the other, `flips` are all that do; `puzzle` is good or bad depending on `moderator`. None where
    nothing fits.
    """

    first: str | None = None
    second: str | None = None
    flip: str | None = None
    puzzle: str | None = None
    moderator: str | None = None
    flips: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A fitted model as figures need it: a table with actual_us and predicted_us, its R², and what it is in words."""

    table: pd.DataFrame
    r_squared: float
    words: str


@dataclass(frozen=True, slots=True)
class Components:
    """Principal components of the paths: tables as `pca.biplot` and `pca.scree` take them."""

    scores: pd.DataFrame
    loadings: pd.DataFrame
    variance: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Evidence:
    """The tables, named after the figures that take them; None where the runs do not give one, and then `reasons` says
    why under the field's name. `path_sources` says of greedy and nice where their times come from, `failure_note` which
    runs no figure of times has."""

    roles: Roles
    bools: frozenset[str]
    rope_pct: float
    deltas: pd.DataFrame | None = None
    means: pd.DataFrame | None = None
    means_kept: pd.DataFrame | None = None
    kept_words: str = ""
    greedy: pd.DataFrame | None = None
    nice: pd.DataFrame | None = None
    path_sources: Mapping[str, str] = field(default_factory=dict)
    main_model: Model | None = None
    pair_model: Model | None = None
    coefficients: pd.DataFrame | None = None
    pairs: pd.DataFrame | None = None
    components: Components | None = None
    convergence: pd.DataFrame | None = None
    drift: pd.DataFrame | None = None
    cells: pd.DataFrame | None = None
    levels: pd.DataFrame | None = None
    terms: pd.DataFrame | None = None
    placebo: pd.DataFrame | None = None
    failures: pd.DataFrame | None = None
    failure_note: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)
