"""Choosing the subjects of the figures that show one or two factors."""

from __future__ import annotations

import numpy as np
import pandas as pd

from broadleaf.lab.figures.evidence import Roles
from broadleaf.lab.figures.strip import flipping


def choose(deltas: pd.DataFrame | None, means: pd.DataFrame | None, pairs: pd.DataFrame | None) -> Roles:
    """The roles that a study's tables suggest.

    `deltas` is deltas.csv; `means` has name and mean_us of every factor; `pairs` has a, b, estimate, q and kind. Factors
    that have no deltas are not chosen.
    """
    if deltas is None or deltas.empty or means is None or means.empty:
        return Roles()
    drawn = set(deltas["treatment"].unique())
    savings = means.set_index("name")["mean_us"]
    ranked = [name for name in savings.sort_values().index if name in drawn]
    if not ranked:
        return Roles()
    known = pairs[pairs["a"].isin(drawn) & pairs["b"].isin(drawn)] if pairs is not None else None
    first, second = _same_work(known, savings) or (ranked[0], ranked[1] if len(ranked) > 1 else None)
    rest = [name for name in ranked if name not in (first, second)]
    flip = next((name for name in flipping(deltas) if name in rest), None) or _most_uneven(deltas, rest)
    puzzle, moderator = _puzzle(known, savings, [name for name in rest if name != flip])
    return Roles(first, second, flip, puzzle, moderator)


def _same_work(pairs: pd.DataFrame | None, savings: pd.Series) -> tuple[str, str] | None:
    """The strongest either-or pair, the larger saver first."""
    if pairs is None or "kind" not in pairs.columns:
        return None
    either = pairs[pairs["kind"] == "either-or"]
    if either.empty:
        return None
    top = either.loc[either["estimate"].abs().idxmax()]
    a, b = sorted((str(top["a"]), str(top["b"])), key=lambda name: float(savings.get(name, 0.0)))
    return a, b


def _most_uneven(deltas: pd.DataFrame, names: list[str]) -> str | None:
    """The factor whose effect differs most between slow and fast contexts, by their difference over its error."""
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
    """The factor with the clearest dependence on another one, sign flips first, and that other one."""
    if pairs is None or pairs.empty or not names:
        return None, None
    own = pairs[pairs["a"].isin(names) | pairs["b"].isin(names)]
    if own.empty:
        return None, None
    flips = own["kind"] == "sign-flip" if "kind" in own.columns else pd.Series(False, index=own.index)
    ranked = own.assign(flips=flips, size=own["estimate"].abs()).sort_values(["flips", "q", "size"], ascending=[False, True, False])
    top = ranked.iloc[0]
    a, b = str(top["a"]), str(top["b"])
    # Of the two, the one that on average does less is the puzzling one.
    candidates = [name for name in (a, b) if name in names]
    puzzle = min(candidates, key=lambda name: abs(float(savings.get(name, 0.0))))
    return puzzle, b if puzzle == a else a
