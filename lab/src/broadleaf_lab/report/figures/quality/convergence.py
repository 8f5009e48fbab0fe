"""Convergence: what the main effects looked like after each number of runs."""

from __future__ import annotations

import altair as alt
import pandas as pd

from broadleaf_lab.report.figures.base import Figure, categories, finish, number, require

WIDTH, HEIGHT = 620, 380
MAX_FACTORS = 5


def convergence(table: pd.DataFrame, fig_number: int, key: str, half_width_pct: float) -> Figure:
    """Estimate and interval of the largest main effects against the number of runs.

    `table` has runs, name, estimate_pct, ci_low_pct and ci_high_pct (change of the time in percent). `half_width_pct`
    is the requested precision: the study could stop once all intervals are that narrow on either side.
    """
    require(table, ("runs", "name", "estimate_pct", "ci_low_pct", "ci_high_pct"), key)
    table = table.sort_values(["runs", "name"]).reset_index(drop=True)
    widths = (table["ci_high_pct"] - table["ci_low_pct"]) / 2
    wide_enough = widths.groupby(table["runs"]).max() <= half_width_pct
    enough = wide_enough[::-1].cummin()[::-1]
    total = int(table["runs"].max())
    stop = int(enough[enough].index[0]) if enough.any() else None
    within = f"±{number(half_width_pct)} %"
    if stop is None:
        widest = number(float(widths[table["runs"] == total].max()))
        text = f"After {total} runs the widest main effect is known to ±{widest} %; {within} was asked for"
    else:
        text = f"{stop} of {total} runs were enough to know every main effect to {within}"
    reading = (
        "A line is a factor's average effect as runs come in; the band its 95 % interval. Only the largest are drawn."
    )
    last = table[table["runs"] == total]
    largest = last.reindex(last["estimate_pct"].abs().sort_values(ascending=False).index)["name"].head(MAX_FACTORS)
    shown = table[table["name"].isin(largest)].round(3)
    end = float(last[last["name"].isin(largest)][["ci_low_pct", "ci_high_pct"]].abs().to_numpy().max())
    # Early intervals may be huge; the axis shows twice the final reach.
    reach = min(float(shown[["ci_low_pct", "ci_high_pct"]].abs().to_numpy().max()), 2.0 * end)
    low = min(float(max(-reach, shown["ci_low_pct"].min())), 0.0)
    high = max(float(min(reach, shown["ci_high_pct"].max())), 0.0)
    base = alt.Chart(shown).encode(
        x=alt.X("runs:Q", title="runs so far", scale=alt.Scale(nice=False)),
        color=alt.Color(
            "name:N",
            title="factor",
            scale=categories(list(largest)),
            sort=list(largest),
            legend=alt.Legend(symbolOpacity=1),
        ),
    )
    bands = base.mark_area(opacity=0.18, clip=True).encode(
        y=alt.Y("ci_low_pct:Q", title="average effect on the time per task (%)", scale=alt.Scale(domain=[low, high])),
        y2=alt.Y2("ci_high_pct:Q"),
    )
    lines = base.mark_line(strokeWidth=2, clip=True).encode(y=alt.Y("estimate_pct:Q"))
    zero = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule(color="#666666").encode(y=alt.Y("zero:Q"))
    layers = [bands, zero, lines]
    if stop is not None:
        mark = alt.Chart(pd.DataFrame({"runs": [stop], "text": [f"enough: {stop} runs"]}))
        layers.append(mark.mark_rule(strokeDash=[4, 3], color="#222222").encode(x=alt.X("runs:Q")))
        layers.append(
            mark.mark_text(
                align="left" if stop < 0.7 * total else "right",
                dx=5 if stop < 0.7 * total else -5,
                fontSize=12.5,
                baseline="top",
            ).encode(x=alt.X("runs:Q"), y=alt.YValue(4), text=alt.Text("text:N"))
        )
    chart = alt.layer(*layers, width=WIDTH, height=HEIGHT)
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, WIDTH + 220), table)
