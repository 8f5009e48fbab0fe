"""Choosing the subjects of the figures that show one or two factors."""

from __future__ import annotations

import numpy as np
import pandas as pd

from broadleaf_lab.report.figures.effects.strip import flipping
from broadleaf_lab.report.figures.evidence import Roles


def choose(
    deltas: pd.DataFrame | None, savings: pd.Series | None, pairs: pd.DataFrame | None, pairs_us: pd.DataFrame | None
) -> Roles:
    """The roles that a study's tables suggest.

    `deltas` has the columns of deltas.csv, preferably from the model, because noise in a measured `before` looks like a
    dependence on speed; `savings` is the mean change of every factor in microseconds, by name. `pairs` (of ratios) has
    a, b, estimate, q, kind, a_flips and b_flips (whether each changes sign with the other); `pairs_us` (of
    microseconds) a, b, estimate and q. A factor without deltas has no role.
    """
    if deltas is None or deltas.empty or savings is None or savings.empty:
        return Roles()
    drawn = set(deltas["treatment"].unique())
    ranked = [str(name) for name in savings.sort_values().index if name in drawn]
    if not ranked:
        return Roles()
    first, second = _same_work(pairs_us, ranked, savings) or (ranked[0], ranked[1] if len(ranked) > 1 else None)
    rest = [name for name in ranked if name not in (first, second)]
    flips = flipping(deltas, _changing_sides(pairs))
    flip = next((name for name in flips if name in rest), None) or _largest_difference(deltas, rest)
    puzzle, moderator = _puzzle(pairs, savings, [name for name in rest if name != flip])
    return Roles(first, second, flip, puzzle, moderator, tuple(flips))


def _changing_sides(pairs: pd.DataFrame | None) -> set[str]:
    """Factors that are proven to help at one level of another and to hinder at its other level."""
    if pairs is None:
        return set()
    proven = pairs[pairs["kind"] == "sign-flip"]
    return {*proven["a"][proven["a_flips"]], *proven["b"][proven["b_flips"]]}


def _same_work(pairs_us: pd.DataFrame | None, ranked: list[str], savings: pd.Series) -> tuple[str, str] | None:
    """The two treatments that reduce each other's saving most, the larger saver first."""
    if pairs_us is None:
        return None
    savers = [name for name in ranked if savings[name] < 0]
    known = pairs_us[pairs_us["a"].isin(savers) & pairs_us["b"].isin(savers)]
    known = known[(known["q"] <= 0.05) & (known["estimate"] > 0)]
    if known.empty:
        return None
    top = known.loc[known["estimate"].idxmax()]
    a, b = sorted((str(top["a"]), str(top["b"])), key=lambda name: float(savings[name]))
    return a, b


def _largest_difference(deltas: pd.DataFrame, names: list[str]) -> str | None:
    """The factor whose effect differs most between slow and fast contexts, relative to the error of the difference."""
    found = []
    for name in names:
        rows = deltas[deltas["treatment"] == name]
        if len(rows) < 8:
            continue
        ratio = np.log(rows["after_us"] / rows["before_us"])
        slow = rows["before_us"] >= rows["before_us"].median()
        error = float(np.sqrt(ratio[slow].var() / slow.sum() + ratio[~slow].var() / max(int((~slow).sum()), 1)))
        if error > 0:
            found.append((abs(float(ratio[slow].mean() - ratio[~slow].mean())) / error, name))
    return max(found)[1] if found else (names[0] if names else None)


def _puzzle(pairs: pd.DataFrame | None, savings: pd.Series, names: list[str]) -> tuple[str | None, str | None]:
    """The factor with the clearest dependence on another one, sign changes first, and that other one."""
    if pairs is None or pairs.empty or not names:
        return None, None
    own = pairs[(pairs["a"].isin(names) | pairs["b"].isin(names)) & (pairs["q"] <= 0.05)]
    if own.empty:
        return None, None
    flips = own["kind"] == "sign-flip" if "kind" in own.columns else pd.Series(False, index=own.index)
    ranked = own.assign(flips=flips, size=own["estimate"].abs()).sort_values(
        ["flips", "q", "size"], ascending=[False, True, False]
    )
    top = ranked.iloc[0]
    a, b = str(top["a"]), str(top["b"])
    # Of the two, the one with the smaller average effect is the puzzling one.
    candidates = [name for name in (a, b) if name in names]
    puzzle = min(candidates, key=lambda name: abs(float(savings.get(name, 0.0))))
    return puzzle, b if puzzle == a else a
