"""Principal components of the paths: which factors trade their savings against each other."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from broadleaf_lab.report.figures.base import CATEGORIES, INK, NEUTRAL, Figure, Unit, finish, number, require, thinned
from broadleaf_lab.text import listed

WIDTH, HEIGHT = 460, 400
MAX_ARROWS = 6


def biplot(
    scores: pd.DataFrame, loadings: pd.DataFrame, variance_ratio: Sequence[float], fig_number: int, key: str
) -> Figure:
    """Paths as points on the first two components, factors as arrows.

    `scores` has pc1 and pc2 in microseconds, a row per path; `loadings` name, pc1, pc2 and, where told, `known`:
    whether its interval leaves out zero on one of them. Only the arrows of the most important factors are labelled.
    """
    require(scores, ("pc1", "pc2"), key)
    require(loadings, ("name", "pc1", "pc2"), key)
    table = loadings.copy()
    table["length"] = np.hypot(table["pc1"], table["pc2"])
    table = table.sort_values("length", ascending=False).reset_index(drop=True)
    unit = Unit.of(scores["pc1"], scores["pc2"])
    points = scores[["pc1", "pc2"]] / unit.us
    reach = float(np.abs(points.to_numpy()).max())
    arrows = table.copy()
    stretch = 0.85 * reach / float(arrows["length"].max())
    arrows["x"], arrows["y"] = arrows["pc1"] * stretch, arrows["pc2"] * stretch
    arrows["zero"] = 0.0
    # A triangle points up at angle 0; screens turn clockwise.
    arrows["angle"] = 90 - np.degrees(np.arctan2(arrows["y"], arrows["x"]))
    sure = arrows[arrows["known"].astype(bool)] if "known" in arrows.columns else arrows
    named = _labels(sure.head(MAX_ARROWS)[lambda rows: rows["length"] >= 0.15 * table["length"].max()], reach)
    bold = arrows["name"].isin(named["name"])
    text = f"Orders differ most ({number(100 * variance_ratio[0])} %) in what is saved by {_opposed(table, 'pc1')}"
    if len(variance_ratio) > 1:
        text += f", then ({number(100 * variance_ratio[1])} %) by {_opposed(table, 'pc2')}"
    reading = (
        "A point is one order of adding all treatments. An arrow points to the orders in which that treatment saves "
        "less; of two that point apart, the one that comes first takes what the other could have saved. In part that "
        "is arithmetic: every order saves the same in all. Grey arrows may be noise, or are short."
    )
    domain = alt.Scale(domain=[-1.4 * reach, 1.4 * reach], nice=False)
    words = ("largest", "second largest")
    titles = [
        f"{word} difference between orders ({number(100 * v)} %; {unit.name})"
        for word, v in zip(words, variance_ratio, strict=False)
    ]
    dots = (
        alt.Chart(thinned(points))
        .mark_circle(size=34, opacity=0.45, color=NEUTRAL)
        .encode(
            x=alt.X("pc1:Q", scale=domain, title=titles[0], axis=alt.Axis(format=",.6~g", tickCount=8)),
            y=alt.Y("pc2:Q", scale=domain, title=titles[-1], axis=alt.Axis(format=",.6~g", tickCount=8)),
        )
    )
    lines = alt.layer(
        *(
            alt.Chart(arrows[group])
            .mark_rule(color=colour, strokeWidth=width)
            .encode(x=alt.X("zero:Q"), y=alt.Y("zero:Q"), x2=alt.X2("x:Q"), y2=alt.Y2("y:Q"))
            for group, colour, width in ((~bold, "#c8c8c8", 1.2), (bold, CATEGORIES[5], 1.8))
        )
    )
    heads = (
        alt.Chart(arrows[bold])
        .mark_point(shape="triangle", filled=True, size=90, color=CATEGORIES[5], opacity=1)
        .encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), angle=alt.Angle("angle:Q", scale=None))
    )
    labels = []
    for align in ("left", "right"):
        side = named[named["align"] == align]
        base = alt.Chart(side).encode(x=alt.X("label_x:Q"), y=alt.Y("label_y:Q"), text=alt.Text("name:N"))
        labels.append(base.mark_text(align=align, fontSize=13, stroke="white", strokeWidth=4, strokeJoin="round"))
        labels.append(base.mark_text(align=align, fontSize=13, color=INK))
    chart = alt.layer(dots, lines, heads, *labels, width=WIDTH, height=HEIGHT)
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, WIDTH + 60), table)


def _opposed(table: pd.DataFrame, component: str) -> str:
    """The factors that have opposite signs in a component."""
    strong = table[table[component].abs() >= 0.3 * table[component].abs().max()]
    ordered = strong.reindex(strong[component].abs().sort_values(ascending=False).index)
    plus, minus = ordered[ordered[component] > 0]["name"], ordered[ordered[component] < 0]["name"]
    if len(plus) and len(minus):
        return f"{listed(plus, 2)} against {listed(minus, 2)}"
    return listed([*plus, *minus], 2)


def _labels(arrows: pd.DataFrame, reach: float) -> pd.DataFrame:
    """Label positions at the arrows' ends, pushed apart vertically where they would overlap."""
    labels = arrows.copy()
    labels["align"] = np.where(labels["x"] >= 0, "left", "right")
    labels["label_x"] = labels["x"] + np.where(labels["x"] >= 0, 0.035, -0.035) * reach
    labels["label_y"] = labels["y"]
    gap = 0.085 * reach
    for align in ("left", "right"):
        side = labels[labels["align"] == align].sort_values("label_y")
        placed: list[float] = []
        for y in side["label_y"]:
            placed.append(max(float(y), placed[-1] + gap) if placed else float(y))
        if placed:
            # Back towards the middle of their proper positions.
            shift = float(np.mean(placed) - side["label_y"].mean())
            labels.loc[side.index, "label_y"] = [p - shift for p in placed]
    return labels


def scree(variance: pd.DataFrame, fig_number: int, key: str) -> Figure:
    """Share of the variance that each component holds, with what noise alone would give.

    `variance` has component (from 1), ratio and, where simulated, null_95: the 95th percentile of the ratio when no
    factors interact.
    """
    require(variance, ("component", "ratio"), key)
    table = variance.sort_values("component").reset_index(drop=True)
    table["cumulative"] = table["ratio"].cumsum()
    first_two = 100 * float(table["ratio"].head(2).sum())
    text = f"The first two ways in which orders differ hold {number(first_two)} % of their differences"
    reading = "Bar: one way in which orders differ (a component), and its share of all their differences."
    shown = table[table["component"] <= 20].copy()
    shown["percent"], shown["share"] = 100 * shown["ratio"], [number(100 * c) for c in shown["ratio"]]
    shown["kind"] = "not above noise"
    if "null_95" in table.columns:
        # Components count up to the first one that noise explains.
        real = int((table["ratio"] > table["null_95"]).cumprod().sum())
        text += f"; {real or 'none'} of {len(table)} {'is' if real <= 1 else 'are'} beyond noise"
        shown.loc[shown["component"] <= real, "kind"] = "more than noise"
        shown["noise"] = 100 * shown["null_95"]
        reading += (
            " Black line: what noise and effects that only multiply reach in 5 % of simulations. Bars that pass it are"
            " interactions: what a treatment saves depends on which came before it."
        )
    shown["top"] = shown[["percent", "noise"]].max(axis=1) if "noise" in shown.columns else shown["percent"]
    base = alt.Chart(shown).encode(x=alt.X("component:O", title="component", axis=alt.Axis(labelAngle=0)))
    bars = base.mark_bar().encode(
        y=alt.Y("percent:Q", title="share of the differences between orders (%)"),
        color=alt.Color(
            "kind:N",
            title=None,
            legend=alt.Legend(orient="top"),
            scale=alt.Scale(domain=["more than noise", "not above noise"], range=[CATEGORIES[4], "#c8c8c8"]),
        ),
    )
    layers = [bars, base.mark_text(dy=-8, fontSize=10).encode(y=alt.Y("top:Q"), text=alt.Text("share:N"))]
    if "noise" in shown.columns:
        layers.append(base.mark_tick(color=INK, thickness=2.5, width=14).encode(y=alt.Y("noise:Q")))
    chart = alt.layer(*layers, width=380, height=HEIGHT)
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, WIDTH + 60), table)
