"""The placebo: a factor that does nothing, measured like all others."""

from __future__ import annotations

import altair as alt
import pandas as pd

from broadleaf_lab.report.figures.base import FASTER, INK, SLOWER, Figure, finish, number, require

WIDTH = 560
_SEEMS = ("helps", "hinders", "slows some runs", "fails more")


def placebo(
    estimates: pd.DataFrame, fig_number: int, key: str, rope_pct: float, word: str = "no practical difference"
) -> Figure:
    """Every estimate of the placebo's effect, with its interval, against zero and the range of no practical difference.

    `estimates` has way (how it was estimated), estimate_pct, ci_low_pct and ci_high_pct; `word` is the verdict on it.
    """
    require(estimates, ("way", "estimate_pct", "ci_low_pct", "ci_high_pct"), key)
    table = estimates.reset_index(drop=True)
    table["covers_zero"] = (table["ci_low_pct"] <= 0) & (table["ci_high_pct"] >= 0)
    first = table.iloc[0]
    span = (
        f"{number(first['estimate_pct'], signed=True)} % "
        f"[{number(first['ci_low_pct'], signed=True)}, {number(first['ci_high_pct'], signed=True)}]"
    )
    wrong = int((~table["covers_zero"]).sum())
    if word in _SEEMS or not bool(first["covers_zero"]):
        text = f"The placebo seems to do something ({span}): find out why before believing small effects here"
    elif wrong:
        text = f"The placebo's average effect covers zero ({span}), but {wrong} of {len(table)} estimates of it do not"
    elif word == "no practical difference":
        text = f"The placebo does nothing, as it should: {span} covers zero"
    else:
        text = f"The placebo is not known to do anything, as it should: {span} covers zero, and more than that"
    reading = (
        "Point and line: estimate and 95 % interval of a factor without any effect. "
        f"Grey: ±{number(rope_pct)} %, no practical difference."
    )
    shown = table.assign(verdict=["covers zero" if c else "does not" for c in table["covers_zero"]])
    reach = 1.1 * max(rope_pct, float(table[["ci_low_pct", "ci_high_pct"]].abs().to_numpy().max()))
    band = (
        alt.Chart(pd.DataFrame({"low": [-rope_pct], "high": [rope_pct]}))
        .mark_rect(color="#dddddd", opacity=0.7)
        .encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"))
    )
    base = alt.Chart(shown).encode(
        y=alt.Y("way:N", sort=list(shown["way"]), title=None),
        color=alt.Color(
            "verdict:N", title="interval", scale=alt.Scale(domain=["covers zero", "does not"], range=[FASTER, SLOWER])
        ),
    )
    x = alt.X(
        "estimate_pct:Q",
        title="effect of the placebo on the time per task (%)",
        scale=alt.Scale(domain=[-reach, reach]),
    )
    zero = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule(color=INK).encode(x=alt.X("zero:Q"))
    chart = alt.layer(
        band,
        zero,
        base.mark_rule(strokeWidth=2.2).encode(x=alt.X("ci_low_pct:Q"), x2=alt.X2("ci_high_pct:Q")),
        base.mark_circle(size=90, opacity=1).encode(x=x),
    ).properties(width=WIDTH, height=alt.Step(42))
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, WIDTH + 180), table)
