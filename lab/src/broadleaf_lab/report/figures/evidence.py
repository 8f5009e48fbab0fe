"""Everything the figures of a study are drawn from, as plain tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd


@dataclass(frozen=True, slots=True)
class Roles:
    """Which factors play the roles in the canonical figures.

    `first` and `second` have the largest effects, and do the same work if such a pair exists; `flip` helps at one end
    of the speed range and hinders at the other, `flips` are all that do; `puzzle` is good or bad depending on
    `moderator`. None if nothing fits.
    """

    first: str | None = None
    second: str | None = None
    flip: str | None = None
    puzzle: str | None = None
    moderator: str | None = None
    flips: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A fitted model as figures need it: a table with actual_us and predicted_us, its R squared, and a description."""

    table: pd.DataFrame
    r_squared: float
    words: str


@dataclass(frozen=True, slots=True)
class Components:
    """Principal components of the paths: tables for `pca.biplot` and `pca.scree`."""

    scores: pd.DataFrame
    loadings: pd.DataFrame
    variance: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Evidence:
    """The tables, named after the figures that use them; None if the runs do not provide one, and then `reasons` says
    why under the field's name. `path_sources` says where the times of greedy and nice come from, `failure_note` which
    runs no figure of times includes.
    """

    roles: Roles
    bools: frozenset[str]
    rope_pct: float
    deltas: pd.DataFrame | None = None
    means: pd.DataFrame | None = None
    means_kept: pd.DataFrame | None = None
    kept_words: str = ""
    kept_condition: str = ""
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
    failure_note: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)
