"""How estimates settle as runs arrive, and when to stop: by precision, never by a p value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from broadleaf_lab.analysis.model.coding import Coding
from broadleaf_lab.analysis.model.scale import Scale
from broadleaf_lab.analysis.verdict import MAX_TIMES_MORE
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.spec.factors import Factor

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.fit import Fit

_LARGE = 250
"""A model of more columns takes seconds to fit."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The widest half-widths of the 95 % intervals, as logarithms of ratios, beside the widths at which to stop; and
    about how many more runs that takes (0 if `reached`).
    """

    reached: bool
    main_half_width: float
    main_target: float
    pair_half_width: float
    pair_target: float
    widest_main: str
    widest_pair: str
    more_runs: int
    runs: int

    @property
    def sentence(self) -> str:
        """The state in words."""
        if self.reached:
            return "Precise enough: more runs would not change a verdict."
        known, wanted = (100 * math.expm1(width) for width in (self.main_half_width, self.main_target))
        width = f"{self.widest_main} known to {known:.1f} % (wanted {wanted:.1f} %)"
        return f"Not yet precise: {width}; {self.advice}."

    @property
    def advice(self) -> str:
        """What would help: a number of runs, unless that is beyond reach."""
        if self.more_runs <= MAX_TIMES_MORE * self.runs:
            return f"about {self.more_runs} more runs"
        return (
            "more runs alone are not enough: let each run take longer, quieten the machine, drop factors, or raise "
            "rope_pct"
        )


def precision(fit: Fit, rope_pct: float = 1.0) -> Precision:
    """Whether to stop: all average effects are known to half of the practical difference, and pairs to twice it."""
    d = math.log1p(rope_pct / 100)
    level = 1.0 if fit.scale == "log" else abs(float(fit.treatment_params[0]))
    mains = [((e.ci_high - e.ci_low) / 2 / level, e.factor) for e in fit.effects()]
    pairs = [((i.ci_high - i.ci_low) / 2 / level, f"{i.a} x {i.b}") for i in fit.interactions()]
    main, main_name = max(mains, default=(math.inf, ""))
    pair, pair_name = max(pairs, default=(0.0, ""))
    short = max(main / (d / 2), pair / (2 * d))
    more = math.ceil(fit.n_runs * (short**2 - 1)) if math.isfinite(short) and short > 1 else 0
    return Precision(short <= 1, main, d / 2, pair, 2 * d, main_name, pair_name, more, fit.n_runs)


def convergence(
    factors: Sequence[Factor],
    frame: pd.DataFrame,
    scale: Scale = "log",
    points: int | None = None,
) -> pd.DataFrame:
    """Every average effect as it was known after the first n runs: columns n_runs, factor, level, estimate, ci_low,
    ci_high, unit. `points` is the number of values of n, by default 12, or 6 for a large
    model.

    The last rows are those of all runs. Pairs are in the model at every point or at none: at every one if half of the
    runs suffice for them, because dropping them on the way would move the estimates.
    """
    from broadleaf_lab.analysis.model.fit import fit

    size = len(Coding(factors, True).column_names)
    with_pairs = 4 * size <= len(frame)
    min_runs = 2 * size if with_pairs else 2 * (1 + sum(len(f.others) for f in factors)) + 4
    min_runs = min(max(min_runs, 12), len(frame))
    if points is None:
        points = 6 if with_pairs and size > _LARGE else 12
    counts = np.unique(np.round(np.geomspace(min_runs, len(frame), points)).astype(int))
    rows = []
    for count in counts:
        try:
            made = fit(
                factors, frame.iloc[:count].reset_index(drop=True), scale, with_pairs, blocks="fixed", triples=False,
            )  # fmt: skip
        except AnalysisError:
            continue
        for e in made.effects():
            rows.append((int(count), e.factor, e.level, e.estimate, e.ci_low, e.ci_high, e.unit))
    if not rows:
        raise AnalysisError(f"{len(frame)} runs are too few for an estimate: run more.")
    return pd.DataFrame(rows, columns=["n_runs", "factor", "level", "estimate", "ci_low", "ci_high", "unit"])
