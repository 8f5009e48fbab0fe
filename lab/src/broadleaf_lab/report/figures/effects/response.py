"""Response curves: time per task along the levels of a factor that has several."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from broadleaf_lab.report.figures.base import CATEGORIES, Figure, Unit, axis_values, finish, log_domain, on_off, require
from broadleaf_lab.text import listed

PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 290, 210, 3


def response(levels: pd.DataFrame, fig_number: int, key: str) -> Figure:
    """A panel per factor of several levels: time per task at each level, averaged over the other factors.

    `levels` has name, level, position (order along x), mean_us, ci_low_us and ci_high_us.
    """
    require(levels, ("name", "level", "position", "mean_us", "ci_low_us", "ci_high_us"), key)
    table = levels.sort_values(["name", "position"]).reset_index(drop=True)
    best = table.loc[table.groupby("name")["mean_us"].idxmin()]
    text = "Fastest level: " + listed([f"{r.name} = {on_off(r.level)}" for r in best.itertuples(index=False)], 6)
    reading = "Point: geometric mean of the time per task at that level, over all other factors. Bar: 95 % interval."
    unit = Unit.of(table["ci_high_us"])
    shown = table.assign(
        mean=table["mean_us"] / unit.us,
        low=table["ci_low_us"] / unit.us,
        high=table["ci_high_us"] / unit.us,
        word=table["level"].map(on_off),
    )
    domain = log_domain(np.concatenate([shown["low"], shown["high"]]))
    panels = []
    for i, (name, own) in enumerate(shown.groupby("name", sort=False)):
        base = alt.Chart(own[["word", "mean", "low", "high"]]).encode(
            x=alt.X("word:O", sort=list(own["word"]), title=str(name), axis=alt.Axis(labelAngle=0)),
        )
        y = alt.Y(
            "mean:Q",
            scale=alt.Scale(type="log", domain=domain, nice=False),
            axis=alt.Axis(format=",.6~g", values=axis_values(domain)),
            title=f"time per task ({unit.name})" if i % COLUMNS == 0 else None,
        )
        panels.append(
            alt.layer(
                base.mark_line(color=CATEGORIES[0], strokeWidth=2).encode(y=y),
                base.mark_rule(strokeWidth=1.6).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
                base.mark_circle(size=70, color=CATEGORIES[0], opacity=1).encode(y=y),
            ).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT)
        )
    chart = alt.concat(*panels, columns=COLUMNS, spacing=26)
    width = max(420, (PANEL_WIDTH + 60) * min(COLUMNS, len(panels)))
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, width), table)
