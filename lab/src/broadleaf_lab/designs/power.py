"""How many runs an effect needs, and which effect some runs can show.

For orthogonal designs of off/on factors whose runs spread by s (standard deviation of ln of the time):
SE of a main effect 2s/sqrt(N), of a pair interaction 4s/sqrt(N), hence N = c s^2 (z_{1-alpha/2} + z_{power})^2 / d^2
with c = 4 and 16 and d = ln(1 + effect). For a plan, the standard errors come from its own runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

from broadleaf_lab.errors import DesignError
from broadleaf_lab.spec.factors import Factor

if TYPE_CHECKING:
    from broadleaf_lab.designs.plan import Plan

Kind = Literal["main", "pair"]
_FACTOR_OF_SE: dict[Kind, float] = {"main": 2.0, "pair": 4.0}


def runs_needed(
    effect_pct: float,
    noise_pct: float,
    kind: Kind = "main",
    power: float = 0.8,
    alpha: float = 0.05,
    comparisons: int = 1,
) -> int:
    """Number of runs after which an effect of `effect_pct` is detected with probability `power`, if `alpha` is shared
    by `comparisons` tests (Bonferroni).
    """
    d, s = _log(effect_pct), noise_pct / 100
    return math.ceil((_FACTOR_OF_SE[kind] * s * _z(power, alpha, comparisons) / d) ** 2)


def detectable_pct(
    runs: int,
    noise_pct: float,
    kind: Kind = "main",
    power: float = 0.8,
    alpha: float = 0.05,
    comparisons: int = 1,
) -> float:
    """The smallest effect, in per cent, that `runs` runs show with probability `power`."""
    return smallest_pct(_FACTOR_OF_SE[kind] * noise_pct / 100 / math.sqrt(runs), power, alpha, comparisons)


def smallest_pct(se: float, power: float = 0.8, alpha: float = 0.05, comparisons: int = 1) -> float:
    """The smallest effect, in per cent, detected with probability `power` if the standard error of its log is `se`."""
    return 100 * math.expm1(se * _z(power, alpha, comparisons))


def power_of(
    effect_pct: float,
    se: float,
    residual_df: float = math.inf,
    alpha: float = 0.05,
    comparisons: int = 1,
) -> float:
    """The probability that an effect is detected if its logarithm has the standard error `se` from a fit with
    `residual_df` degrees of freedom: two-sided t test, so it is `alpha` for no effect.
    """
    shift = _log(effect_pct) / se
    level = 1 - alpha / comparisons / 2
    if math.isinf(residual_df):
        normal = NormalDist()
        critical = normal.inv_cdf(level)
        return 1 - normal.cdf(critical - shift) + normal.cdf(-critical - shift)
    from scipy import stats

    critical = float(stats.t.ppf(level, residual_df))
    return float(stats.nct.sf(critical, residual_df, shift) + stats.nct.cdf(-critical, residual_df, shift))


def standard_error(runs: int, noise_pct: float, kind: Kind = "main") -> float:
    """Standard error of the logarithm of an effect, in an orthogonal design."""
    return _FACTOR_OF_SE[kind] * noise_pct / 100 / math.sqrt(runs)


def _z(power: float, alpha: float, comparisons: int) -> float:
    if not 0 < power < 1 or not 0 < alpha < 1 or comparisons < 1:
        raise DesignError("power and alpha must be between 0 and 1, and comparisons at least 1.")
    normal = NormalDist()
    return normal.inv_cdf(1 - alpha / comparisons / 2) + normal.inv_cdf(power)


def _log(effect_pct: float) -> float:
    if effect_pct <= -100:
        raise DesignError(f"an effect of {effect_pct:g} % leaves no time at all.")
    return math.log1p(effect_pct / 100)


@dataclass(frozen=True, slots=True)
class Precision:
    """What a plan will show about one effect: from its default to its treated level (for a pair, the difference of such
    differences), averaged over the other factors, as a ratio. `se` is that of its logarithm.
    """

    name: str
    kind: Kind
    se: float
    residual_df: int


def precision(plan: Plan, factors: Sequence[Factor], noise_pct: float, pairs: bool = True) -> list[Precision]:
    """The standard errors that the fit of main effects and pairs, with a mean for each block, will have on this plan's
    runs. Effects that its runs cannot show have an infinite one. Without `pairs`, or if there are too few runs for
    them, only those of the main effects."""
    import itertools

    import numpy as np

    from broadleaf_lab.designs.terms import Terms, independent

    rows = plan.rows
    blocks = np.array([row.block for row in rows])
    terms = Terms(factors, pairs=pairs)
    configs = [row.config for row in rows]
    if pairs and len(rows) < len(terms) + len(set(blocks.tolist())) + 1:
        return precision(plan, factors, noise_pct, pairs=False)
    matrix = terms.matrix(configs)[:, 1:]
    centred = (
        matrix
        - np.array([matrix[blocks == b].mean(axis=0) for b in sorted(set(blocks.tolist()))])[
            np.searchsorted(sorted(set(blocks.tolist())), blocks)
        ]
    )
    kept = independent(centred.T @ centred, (matrix**2).sum(axis=0))
    df = max(len(rows) - int(kept.sum()) - len(set(blocks.tolist())), 0)
    cross = np.linalg.inv(centred[:, kept].T @ centred[:, kept])
    base = {f.name: f.default for f in factors}
    spread = noise_pct / 100

    def error(contrast: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        if (np.abs(contrast[~kept]) > 1e-12).any():
            return math.inf
        chosen = contrast[kept]
        return spread * math.sqrt(float(chosen @ cross @ chosen))

    found: list[Precision] = []
    names = np.array(terms.names[1:])
    for f in factors:
        ends = terms.matrix([{**base, f.name: f.on}, base])[:, 1:]
        own = names == f.name
        found.append(Precision(f.name, "main", error(np.where(own, ends[0] - ends[1], 0.0)), df))
    if pairs:
        for one, other in itertools.combinations(factors, 2):
            corners = terms.matrix(
                [
                    {**base, one.name: one.on, other.name: other.on},
                    {**base, one.name: one.on},
                    {**base, other.name: other.on},
                    base,
                ]
            )[:, 1:]
            own = names == f"{one.name}:{other.name}"
            contrast = np.where(own, corners[0] - corners[1] - corners[2] + corners[3], 0.0)
            found.append(Precision(f"{one.name}:{other.name}", "pair", error(contrast), df))
    return found
