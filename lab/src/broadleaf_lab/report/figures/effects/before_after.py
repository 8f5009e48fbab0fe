"""Scatters of the time per task before and after one treatment, for every context it was measured in."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from broadleaf_lab.report.figures.base import (
    CATEGORIES,
    INK,
    NEUTRAL,
    Figure,
    Unit,
    categories,
    finish,
    in_order,
    percent,
    require,
    shown_levels,
    thinned,
)

WIDTH = HEIGHT = 460


def before_after(
    deltas: pd.DataFrame,
    treatment: str,
    number: int,
    key: str,
    colour_by: str | None = None,
    bools: frozenset[str] = frozenset(),
) -> Figure:
    """One point per delta of `treatment`: time per task before (x) and after (y), with the line of no effect.

    `deltas` is deltas.csv; `colour_by` a factor of the context; `bools` names the factors whose levels appear as off
    and on.
    """
    require(deltas, ["treatment", "before_us", "after_us", *([colour_by] if colour_by else [])], key)
    columns = ["level_from", "level_to", "before_us", "after_us", "delta_us", "log2_ratio", colour_by]
    own = deltas[deltas["treatment"] == treatment]
    table = own[[c for c in columns if c in own.columns]].reset_index(drop=True)
    unit = Unit.of(table["before_us"], table["after_us"])
    shown = pd.DataFrame({"before": table["before_us"] / unit.us, "after": table["after_us"] / unit.us})
    text = _finding(table, treatment, colour_by, colour_by in bools)
    values = np.concatenate([shown["before"], shown["after"]]) if len(shown) else np.array([1.0])
    end = float(np.nanmax(values)) * 1.04
    axis, kind = alt.Axis(format=",.6~g", tickCount=6), alt.Scale(domain=[0.0, end], nice=False)
    encodings: dict[str, Any] = {
        "x": alt.X("before:Q", scale=kind, axis=axis, title=f"time per task before {treatment} ({unit.name})"),
        "y": alt.Y("after:Q", scale=kind, axis=axis, title=f"time per task after {treatment} ({unit.name})"),
        "tooltip": [alt.Tooltip("before", format=".3~g"), alt.Tooltip("after", format=".3~g")],
    }
    colour: Any = alt.ColorValue(CATEGORIES[0])
    if colour_by:
        shown["context"] = shown_levels(table[colour_by], colour_by in bools)
        order = ["off", "on"] if colour_by in bools else in_order(table[colour_by])
        colour = alt.Color("context:N", title=colour_by, scale=categories(order), sort=order)
    points = alt.Chart(thinned(shown)).mark_circle(size=34, opacity=0.55, clip=True).encode(**encodings, color=colour)
    line = pd.DataFrame({"before": [0.0, end], "after": [0.0, end]})
    diagonal = (
        alt.Chart(line)
        .mark_line(color=INK, strokeDash=[5, 4], strokeWidth=1.2)
        .encode(x=alt.X("before:Q"), y=alt.Y("after:Q"))
    )
    labels = pd.DataFrame(
        {
            "before": [0.04 * end, 0.97 * end],
            "after": [0.97 * end, 0.05 * end],
            "text": ["slower with it", "faster with it"],
            "align": ["left", "right"],
        }
    )
    words = [
        alt.Chart(labels[labels["align"] == align])
        .mark_text(align=align, color=NEUTRAL, fontSize=13, fontStyle="italic")
        .encode(x=alt.X("before:Q"), y=alt.Y("after:Q"), text=alt.Text("text:N"))
        for align in ("left", "right")
    ]
    chart = alt.layer(points, diagonal, *words, width=WIDTH, height=HEIGHT)
    coloured = f", coloured by {colour_by} in the context" if colour_by else ""
    reading = (
        f"A point is one context measured without and with {treatment}{coloured}. On the dashed line it does nothing."
    )
    return Figure(number, key, text, reading, finish(chart, text, reading, WIDTH + 140), table)


def _finding(table: pd.DataFrame, treatment: str, colour_by: str | None, is_bool: bool) -> str:
    """The title: the typical change, split by the colour's levels or by slow and fast starts."""
    if table.empty:
        return f"No context was measured both without and with {treatment}"
    ratio = np.log(table["after_us"] / table["before_us"])
    if colour_by:
        groups = shown_levels(table[colour_by], is_bool)
        order = ["off", "on"] if is_bool else in_order(table[colour_by])
        parts = [
            f"{percent(float(ratio[groups == level].median()))} where {colour_by} is {level}"
            for level in order
            if (groups == level).any()
        ]
        return f"{treatment} changes the time by " + ", ".join(parts) + " (medians)"
    slow = table["before_us"] >= table["before_us"].median()
    return (
        f"{treatment} changes the time by {percent(float(ratio[slow].median()))} in the slower half of contexts, "
        f"{percent(float(ratio[~slow].median()))} in the faster half (medians)"
        if (~slow).any()
        else f"{treatment} changes the time by {percent(float(ratio.median()))} (median)"
    )
