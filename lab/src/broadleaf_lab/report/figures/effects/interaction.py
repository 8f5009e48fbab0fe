"""Two-by-two plots: how one factor's effect changes when another is set."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from broadleaf_lab.report.figures.base import (
    CATEGORIES,
    Figure,
    Unit,
    axis_values,
    finish,
    in_order,
    log_domain,
    on_off,
    require,
)
from broadleaf_lab.text import listed

PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 250, 190, 3


def two_by_two(cells: pd.DataFrame, fig_number: int, key: str) -> Figure:
    """A panel per pair: time per task without and with the first factor, a line per level of the second.

    `cells` has a, b, kind, a_level, b_level, mean_us, ci_low_us and ci_high_us; `kind` is the pair's class in words.
    Parallel lines mean that the two factors do not interact (on the logarithmic axis: their ratios multiply).
    """
    require(cells, ("a", "b", "kind", "a_level", "b_level", "mean_us", "ci_low_us", "ci_high_us"), key)
    table = cells.reset_index(drop=True)
    pairs = table.drop_duplicates(["a", "b"])
    names = [f"{p.a} \u00d7 {p.b} ({p.kind})" for p in pairs.itertuples(index=False)]
    text = f"Pairs that matter most: {listed(names)}"
    reading = (
        "Along x the first factor goes from its default to its other level; the lines are the second factor's levels. "
        "Parallel: no interaction. Bars: 95 % intervals."
    )
    unit = Unit.of(table["ci_high_us"])
    shown = table.assign(
        mean=table["mean_us"] / unit.us,
        low=table["ci_low_us"] / unit.us,
        high=table["ci_high_us"] / unit.us,
        x=table["a_level"].map(on_off),
        line=table["b_level"].map(on_off),
    )
    domain = log_domain(np.concatenate([shown["low"], shown["high"]]))
    panels = []
    for number_in_row, pair in enumerate(pairs.itertuples(index=False)):
        own = shown[(shown["a"] == pair.a) & (shown["b"] == pair.b)]
        order, lines = list(dict.fromkeys(own["x"])), in_order(own["b_level"])
        base = alt.Chart(own[["x", "line", "mean", "low", "high"]]).encode(
            x=alt.X("x:N", sort=order, title=pair.a, axis=alt.Axis(labelAngle=0), scale=alt.Scale(padding=0.4)),
            color=alt.Color(
                "line:N",
                title=pair.b,
                scale=alt.Scale(domain=lines, range=list(CATEGORIES[: len(lines)])),
                legend=alt.Legend(orient="bottom", direction="horizontal", titleOrient="top", titleLimit=210),
            ),
        )
        y = alt.Y(
            "mean:Q",
            scale=alt.Scale(type="log", domain=domain, nice=False),
            axis=alt.Axis(format=",.6~g", values=axis_values(domain)),
            title=f"time per task ({unit.name})" if number_in_row % COLUMNS == 0 else None,
        )
        layers = alt.layer(
            base.mark_line(strokeWidth=2).encode(y=y),
            base.mark_circle(size=60, opacity=1).encode(y=y),
            base.mark_rule(strokeWidth=1.6).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        )
        heading = alt.Title(str(pair.kind), fontSize=13.5, anchor="middle", fontWeight="bold")
        panels.append(layers.properties(width=PANEL_WIDTH, height=PANEL_HEIGHT, title=heading))
    chart = alt.concat(*panels, columns=COLUMNS, spacing=26).resolve_scale(color="independent")
    width = (PANEL_WIDTH + 60) * min(COLUMNS, len(panels))
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, width), table)
