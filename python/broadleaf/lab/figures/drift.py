"""Drift: did the machine change while the study ran, and is anything left in the residuals?"""

from __future__ import annotations

import math

import altair as alt
import numpy as np
import pandas as pd

from broadleaf.lab.figures.base import CATEGORIES, INK, NEUTRAL, Figure, finish, number, percent, require, thinned

WIDTH, HEIGHT = 680, 190


def drift(runs: pd.DataFrame, fig_number: int, key: str) -> Figure:
    """Above, the controls of each block over time, each against its own median; below, the model's residuals.

    `runs` has started_unix, control ("baseline", "all on" or empty), y_us and residual_log (natural logarithm of
    measured over predicted).
    """
    require(runs, ("started_unix", "control", "y_us", "residual_log"), key)
    table = runs.sort_values("started_unix").reset_index(drop=True)
    seconds = table["started_unix"] - table["started_unix"].min()
    span = float(seconds.max())
    unit, size = ("minutes", 60.0) if span < 3 * 3600 else ("hours", 3600.0) if span < 72 * 3600 else ("days", 86400.0)
    table["elapsed_s"] = seconds
    controls = table[table["control"] != ""].copy()
    controls["log_ratio"] = np.log(controls["y_us"] / controls.groupby("control")["y_us"].transform("median"))
    table["control_log_ratio"] = controls["log_ratio"]
    spread = float(table["residual_log"].std(ddof=1))
    if len(controls) >= 3 and span > 0:
        slope = float(np.polyfit(controls["elapsed_s"], controls["log_ratio"], 1)[0])
        text = (
            f"From first to last run the controls drifted by {percent(slope * span)}; "
            f"runs scatter by {number(100 * math.expm1(spread))} % around the model"
        )
    else:
        text = f"Runs scatter by {number(100 * math.expm1(spread))} % around the model; too few controls to judge drift"
    reading = (
        "Above: control runs against their median; a slope or wave is the machine, not the factors. "
        "Below: what the model leaves unexplained."
    )
    x = alt.X(
        "elapsed:Q",
        title=f"time since the first run ({unit})",
        scale=alt.Scale(domain=[0, span / size or 1], nice=False),
    )
    zero = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule(color=INK, strokeDash=[5, 4]).encode(y="zero:Q")
    above = pd.DataFrame(
        {
            "elapsed": controls["elapsed_s"] / size,
            "percent": 100 * np.expm1(controls["log_ratio"]),
            "control": controls["control"],
        }
    ).round(4)
    base = alt.Chart(above).encode(
        x=x,
        y=alt.Y("percent:Q", title=["control run against", "its median (%)"], axis=alt.Axis(tickCount=5)),
        color=alt.Color(
            "control:N", title="control", scale=alt.Scale(domain=["baseline", "all on"], range=list(CATEGORIES[:2]))
        ),
    )
    top = alt.layer(zero, base.mark_circle(size=42, opacity=0.8), base.mark_line(opacity=0.35)).properties(
        width=WIDTH, height=HEIGHT
    )
    below = pd.DataFrame(
        {"elapsed": table["elapsed_s"] / size, "percent": 100 * np.expm1(table["residual_log"])}
    ).round(4)
    dots = (
        alt.Chart(thinned(below))
        .mark_circle(size=26, opacity=0.45, color=NEUTRAL)
        .encode(x=x, y=alt.Y("percent:Q", title=["measured against", "predicted (%)"], axis=alt.Axis(tickCount=5)))
    )
    bottom = alt.layer(zero, dots).properties(width=WIDTH, height=HEIGHT)
    chart = alt.vconcat(top, bottom)
    columns = ["elapsed_s", "control", "y_us", "control_log_ratio", "residual_log"]
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, WIDTH + 120), table[columns])
