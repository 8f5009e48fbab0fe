"""Waterfalls: one order of adding treatments, from the baseline to the end, in time per task or tasks per second."""

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
    TIER_COLOURS,
    TIERS,
    Figure,
    Unit,
    axis_values,
    finish,
    log_domain,
    number,
    require,
)

COLUMNS = ("step", "name", "before_us", "after_us")
WIDTH = 620
ROW_PIXELS = 25
SCALES = ("us", "log", "rate")


def waterfall(
    path: pd.DataFrame, fig_number: int, key: str, scale: str = "us", order: str = "best first", source: str = ""
) -> Figure:
    """A bar per step of a path, from its time per task before to the one after it.

    `path` has step (from 1), name, before_us, after_us and, where known, tier, and ci_low_us and ci_high_us: the ends
    of the interval of the step's change, as times after it.
    `scale` is "us", "log" (the same on a logarithmic axis) or "rate" (tasks per second). `order` says how it was
    chosen, `source` where the times come from, as a sentence.
    """
    require(path, COLUMNS, key)
    table = path.sort_values("step").reset_index(drop=True)
    table["delta_us"] = table["after_us"] - table["before_us"]
    table["before_per_s"], table["after_per_s"] = 1e6 / table["before_us"], 1e6 / table["after_us"]
    table["delta_per_s"] = table["after_per_s"] - table["before_per_s"]
    first, last = float(table["before_us"].iloc[0]), float(table["after_us"].iloc[-1])
    unit = Unit.of(table["before_us"], table["after_us"])
    rate = scale == "rate"
    moved = table["delta_per_s"] if rate else -table["delta_us"]
    top = table.loc[moved.idxmax()]
    if rate:
        ends = f"{number(1e6 / first)} to {number(1e6 / last)} tasks/s"
        largest = f"{number(top['delta_per_s'], signed=True)} tasks/s"
    else:
        ends = f"{unit.shown(first)} to {unit.shown(last)}"
        largest = unit.shown(top["delta_us"], signed=True)
    text = f"Adding treatments {order} goes from {ends}; {top['name']} is the largest step ({largest})"
    if rate:
        text += ", which depends on its position: the later, the larger"
    shown = _rows(table, unit, rate, first, last)
    domain = log_domain([*shown["from"][shown["from"] > 0], *shown["to"]]) if scale == "log" else None
    if domain:
        domain[1] *= 1.6
        shown["from"] = shown["from"].clip(lower=domain[0])
    widest = float(max(shown["from"].max(), shown["to"].max()))
    x_axis = alt.Axis(format=",.6~g", values=axis_values(domain)) if domain else alt.Axis(format=",.6~g", tickCount=7)
    x_scale = (
        alt.Scale(type="log", domain=domain, nice=False) if domain else alt.Scale(domain=[0, widest * 1.3], nice=False)
    )
    x_title = "tasks per second" if rate else f"time per task ({unit.name})"
    base = alt.Chart(shown).encode(y=alt.Y("row:N", sort=list(shown["row"]), title=None))
    tiered = "tier" in table.columns and order != "best first"
    colour = _colour(shown, tiered)
    bars = base.mark_bar(height={"band": 0.72}).encode(
        x=alt.X("from:Q", scale=x_scale, axis=x_axis, title=x_title),
        x2=alt.X2("to:Q"),
        color=colour,
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


def _rows(table: pd.DataFrame, unit: Unit, rate: bool, first: float, last: float) -> pd.DataFrame:
    """The rows drawn: the baseline, the steps, and the end, in the shown unit."""

    def of(times: Any) -> Any:
        values = np.asarray(times, dtype=float)
        return 1e6 / values if rate else values / unit.us

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
    tiers = table["tier"].map(TIERS) if "tier" in table.columns else pd.Series([""] * n)
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
            "tier": ["total", *tiers, "total"],
        }
    )


def _colour(shown: pd.DataFrame, tiered: bool) -> alt.Color:
    if tiered:
        domain = [t for t in TIERS.values() if t in set(shown["tier"])]
        colours = [TIER_COLOURS[list(TIERS.values()).index(t)] for t in domain]
        return alt.Color(
            "tier:N",
            title="tier (nicest first)",
            scale=alt.Scale(domain=[*domain, "total"], range=[*colours, NEUTRAL]),
            legend=alt.Legend(orient="bottom", columns=3),
        )
    seen = [word for word in ("faster", "slower", "total") if word in set(shown["effect"])]
    return alt.Color(
        "effect:N",
        title="step makes it",
        scale=alt.Scale(domain=seen, range=[{"faster": FASTER, "slower": SLOWER, "total": NEUTRAL}[w] for w in seen]),
        legend=alt.Legend(orient="bottom"),
    )
