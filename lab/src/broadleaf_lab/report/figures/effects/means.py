"""Bars of one number per factor: mean deltas, and two such numbers side by side."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from broadleaf_lab.report.figures.base import CATEGORIES, FASTER, INK, NEUTRAL, SLOWER, Figure, Unit, finish, require
from broadleaf_lab.text import listed

COLUMNS = ("name", "mean_us", "ci_low_us", "ci_high_us", "n")
EFFECTS = ("faster", "slower", "not known")
WIDTH = 560
ROW_PIXELS = 24


def means(table: pd.DataFrame, number: int, key: str, ends: tuple[float, float] | None = None) -> Figure:
    """Mean change of the time per task for each factor, the largest saving first.

    `table` has the columns of `COLUMNS`: name, mean and interval in microseconds, number of deltas. `ends` are those of
    the axis, in microseconds.
    """
    require(table, COLUMNS, key)
    table = table.sort_values("mean_us").reset_index(drop=True)
    unit = Unit.of(table["mean_us"], table["ci_low_us"], table["ci_high_us"])
    best = table[table["ci_high_us"] < 0].head(2)
    if best.empty:
        text = "No factor is proven to save time, on average over all deltas"
    else:
        text = (
            listed([f"{row.name} ({unit.shown(row.mean_us, signed=True)})" for row in best.itertuples(index=False)])
            + f" {'saves' if len(best) == 1 else 'save'} most per task, on average over all deltas"
        )
    reading = "Bar: mean of after minus before. Line: 95 % interval. Left of zero is faster; grey may be either."
    shown = table.assign(
        mean=table["mean_us"] / unit.us,
        low=table["ci_low_us"] / unit.us,
        high=table["ci_high_us"] / unit.us,
        effect=np.select([table["ci_high_us"] < 0, table["ci_low_us"] > 0], EFFECTS[:2], EFFECTS[2]),
    )
    base = alt.Chart(shown).encode(
        y=alt.Y("name:N", sort=list(shown["name"]), title=None),
        tooltip=[alt.Tooltip("name"), alt.Tooltip("mean", format=".3~g"), alt.Tooltip("n")],
    )
    bars = base.mark_bar(height={"band": 0.7}).encode(
        x=alt.X(
            "mean:Q",
            title=f"mean change of time per task ({unit.name})",
            axis=alt.Axis(format=",.6~g", tickCount=6),
            scale=_between(ends, unit),
        ),
        color=alt.Color(
            "effect:N",
            scale=alt.Scale(domain=list(EFFECTS), range=[FASTER, SLOWER, NEUTRAL]),
            title="on average",
        ),
    )
    lines = base.mark_rule(color=INK, strokeWidth=1.4).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"))
    zero = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule(color=INK).encode(x=alt.X("zero:Q"))
    chart = alt.layer(bars, lines, zero, width=WIDTH, height=alt.Step(ROW_PIXELS))
    return Figure(number, key, text, reading, finish(chart, text, reading, WIDTH + 160), table)


def side_by_side(
    left: pd.DataFrame,
    right: pd.DataFrame,
    names: tuple[str, str],
    number: int,
    key: str,
    text: str = "",
    ends: tuple[float, float] | None = None,
) -> Figure:
    """Two numbers of each factor beside each other, each with its interval; factors that have only one are omitted.

    `left` and `right` have the columns of `COLUMNS`, `names` says what they are. Unless given, the title names what
    changed sign, then what grew and shrank most.
    """
    for table in (left, right):
        require(table, COLUMNS, key)
    both = left.merge(right, on="name", suffixes=("_1", "_2"))
    both["change_us"] = both["mean_us_2"] - both["mean_us_1"]
    both = both.sort_values("mean_us_1").reset_index(drop=True)
    text = text or _what_changed(both, names)
    unit = Unit.of(both["mean_us_1"], both["mean_us_2"], both["ci_low_us_1"], both["ci_low_us_2"])
    long = pd.concat(
        pd.DataFrame(
            {
                "name": both["name"],
                "which": names[i],
                "order": i,
                "mean": both[f"mean_us_{i + 1}"] / unit.us,
                "low": both[f"ci_low_us_{i + 1}"] / unit.us,
                "high": both[f"ci_high_us_{i + 1}"] / unit.us,
            }
        )
        for i in (0, 1)
    )
    reading = f"Two bars per factor: {names[0]}, and {names[1]}, with 95 % intervals. Left of zero is faster."
    base = alt.Chart(long).encode(
        y=alt.Y("name:N", sort=list(both["name"]), title=None),
        yOffset=alt.YOffset("order:O", scale=alt.Scale(paddingOuter=0.15)),
    )
    bars = base.mark_bar().encode(
        x=alt.X(
            "mean:Q",
            title=f"change of time per task ({unit.name})",
            axis=alt.Axis(format=",.6~g", tickCount=6),
            scale=_between(ends, unit),
        ),
        color=alt.Color(
            "which:N",
            title=None,
            scale=alt.Scale(domain=list(names), range=[CATEGORIES[0], CATEGORIES[1]]),
            legend=alt.Legend(orient="top", columns=1, labelLimit=WIDTH),
        ),
        tooltip=[alt.Tooltip("name"), alt.Tooltip("which"), alt.Tooltip("mean", format=".3~g")],
    )
    lines = base.mark_rule(color=INK, strokeWidth=1.2).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"))
    zero = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule(color=INK).encode(x=alt.X("zero:Q"))
    chart = alt.layer(bars, lines, zero, width=WIDTH, height=alt.Step(ROW_PIXELS / 2, **{"for": "offset"}))
    return Figure(number, key, text, reading, finish(chart, text, reading, WIDTH + 160), both)


def _between(ends: tuple[float, float] | None, unit: Unit) -> alt.Scale:
    return alt.Scale() if ends is None else alt.Scale(domain=[end / unit.us for end in ends])


def _what_changed(both: pd.DataFrame, names: tuple[str, str]) -> str:
    """The title: sign changes with both intervals clear of zero, otherwise the largest changes."""
    clear = (both["ci_low_us_1"] * both["ci_high_us_1"] > 0) & (both["ci_low_us_2"] * both["ci_high_us_2"] > 0)
    flipped = both[clear & (both["mean_us_1"] * both["mean_us_2"] < 0)]["name"]
    differ = _differ(both)
    sized = both.assign(size=both["mean_us_2"].abs() - both["mean_us_1"].abs())
    same_sign = both["mean_us_1"] * both["mean_us_2"] > 0
    parts = [
        (f"{listed(flipped)} {'changes' if len(flipped) == 1 else 'change'} sign", len(flipped)),
        _growth(sized[differ & same_sign & (sized["size"] > 0)], "stronger", ascending=False),
        _growth(sized[differ & same_sign & (sized["size"] < 0)], "weaker", ascending=True),
    ]
    found = [text for text, count in parts if count]
    if found:
        return f"From {names[0]} to {names[1]}: " + "; ".join(found)
    text = f"No single factor's effect is proven to differ between {names[0]} and {names[1]}"
    longer = int((sized["size"] > 0).sum())
    # At least this many of one kind occur in fewer than one of twenty series of coin tosses.
    from scipy import stats

    if stats.binomtest(longer, len(sized)).pvalue < 0.05:
        more = longer > len(sized) / 2
        count = longer if more else len(sized) - longer
        text += f", but {count} of {len(sized)} are {'larger' if more else 'smaller'} in the second"
    return text


def _differ(both: pd.DataFrame) -> pd.Series:
    """Where the two numbers of a factor differ by more than their errors, by Holm's procedure over all factors. The
    runs behind the second are a subset of those behind the first, which only makes this conservative.
    """
    from scipy import stats

    from broadleaf_lab.analysis.multiplicity import holm

    errors = [(both[f"ci_high_us_{i}"] - both[f"ci_low_us_{i}"]) / (2 * 1.96) for i in (1, 2)]
    error = np.hypot(*errors)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = both["change_us"].abs() / error
    p = np.nan_to_num(2 * stats.norm.sf(z), nan=1.0)
    return pd.Series(np.array(holm(p)) <= 0.05, index=both.index)


def _growth(rows: pd.DataFrame, word: str, ascending: bool) -> tuple[str, int]:
    ordered = rows.sort_values("size", ascending=ascending)["name"]
    return f"{listed(ordered)} {'gets' if len(ordered) == 1 else 'get'} {word}", len(ordered)
