"""Which settings fail, and how often."""

from __future__ import annotations

import altair as alt
import pandas as pd

from broadleaf_lab.report.figures.base import INK, NEUTRAL, SLOWER, Figure, finish, require
from broadleaf_lab.text import listed

WIDTH = 560
_ORDER = ("fails more", "no more than chance")


def failures(rates: pd.DataFrame, fig_number: int, key: str) -> Figure:
    """The share of failed runs of every setting with its exact interval, beside that of its default.

    `rates` has name, failed, runs, share_pct, ci_low_pct, ci_high_pct, default_pct and verdict.
    """
    require(rates, ("name", "share_pct", "ci_low_pct", "ci_high_pct", "default_pct", "verdict"), key)
    table = rates.sort_values("share_pct", ascending=False, kind="stable").reset_index(drop=True)
    proven = list(table.loc[table["verdict"] == _ORDER[0], "name"])
    if proven:
        text = f"{listed(proven)} {'fail' if len(proven) > 1 else 'fails'} more often than the default"
    else:
        text = "Runs failed, but no setting is known to cause it"
    reading = (
        "Point and line: share of a setting's runs that failed and its exact 95 % interval. Tick: the same for the "
        "default. Runs whose failure another setting explains are set aside."
    )
    base = alt.Chart(table).encode(
        y=alt.Y("name:N", sort=list(table["name"]), title=None, axis=alt.Axis(labelLimit=300)),
        color=alt.Color("verdict:N", title="verdict", scale=alt.Scale(domain=_ORDER, range=[SLOWER, NEUTRAL])),
    )
    x = alt.X("share_pct:Q", title="runs that failed (%)", scale=alt.Scale(domain=[0, 100]))
    chart = alt.layer(
        base.mark_rule(strokeWidth=2.2).encode(x=alt.X("ci_low_pct:Q"), x2=alt.X2("ci_high_pct:Q")),
        base.mark_circle(size=90, opacity=1).encode(x=x),
        base.mark_tick(thickness=2, size=16, opacity=0.7).encode(x=alt.X("default_pct:Q"), color=alt.ColorValue(INK)),
    ).properties(width=WIDTH, height=alt.Step(26))
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, WIDTH + 180), table)
