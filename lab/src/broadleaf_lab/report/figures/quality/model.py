"""Figures of the fitted model: actual against predicted, and the pairs' coefficients as tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from broadleaf_lab.report.figures.base import (
    CATEGORIES,
    FASTER,
    INK,
    ON_WHITE,
    SLOWER,
    Figure,
    Unit,
    finish,
    number,
    require,
    thinned,
)

WIDTH = HEIGHT = 380
MAX_TILES = 40


def actual_predicted(
    table: pd.DataFrame, fig_number: int, key: str, model: str, r_squared: float, ends: tuple[float, float]
) -> Figure:
    """One point per run: measured time per task (x), the model's (y), and the line of agreement.

    `table` has actual_us and predicted_us; `model` says in words what was fitted; both axes have these `ends`.
    """
    require(table, ("actual_us", "predicted_us"), key)
    table = table.reset_index(drop=True)
    unit = Unit.of(table["actual_us"])
    off = table["predicted_us"] - table["actual_us"]
    fast = table["actual_us"] <= table["actual_us"].quantile(0.25)
    text = (
        f"{model}: R² {r_squared:.2f}, typically {unit.shown(_rms(off))} off, "
        f"{unit.shown(_rms(off[fast]))} among the fastest quarter"
    )
    reading = "A point is one run. On the dashed line the model is right; points above it ran faster than predicted."
    shown = pd.DataFrame({"actual": table["actual_us"] / unit.us, "predicted": table["predicted_us"] / unit.us})
    domain = [end / unit.us for end in ends]
    axis, kind = alt.Axis(format=",.6~g", tickCount=6), alt.Scale(domain=domain, nice=False, zero=False)
    points = (
        alt.Chart(thinned(shown))
        .mark_circle(size=30, opacity=0.45, color=CATEGORIES[0])
        .encode(
            x=alt.X("actual:Q", scale=kind, axis=axis, title=f"measured time per task ({unit.name})"),
            y=alt.Y("predicted:Q", scale=kind, axis=axis, title=f"predicted time per task ({unit.name})"),
            tooltip=[alt.Tooltip("actual", format=".3~g"), alt.Tooltip("predicted", format=".3~g")],
        )
    )
    line = alt.Chart(pd.DataFrame({"actual": domain, "predicted": domain}))
    diagonal = line.mark_line(color=INK, strokeDash=[5, 4], strokeWidth=1.2).encode(
        x=alt.X("actual:Q"), y=alt.Y("predicted:Q")
    )
    chart = alt.layer(points, diagonal, width=WIDTH, height=HEIGHT)
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, WIDTH + 100), table)


def bounds(tables: Sequence[pd.DataFrame]) -> tuple[float, float]:
    """Ends of axes that hold what all of these tables for `actual_predicted` measured and predict."""
    values = pd.concat([table[["actual_us", "predicted_us"]] for table in tables])
    low, high = min(0.0, float(values.min().min())), float(values.max().max())
    return low * 1.05, high + 0.03 * (high - low)


def _rms(values: pd.Series) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else math.nan


def tiles(pairs: pd.DataFrame, fig_number: int, key: str, q_limit: float = 0.05) -> Figure:
    """A symmetric map of the interaction of every pair of factors, the strongest negatives at the top right.

    `pairs` has a, b, estimate (the natural logarithm of a ratio) and q (the false discovery rate at which it counts).
    """
    require(pairs, ("a", "b", "estimate", "q"), key)
    table = pairs.reset_index(drop=True)
    both = pd.concat([table, table.rename(columns={"a": "b", "b": "a"})])
    largest = both["estimate"].abs().groupby(both["a"]).max().nlargest(MAX_TILES).index
    omitted = both["a"].nunique() - len(largest)
    both = both[both["a"].isin(largest) & both["b"].isin(largest)]
    means = both.groupby("a")["estimate"].mean().sort_values(ascending=False)
    order = means.index.tolist()
    real = table[table["q"] <= q_limit]
    if real.empty:
        text = f"None of {len(table)} pairs is proven to interact"
    else:
        top = real.loc[real["estimate"].abs().idxmax()]
        size = f"together {number(math.exp(top['estimate']))} times the time that both alone make likely"
        text = (
            f"{len(real)} of {len(table)} pairs {'interacts' if len(real) == 1 else 'interact'} for certain; "
            f"most of all {top['a']} with {top['b']} ({size})"
        )
    values = 100 * np.expm1(both["estimate"])
    shown = pd.DataFrame({"a": both["a"], "b": both["b"], "value": values, "real": both["q"] <= q_limit})
    sizes = shown["value"].abs()
    limit = float(sizes.max()) or 1.0
    # The colours follow the square root of the size; otherwise one giant pair would leave all others white.
    shown["colour"] = np.sign(shown["value"]) * np.sqrt(sizes / limit)
    small = len(order) <= 20
    cell = 44 if len(order) <= 12 else 38 if small else 20
    if small:
        shown["label"] = [
            number(v, signed=True) if real else "·" for v, real in zip(shown["value"], shown["real"], strict=True)
        ]
        shown["ink"] = np.where(shown["colour"].abs() > 0.75, "white", "black")
    base = alt.Chart(thinned(shown.drop(columns="real"), len(shown))).encode(
        x=alt.X("a:N", sort=order, title=None, axis=alt.Axis(labelAngle=-45)),
        y=alt.Y("b:N", sort=order[::-1], title=None),
    )
    quarter = [-1, -0.5, 0, 0.5, 1]
    names = [number(math.copysign(q * q, q) * limit, signed=True) for q in quarter]
    cases = " : ".join(f"abs(datum.value - {q}) < 0.01 ? '{n}'" for q, n in zip(quarter, names, strict=True)) + " : ''"
    rects = base.mark_rect().encode(
        color=alt.Color(
            "colour:Q",
            title=["both together against", "both alone (%)"],
            scale=alt.Scale(domain=[-1, 0, 1], range=[FASTER, "#f7f7f7", SLOWER]),
            legend=alt.Legend(values=quarter, labelExpr=cases, gradientLength=180),
        ),
        tooltip=[alt.Tooltip("a"), alt.Tooltip("b"), alt.Tooltip("value")],
    )
    layers = [rects]
    if small:
        layers.append(
            base.mark_text(fontSize=11 if cell > 40 else 10).encode(
                text=alt.Text("label:N"), color=alt.Color("ink:N", scale=None)
            )
        )
    reading = (
        "A cell: the time with both, against what each alone makes likely (red: they save less together; blue: more). "
        + (
            f"Numbers are shown where the pair is real at a false discovery rate of {number(100 * q_limit)} %."
            if small
            else ""
        )
        + (f" The {omitted} factors with the smallest interactions are omitted." if omitted else "")
    )
    # The words' colours are values, not part of a scale.
    chart = alt.layer(*layers, width=alt.Step(cell), height=alt.Step(cell * 0.8), usermeta=ON_WHITE)
    chart = chart.resolve_scale(color="independent")
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, cell * len(order) + 220), table)
