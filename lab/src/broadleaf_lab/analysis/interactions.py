"""How factors depend on each other, pair by pair: sizes, tests, and a class in words."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from broadleaf_lab.analysis.effects import levels_of
from broadleaf_lab.analysis.multiplicity import pair_rates
from broadleaf_lab.spec.factors import Level

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.contrasts import Interval
    from broadleaf_lab.analysis.model.fit import Fit

Kind = Literal["additive", "either-or", "antagonistic", "synergistic", "sign-flip", "undetermined"]
_Q = 0.05
_LITTLE = 0.2
"""The second of two redundant factors adds less than this part of what it does alone."""
_MAX_KEPT = 0.5
"""Or each of the two keeps less than this part of its effect once the other is applied: whichever comes first, the
other is not worth much any more."""


@dataclass(frozen=True, slots=True)
class Interaction:
    """The difference of differences of two factors: how much the effect of one changes when the other is applied.

    `estimate` and its interval are on the fit's scale, with the other factors at their average. `a_alone` is the effect
    of a without b, `a_with_b` the effect with it, `joint` the effect of both. `q` is the false discovery rate over all
    pairs.

    `kind`: "additive" if the interval lies within the range of no practical difference; "sign-flip" if one of them is
    proven to help without the other and to hinder with it, or the reverse; "either-or" if both are proven alone and the
    second adds nothing or less than a fifth of its effect, or each removes more than half of the other's;
    "synergistic" and "antagonistic" if together they do more or less than the sum; otherwise "undetermined".
    """

    a: str
    b: str
    a_level: Level
    b_level: Level
    estimate: float
    ci_low: float
    ci_high: float
    p: float
    q: float
    kind: Kind
    se: float
    a_alone: Interval
    a_with_b: Interval
    b_alone: Interval
    b_with_a: Interval
    joint: Interval
    unit: str

    @property
    def pointless(self) -> str:
        """For an either-or pair, the one that adds nothing to the other, while the other still adds much to it; empty
        if either one is enough.
        """
        kept_of_a = abs(self.a_with_b.estimate) / max(abs(self.a_alone.estimate), 1e-300)
        kept_of_b = abs(self.b_with_a.estimate) / max(abs(self.b_alone.estimate), 1e-300)
        if max(kept_of_a, kept_of_b) < _MAX_KEPT:
            return ""
        return self.b if kept_of_b < kept_of_a else self.a

    @property
    def sentence(self) -> str:
        """The finding in words."""
        if self.kind == "either-or" and (idle := self.pointless):
            busy = self.a if idle == self.b else self.b
            return f"{busy} makes {idle} pointless: with it, {idle} adds next to nothing, but not the reverse."
        words = {
            "additive": "add up: neither changes what the other does",
            "either-or": "do the same work: either one is enough",
            "antagonistic": "do less together than the sum of their separate effects",
            "synergistic": "do more together than the sum of their separate effects",
            "sign-flip": "depend on each other so much that one of them changes sides",
            "undetermined": "may interact, but this is not yet known",
        }
        return f"{self.a} and {self.b} {words[self.kind]}."


def interactions(fit: Fit, rope_pct: float = 1.0) -> list[Interaction]:
    """Every pair of levels that the runs can show, each relative to the defaults, strongest evidence first."""
    from broadleaf_lab.analysis.model.scale import UNITS

    rope = practical(fit, rope_pct)
    found = _told(fit, UNITS[fit.scale])
    # The levels of a pair share the runs of their defaults, so their errors are correlated: each test is corrected for
    # all levels of its pair (Bonferroni).
    levels = Counter((pair.a, pair.b) for pair in found)
    # If fewer than 5 % of intervals may miss, correspondingly fewer findings may be false at q = 5 %.
    qs = pair_rates([min(1.0, pair.p * levels[pair.a, pair.b] * _Q / fit.alpha) for pair in found])
    classed = [
        replace(pair, q=q, kind=classify(fit, replace(pair, q=q), rope)) for pair, q in zip(found, qs, strict=True)
    ]
    return sorted(classed, key=lambda pair: (pair.q, -abs(pair.estimate)) if pair.q == pair.q else (2.0, 0.0))


def _told(fit: Fit, unit: str) -> list[Interaction]:
    """Every two levels of a pair that the runs can show, without q values and classes."""
    by_name = {f.name: f for f in fit.factors}
    asked = [
        (a, b, a_level, b_level)
        for a, b in fit.coding.pairs
        for a_level, b_level in itertools.product(levels_of(fit, by_name[a]), levels_of(fit, by_name[b]))
    ]
    found = []
    for start in range(0, len(asked), _AT_ONCE):
        here = asked[start : start + _AT_ONCE]
        for (a, b, a_level, b_level), answer in zip(here, _answers(fit, here), strict=True):
            if answer is not None:
                g, a_alone, a_with_b, b_alone, b_with_a, joint = answer
                found.append(
                    Interaction(
                        a, b, a_level, b_level, estimate=g.estimate, ci_low=g.low, ci_high=g.high, p=g.p,
                        q=float("nan"), kind="undetermined", se=g.se, a_alone=a_alone, a_with_b=a_with_b,
                        b_alone=b_alone, b_with_a=b_with_a, joint=joint, unit=unit,
                    )
                )  # fmt: skip
    return found


_AT_ONCE = 20
"""Answering many at once is faster; each takes memory for every block of runs."""


def _answers(fit: Fit, asked: Sequence[tuple[str, str, Level, Level]]) -> list[list[Interval] | None]:
    """For every two levels: how much one changes the effect of the other, both alone and with each other, and together;
    None if the runs do not tell.
    """
    default = {f.name: f.default for f in fit.factors}
    corners = fit.coding.rows(
        [{a: x, b: y} for a, b, a_level, b_level in asked for x in (default[a], a_level) for y in (default[b], b_level)]
    ).reshape(len(asked), 4, -1)
    none, only_b, only_a, both = corners.transpose(1, 0, 2)
    rows = np.stack(
        [both - only_a - only_b + none, only_a - none, both - only_b, only_b - none, both - only_a, both - none], axis=1
    )
    beside: dict[tuple[str, str], list[int]] = {}
    inside: list[int] = []
    for index, (a, b, *_) in enumerate(asked):
        if (a, b) not in fit.background:
            if _shown(fit, rows[index, 0]):
                inside.append(index)
        elif not np.isnan(rows[index, 0]).any():
            beside.setdefault((a, b), []).append(index)
    found: list[list[Interval] | None] = [None] * len(asked)
    freed = fit.contrasts_freed({pair: rows[its].reshape(-1, rows.shape[2]) for pair, its in beside.items()})
    for indices, told in (
        (inside, fit.contrasts_of(rows[inside].reshape(-1, rows.shape[2]))),
        *((beside[pair], told) for pair, told in freed.items()),
    ):
        for place, index in enumerate(indices):
            found[index] = told[6 * place : 6 * place + 6]
    return found


def practical(fit: Fit, rope_pct: float) -> float:
    """The largest change on the fit's scale that counts as no practical difference."""
    if fit.scale == "log":
        return float(np.log1p(rope_pct / 100))
    return abs(float(fit.treatment_params[0])) * rope_pct / 100


def _shown(fit: Fit, row: np.ndarray) -> bool:
    if np.isnan(row).any():
        return False
    used = np.flatnonzero(row)
    return bool(len(used)) and bool(fit.kept[used].all())


def classify(fit: Fit, pair: Interaction, rope: float) -> Kind:
    """The class of a pair; `rope` on the fit's scale."""
    equivalent = fit.df_quantile(0.95) * pair.se
    if pair.estimate - equivalent > -rope and pair.estimate + equivalent < rope:
        return "additive"
    if not pair.q <= _Q:
        return "undetermined"
    if _opposite(pair.a_alone, pair.a_with_b) or _opposite(pair.b_alone, pair.b_with_a):
        return "sign-flip"
    if _redundant(fit, pair, rope):
        return "either-or"
    signs = np.sign([pair.a_alone.estimate, pair.b_alone.estimate])
    if signs[0] == signs[1]:
        return "synergistic" if np.sign(pair.estimate) == signs[0] else "antagonistic"
    # One helps and one hinders: together better than the sum is synergy.
    better = pair.estimate > 0 if fit.scale == "rate" else pair.estimate < 0
    return "synergistic" if better else "antagonistic"


def _opposite(one: Interval, other: Interval) -> bool:
    return (one.high < 0 < other.low) or (other.high < 0 < one.low)


def _proven(it: Interval) -> bool:
    return it.high < 0 or it.low > 0


def _redundant(fit: Fit, pair: Interaction, rope: float) -> bool:
    alone = (pair.a_alone, pair.b_alone)
    if not all(map(_proven, alone)) or np.sign(alone[0].estimate) != np.sign(alone[1].estimate):
        return False
    stronger_is_a = abs(pair.a_alone.estimate) >= abs(pair.b_alone.estimate)
    second, solo = (pair.b_with_a, pair.b_alone) if stronger_is_a else (pair.a_with_b, pair.a_alone)
    # The joint effect minus the better single one is what the second adds.
    half = fit.df_quantile(0.95) * second.se
    if -rope < second.estimate - half and second.estimate + half < rope:
        return True
    if abs(second.estimate) < _LITTLE * abs(solo.estimate):
        return True
    kept_of_a = pair.a_with_b.estimate / pair.a_alone.estimate
    kept_of_b = pair.b_with_a.estimate / pair.b_alone.estimate
    return max(kept_of_a, kept_of_b) < _MAX_KEPT
