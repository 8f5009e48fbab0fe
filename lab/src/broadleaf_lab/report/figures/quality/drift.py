"""Drift: did the machine change while the study ran, and does anything remain in the residuals?"""

from __future__ import annotations

import math

import altair as alt
import numpy as np
import pandas as pd

from broadleaf_lab.report.figures.base import (
    CATEGORIES,
    INK,
    NEUTRAL,
    Figure,
    finish,
    number,
    percent,
    require,
    thinned,
)

WIDTH, HEIGHT = 680, 190
_MAD = 0.6744897501960817
_FAR = 5.0


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
    residual = table["residual_log"].to_numpy(dtype=float)
    # The middle of the runs: a few disturbed ones are counted separately.
    spread = float(np.median(np.abs(residual - np.median(residual)))) / _MAD
    far = np.abs(residual) > _FAR * spread
    scatter = f"runs scatter by {number(100 * math.expm1(spread))} % around the model"
    if far.any():
        scatter += f", {int(far.sum())} of {len(table)} {'is' if far.sum() == 1 else 'are'} far from it"
    text = f"{_trend(controls)}; {scatter}"
    reading = (
        "Above: control runs, always of the same configuration, against their median; the line is their mean over a "
        "tenth of the session. A slope or wave is the machine, not the factors. Below: what the model leaves "
        f"unexplained; triangles are runs beyond {_FAR:g} standard deviations, drawn at the edge."
    )
    x = alt.X(
        "elapsed:Q",
        title=f"time since the first run ({unit})",
        scale=alt.Scale(domain=[0, span / size or 1], nice=False),
    )
    zero = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule(color=INK, strokeDash=[5, 4]).encode(y=alt.Y("zero:Q"))
    above = pd.DataFrame(
        {
            "elapsed": controls["elapsed_s"] / size,
            "percent": 100 * np.expm1(controls["log_ratio"]),
            "control": controls["control"],
        }
    )
    base = alt.Chart(thinned(above)).encode(
        x=x,
        y=alt.Y("percent:Q", title=["control run against", "its median (%)"], axis=alt.Axis(tickCount=5)),
        color=alt.Color(
            "control:N", title="control", scale=alt.Scale(domain=["baseline", "all on"], range=list(CATEGORIES[:2]))
        ),
    )
    smooth = (
        alt.Chart(_smoothed(above))
        .mark_line(color=INK, strokeWidth=2)
        .encode(x=alt.X("elapsed:Q"), y=alt.Y("percent:Q"))
    )
    top = alt.layer(zero, base.mark_circle(size=42, opacity=0.7), smooth, width=WIDTH, height=HEIGHT)
    edge = _FAR * spread
    below = pd.DataFrame(
        {"elapsed": table["elapsed_s"] / size, "percent": 100 * np.expm1(np.clip(residual, -edge, edge))}
    )
    y = alt.Y("percent:Q", title=["measured against", "predicted (%)"], axis=alt.Axis(tickCount=5))
    dots = alt.layer(
        alt.Chart(thinned(below[~far])).mark_circle(size=26, opacity=0.45, color=NEUTRAL).encode(x=x, y=y),
        alt.Chart(thinned(below[far]))
        .mark_point(shape="triangle", filled=True, size=60, opacity=0.9, color=CATEGORIES[5])
        .encode(x=x, y=y),
    )
    bottom = alt.layer(zero, dots, width=WIDTH, height=HEIGHT)
    chart = alt.vconcat(top, bottom)
    table["far"] = far
    columns = ["elapsed_s", "control", "y_us", "control_log_ratio", "residual_log", "far"]
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, WIDTH + 120), table[columns])


def _trend(controls: pd.DataFrame) -> str:
    """How much the controls changed from the first of them to the last, with its interval; says that this is not known
    if zero lies within it. Before the first and after the last nothing is known.
    """
    from scipy import stats

    span = float(np.ptp(controls["elapsed_s"])) if len(controls) else 0.0
    if len(controls) < 4 or span <= 0:
        return "Too few controls to judge drift"
    line = stats.linregress(controls["elapsed_s"] / span, controls["log_ratio"])
    half = float(stats.t.ppf(0.975, len(controls) - 2)) * float(line.stderr)
    low, middle, high = (percent(float(line.slope) + shift) for shift in (-half, 0.0, half))
    size = f"{middle} of the time per task (95 % interval {low} to {high})"
    if abs(line.slope) <= half:
        return f"No steady drift is known: from the first control to the last {size}"
    return f"The machine drifted by {size} from the first control to the last"


def _smoothed(points: pd.DataFrame) -> pd.DataFrame:
    """A running mean of the controls, with Gaussian weights over about a tenth of the session."""
    if points.empty:
        return points[["elapsed", "percent"]]
    at, value = points["elapsed"].to_numpy(dtype=float), points["percent"].to_numpy(dtype=float)
    reach = max(float(np.ptp(at)) / 20, 1e-12)
    grid = np.linspace(at.min(), at.max(), 41)
    near = np.exp(-(((grid[:, None] - at) / reach) ** 2) / 2)
    return pd.DataFrame({"elapsed": grid, "percent": near @ value / near.sum(axis=1)}).round(4)
