"""Waterfalls: one order of adding treatments, from the baseline to the end."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from broadleaf_lab.report.figures.base import (
    FASTER,
    INK,
    NEUTRAL,
    SLOWER,
    Figure,
    Unit,
    finish,
    number,
    require,
)

COLUMNS = ("step", "name", "before_us", "after_us")
WIDTH = 620
ROW_PIXELS = 25


def waterfall(path: pd.DataFrame, fig_number: int, key: str, source: str = "") -> Figure:
    """A bar per step of the path that takes the best step first, from its time per task before to the one after it.

    `path` has step (from 1), name, before_us, after_us and, where known, ci_low_us and ci_high_us: the ends of the
    interval of the step's change, as times after it. `source` says where the times come from, as a sentence.
    """
    require(path, COLUMNS, key)
    table = path.sort_values("step").reset_index(drop=True)
    table["delta_us"] = table["after_us"] - table["before_us"]
    table["before_per_s"], table["after_per_s"] = 1e6 / table["before_us"], 1e6 / table["after_us"]
    table["delta_per_s"] = table["after_per_s"] - table["before_per_s"]
    first, last = float(table["before_us"].iloc[0]), float(table["after_us"].iloc[-1])
    unit = Unit.of(table["before_us"], table["after_us"])
    top = table.loc[table["delta_us"].idxmin()]
    text = (
        f"Adding treatments best first goes from {unit.shown(first)} to {unit.shown(last)}; {top['name']} is the "
        f"largest step ({unit.shown(top['delta_us'], signed=True)})"
    )
    shown = _rows(table, unit, first, last)
    widest = float(shown["end"].max())
    base = alt.Chart(shown).encode(y=alt.Y("row:N", sort=list(shown["row"]), title=None))
    bars = base.mark_bar(height={"band": 0.72}).encode(
        x=alt.X(
            "from:Q",
            scale=alt.Scale(domain=[0, widest * 1.3], nice=False),
            axis=alt.Axis(format=",.6~g", tickCount=7),
            title=f"time per task ({unit.name})",
        ),
        x2=alt.X2("to:Q"),
        color=_colour(shown),
        tooltip=[alt.Tooltip("row"), alt.Tooltip("from", format=".4~g"), alt.Tooltip("to", format=".4~g")],
    )
    labels = base.mark_text(align="left", dx=6, fontSize=12, color=INK).encode(
        x=alt.X("end:Q"), text=alt.Text("label:N")
    )
    layers: list[Any] = [bars, labels]
    if {"ci_low_us", "ci_high_us"} <= set(table.columns):
        layers.insert(1, base.mark_rule(color=INK, strokeWidth=1.3).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q")))
    chart = alt.layer(*layers, width=WIDTH, height=alt.Step(ROW_PIXELS))
    reading = (
        "Read downwards: each bar starts where the one above ended. The label is what the step changes, then where it "
        "arrives."
        + (" Line: 95 % interval of the step, at its end." if len(layers) == 3 else "")
        + (f" {source}" if source else "")
    )
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, WIDTH + 180), table)


def _rows(table: pd.DataFrame, unit: Unit, first: float, last: float) -> pd.DataFrame:
    """The rows drawn: the baseline, the steps, and the end, in the shown unit."""

    def of(times: Any) -> Any:
        return np.asarray(times, dtype=float) / unit.us

    n = len(table)
    froms = np.concatenate([[0.0], of(table["before_us"]), [0.0]])
    tos = np.concatenate([[of(first)], of(table["after_us"]), [of(last)]])
    labels = [
        number(float(of(first))),
        *(
            f"{number(float(to - start), signed=True)} → {number(float(to))}"
            for start, to in zip(froms[1:-1], tos[1:-1], strict=True)
        ),
        number(float(of(last))),
    ]
    lows = of(table["ci_low_us"]) if "ci_low_us" in table.columns else np.full(n, np.nan)
    highs = of(table["ci_high_us"]) if "ci_high_us" in table.columns else np.full(n, np.nan)
    better = table["after_us"] <= table["before_us"]
    ends = np.fmax(np.maximum(froms, tos), np.concatenate([[0], np.fmax(lows, highs), [0]]))
    return pd.DataFrame(
        {
            "row": ["baseline", *table["name"], "all of these"],
            "from": froms,
            "to": tos,
            "end": ends,
            "low": np.concatenate([[np.nan], lows, [np.nan]]),
            "high": np.concatenate([[np.nan], highs, [np.nan]]),
            "label": labels,
            "effect": ["total", *np.where(better, "faster", "slower"), "total"],
        }
    )


def _colour(shown: pd.DataFrame) -> alt.Color:
    seen = [word for word in ("faster", "slower", "total") if word in set(shown["effect"])]
    return alt.Color(
        "effect:N",
        title="step makes it",
        scale=alt.Scale(domain=seen, range=[{"faster": FASTER, "slower": SLOWER, "total": NEUTRAL}[w] for w in seen]),
        legend=alt.Legend(orient="bottom"),
    )
