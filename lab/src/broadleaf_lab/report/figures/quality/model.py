"""Figures of the fitted model: actual against predicted, and the pairs' coefficients as tiles."""

from __future__ import annotations

import math
from typing import Literal

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
    axis_values,
    finish,
    log_domain,
    number,
    percent,
    require,
    thinned,
)
from broadleaf_lab.text import listed

WIDTH = HEIGHT = 460


def actual_predicted(
    table: pd.DataFrame, fig_number: int, key: str, model: str, r_squared: float, scale: str = "us"
) -> Figure:
    """One point per run: measured time per task (x), the model's (y), and the line of agreement.

    `table` has actual_us and predicted_us; `model` says in words what was fitted; `scale` "us" or "log" (both axes).
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
    if scale == "log":
        shown = shown[shown["predicted"] > 0]
        bounds = log_domain(np.concatenate([shown["actual"], shown["predicted"]]))
        axis = alt.Axis(format=",.6~g", values=axis_values(bounds))
        kind = alt.Scale(type="log", domain=bounds, nice=False)
    else:
        values = np.concatenate([shown["actual"], shown["predicted"]])
        low, high = min(0.0, float(values.min())), float(values.max())
        bounds = [low * 1.05, high + 0.03 * (high - low)]
        axis, kind = alt.Axis(format=",.6~g", tickCount=6), alt.Scale(domain=bounds, nice=False, zero=False)
    points = (
        alt.Chart(thinned(shown).round(4))
        .mark_circle(size=30, opacity=0.45, color=CATEGORIES[0])
        .encode(
            x=alt.X("actual:Q", scale=kind, axis=axis, title=f"measured time per task ({unit.name})"),
            y=alt.Y("predicted:Q", scale=kind, axis=axis, title=f"predicted time per task ({unit.name})"),
            tooltip=[alt.Tooltip("actual", format=".3~g"), alt.Tooltip("predicted", format=".3~g")],
        )
    )
    line = alt.Chart(pd.DataFrame({"actual": bounds, "predicted": bounds}))
    diagonal = line.mark_line(color=INK, strokeDash=[5, 4], strokeWidth=1.2).encode(
        x=alt.X("actual:Q"), y=alt.Y("predicted:Q")
    )
    chart = alt.layer(points, diagonal, width=WIDTH, height=HEIGHT)
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, WIDTH + 100), table)


def _rms(values: pd.Series) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else math.nan


def tiles(pairs: pd.DataFrame, fig_number: int, key: str, scale: str = "us", q_limit: float = 0.05) -> Figure:
    """A symmetric map of the interaction of every pair of factors, the strongest negatives at the top right.

    `pairs` has a, b, estimate and q (the false discovery rate at which it counts); the estimate is in microseconds, or,
    if `scale` is "log", the natural logarithm of a ratio.
    """
    require(pairs, ("a", "b", "estimate", "q"), key)
    table = pairs.reset_index(drop=True)
    log = scale == "log"
    unit = Unit.of(table["estimate"])
    shown_of = percent if log else lambda value: unit.shown(value, signed=True)
    both = pd.concat([table, table.rename(columns={"a": "b", "b": "a"})])
    means = both.groupby("a")["estimate"].mean().sort_values(ascending=False)
    order = means.index.tolist()
    real = table[table["q"] <= q_limit]
    if real.empty:
        text = f"None of {len(table)} pairs interacts for certain"
    else:
        top = real.loc[real["estimate"].abs().idxmax()]
        size = shown_of(top["estimate"])
        if log:
            size = f"together {number(math.exp(top['estimate']))} times the time that both alone make likely"
        text = (
            f"{len(real)} of {len(table)} pairs {'interacts' if len(real) == 1 else 'interact'} for certain; "
            f"most of all {top['a']} with {top['b']} ({size})"
        )
    values = 100 * np.expm1(both["estimate"]) if log else both["estimate"] / unit.us
    shown = pd.DataFrame({"a": both["a"], "b": both["b"], "value": values, "real": both["q"] <= q_limit})
    sizes = shown["value"].abs()
    limit = float(sizes.max()) or 1.0
    # The colours follow the square root of the size; otherwise one giant pair would leave all others white.
    shown["colour"] = np.sign(shown["value"]) * np.sqrt(sizes / limit)
    small = len(order) <= 20
    cell = 44 if len(order) <= 12 else 38 if small else 20
    shown["label"] = [
        number(v, signed=True) if real else "·" for v, real in zip(shown["value"], shown["real"], strict=True)
    ]
    shown["ink"] = np.where(shown["colour"].abs() > 0.75, "white", "black")
    shown["value"] = shown["value"].round(3)
    base = alt.Chart(shown).encode(
        x=alt.X("a:N", sort=order, title=None, axis=alt.Axis(labelAngle=-45)),
        y=alt.Y("b:N", sort=order[::-1], title=None),
    )
    what = "%" if log else unit.name
    quarter = [-1, -0.5, 0, 0.5, 1]
    names = [number(math.copysign(q * q, q) * limit, signed=True) for q in quarter]
    cases = " : ".join(f"abs(datum.value - {q}) < 0.01 ? '{n}'" for q, n in zip(quarter, names, strict=True)) + " : ''"
    rects = base.mark_rect().encode(
        color=alt.Color(
            "colour:Q",
            title=["both together against", f"both alone ({what})"] if log else ["both together", f"add ({what})"],
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
        (
            "A cell: the time with both, against what each alone makes likely "
            if log
            else "A cell: what both together add beyond the sum of each alone "
        )
        + "(red: they save less together; blue: more). "
        + (
            f"Numbers are shown where the pair is real at a false discovery rate of {number(100 * q_limit)} %."
            if small
            else ""
        )
    )
    # The words' colours are values, not part of a scale.
    chart = alt.layer(*layers, width=alt.Step(cell), height=alt.Step(cell * 0.8), usermeta=ON_WHITE)
    chart = chart.resolve_scale(color="independent")
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, cell * len(order) + 220), table)


def half_normal(terms: pd.DataFrame, fig_number: int, key: str) -> Figure:
    """Sizes of all effects compared with what noise alone would give; effects off the line are real.

    `terms` has name, estimate (coefficients over their standard errors) and real: whether the tables say so too. The
    line shows noise with Lenth's pseudo standard error, and the dotted line its simultaneous margin. The largest
    effects have labels.
    """
    from scipy.stats import halfnorm, t

    require(terms, ("name", "estimate", "real"), key)
    table = terms.assign(size=terms["estimate"].abs()).sort_values("size").reset_index(drop=True)
    n = len(table)
    table["quantile"] = halfnorm.ppf((np.arange(1, n + 1) - 0.5) / n)
    first = 1.5 * float(table["size"].median())
    error = 1.5 * float(table["size"][table["size"] < 2.5 * first].median())
    share = (1 + 0.95 ** (1 / n)) / 2
    margin = float(t.ppf(share, n / 3)) * error
    table["pseudo_error"], table["margin"] = error, margin
    real = table[table["real"]].iloc[::-1]
    text = (
        f"{len(real)} of {n} effects and pairs are more than noise: {listed(real['name'], 4)}"
        if len(real)
        else f"None of {n} effects and pairs is more than noise"
    )
    reading = (
        "A point is the effect of a factor or a pair (\u00d7), at the size that it has against how far noise alone "
        "would carry the point of its rank. Points along the dashed line are noise; above the dotted line noise would "
        "carry one of all in 5 % of studies. Orange: what the tables call real."
    )
    shown = table.assign(kind=np.where(table["real"], "real", "may be noise"))
    shown["label"], shown["side"] = _named_terms(shown)
    end = float(shown["quantile"].max())
    top = float(shown["size"].max())
    base = alt.Chart(shown).encode(
        x=alt.X(
            "quantile:Q",
            title="how far noise would carry it (standard errors)",
            scale=alt.Scale(domain=[0, end * 1.5], nice=False),
            axis=alt.Axis(tickCount=6),
        ),
        y=alt.Y(
            "size:Q",
            title="size of the effect (standard errors)",
            scale=alt.Scale(type="sqrt", domain=[0, 1.06 * top], nice=False),
            axis=alt.Axis(tickCount=7),
        ),
    )
    points = base.mark_circle(size=55).encode(
        color=alt.Color(
            "kind:N", title=None, scale=alt.Scale(domain=["real", "may be noise"], range=[CATEGORIES[5], "#8c8c8c"])
        ),
        tooltip=[alt.Tooltip("name"), alt.Tooltip("estimate", format="+.3~g")],
    )
    sides: list[tuple[str, Literal["left", "right"], int]] = [("right", "left", 9), ("left", "right", -9)]
    labels = [
        alt.Chart(shown[shown["side"] == side])
        .mark_text(align=align, dx=shift, fontSize=12, limit=320)
        .encode(x=alt.X("quantile:Q"), y=alt.Y("size:Q"), text=alt.Text("label:N"))
        for side, align, shift in sides
    ]
    # A straight line appears bent if the axis shows roots.
    line = pd.DataFrame({"quantile": np.linspace(0, end, 60), "size": np.linspace(0, end * error, 60)})
    noise = (
        alt.Chart(line)
        .mark_line(color=INK, strokeDash=[5, 4], strokeWidth=1.2)
        .encode(x=alt.X("quantile:Q"), y=alt.Y("size:Q"))
    )
    limit = (
        alt.Chart(pd.DataFrame({"size": [margin]})).mark_rule(color=INK, strokeDash=[2, 3]).encode(y=alt.Y("size:Q"))
    )
    chart = alt.layer(noise, limit, points, *labels, width=620, height=420)
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, 740), table)


def _named_terms(terms: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The labels of the largest real terms, and the side of the point on which each is placed; the others have none,
    because labels of terms that almost coincide could not be read.
    """
    root = np.sqrt(terms["size"].to_numpy(dtype=float))
    top = float(root.max())
    labels, sides = [""] * len(terms), [""] * len(terms)
    last = {"right": math.inf, "left": math.inf}
    for index in range(len(terms) - 1, -1, -1):
        term = terms.iloc[index]
        if not term["real"]:
            continue
        # There is space on the left as long as the points are far apart.
        sides_open = ("right", "left") if index >= len(terms) - 6 else ("right",)
        side = next((side for side in sides_open if last[side] - root[index] > 0.04 * top), None)
        if side is not None:
            labels[index], sides[index], last[side] = str(term["name"]), side, float(root[index])
    return labels, sides
