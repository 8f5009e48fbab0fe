"""Treemaps: a path as areas, the whole being the baseline's time per task."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt
import pandas as pd

from broadleaf_lab.report.figures.base import NEUTRAL, TIER_COLOURS, TIERS, Figure, Unit, finish, number, require
from broadleaf_lab.text import listed

WIDTH, HEIGHT = 290, 260
KEY_PIXELS = 262
_LINE_PIXELS = 22
REST = "still there"
BARE = alt.ViewConfig(strokeOpacity=0)
BLUES = ("#08306b", "#08519c", "#2171b5", "#4292c6", "#6baed6", "#9ecae1", "#c6dbef", "#deebf7")


def treemap(path: pd.DataFrame, fig_number: int, key: str, order: str = "best first") -> Figure:
    """The time per task of the baseline as one area, cut into what each step of the path saves and what is left.

    `path` is the same as for a waterfall. A step that costs time has no area; the reading names it.
    """
    require(path, ("step", "name", "before_us", "after_us"), key)
    steps = path.sort_values("step").reset_index(drop=True)
    saved = steps["before_us"] - steps["after_us"]
    costing = steps["name"][saved < 0].tolist()
    parts = pd.DataFrame(
        {
            "name": [*steps["name"], REST],
            "area_us": [*saved, float(steps["after_us"].iloc[-1])],
            "tier": [*(steps["tier"] if "tier" in steps.columns else [0] * len(steps)), 0],
        }
    )
    parts = parts[parts["area_us"] > 0].sort_values("area_us", ascending=False).reset_index(drop=True)
    parts["share"] = parts["area_us"] / parts["area_us"].sum()
    parts[["x0", "y0", "x1", "y1"]] = squarified(parts["share"].tolist(), 0.0, 0.0, WIDTH, HEIGHT)
    unit = Unit.of(parts["area_us"])
    table = parts.drop(columns="tier")
    steps_only = parts[parts["name"] != REST]
    first = float(steps["before_us"].iloc[0])
    if steps_only.empty:
        text = f"No step saves any of the {unit.shown(first)} per task"
    else:
        top = steps_only.iloc[0]
        text = (
            f"{top['name']} takes {number(100 * top['share'])} % of the baseline's {unit.shown(first)} per task, "
            f"added {order}"
        )
    reading = "Area: time per task that a step removes; grey is what is left at the end. The list names small tiles."
    if costing:
        reading += f" Without area, since they cost time here: {listed(costing)}."
    tiered = order != "best first" and "tier" in steps.columns
    chart = _chart(parts, unit, tiered)
    return Figure(fig_number, key, text, reading, finish(chart, text, reading, WIDTH + KEY_PIXELS), table)


def squarified(
    shares: Sequence[float], x0: float, y0: float, x1: float, y1: float
) -> list[tuple[float, float, float, float]]:
    """Rectangles that fill one and have these shares of its area, near to squares (Bruls, Huizing and van Wijk).

    Largest share first. Each row is laid along the shorter side, as long as that makes its tiles squarer.
    """
    if not shares:
        return []
    total, width, height = math.fsum(shares), x1 - x0, y1 - y0
    scale, side = width * height / total, min(width, height)

    def worst(n: int) -> float:
        """The ratio of sides that is furthest from 1 in a row of the first n."""
        depth = math.fsum(shares[:n]) * scale / side
        ratios = (shares[i] * scale / depth**2 for i in (0, n - 1))
        return max(max(ratio, 1 / ratio) for ratio in ratios)

    n = 1
    while n < len(shares) and worst(n + 1) <= worst(n):
        n += 1
    row = math.fsum(shares[:n])
    found, at = [], 0.0
    for share in shares[:n]:
        before, at = at, at + share / row
        if width >= height:
            found.append((x0, y0 + before * height, x0 + row / total * width, y0 + at * height))
        else:
            found.append((x0 + before * width, y0, x0 + at * width, y0 + row / total * height))
    if width >= height:
        return found + squarified(shares[n:], x0 + row / total * width, y0, x1, y1)
    return found + squarified(shares[n:], x0, y0 + row / total * height, x1, y1)


def _chart(parts: pd.DataFrame, unit: Unit, tiered: bool) -> alt.HConcatChart:
    shown = parts.copy()
    shown["rank"] = range(1, len(shown) + 1)
    shown["amount"] = [unit.shown(a) for a in shown["area_us"]]
    width, height = shown["x1"] - shown["x0"], shown["y1"] - shown["y0"]
    longest = shown["name"].str.len().clip(lower=8) * 9.0 + 12
    shown["named"] = (width >= longest) & (height >= 38)
    shown["middle_x"], shown["middle_y"] = (shown["x0"] + shown["x1"]) / 2, (shown["y0"] + shown["y1"]) / 2
    shown["rank_text"] = [
        str(r) if w >= 12 and h >= 13 else "" for r, w, h in zip(shown["rank"], width, height, strict=True)
    ]
    if tiered:
        shown["fill"] = [
            NEUTRAL if n == REST else TIER_COLOURS[int(t) - 1]
            for n, t in zip(shown["name"], shown["tier"], strict=True)
        ]
    else:
        blues = iter([*BLUES, *[BLUES[-1]] * len(shown)])
        shown["fill"] = [NEUTRAL if n == REST else next(blues) for n in shown["name"]]
    shown["ink"] = [_ink(colour) for colour in shown["fill"]]
    base = alt.Chart(shown).encode(
        x=alt.X("x0:Q", axis=None, scale=alt.Scale(domain=[0, WIDTH], nice=False)),
        y=alt.Y("y0:Q", axis=None, scale=alt.Scale(domain=[HEIGHT, 0], nice=False)),
    )
    tiles = base.mark_rect(stroke="white", strokeWidth=2).encode(
        x2=alt.X2("x1:Q"),
        y2=alt.Y2("y1:Q"),
        color=alt.Color("fill:N", scale=None),
        tooltip=[alt.Tooltip("name"), alt.Tooltip("amount")],
    )
    middle = alt.Chart(shown).encode(x=alt.X("middle_x:Q"), y=alt.Y("middle_y:Q"), color=alt.Color("ink:N", scale=None))
    named = middle.transform_filter("datum.named")
    names = named.mark_text(dy=-8, fontSize=13, fontWeight="bold").encode(text=alt.Text("name:N"))
    amounts = named.mark_text(dy=10, fontSize=12.5).encode(text=alt.Text("amount:N"))
    ranks = middle.transform_filter("!datum.named").mark_text(fontSize=11).encode(text=alt.Text("rank_text:N"))
    area = alt.layer(tiles, names, amounts, ranks, width=WIDTH, height=HEIGHT)
    shown["line"] = [f"{r}  {n}  {a}" for r, n, a in zip(shown["rank"], shown["name"], shown["amount"], strict=True)]
    rows = alt.Chart(shown).encode(
        y=alt.Y("rank:O", axis=None),
    )
    squares = rows.mark_square(size=120, x=10, opacity=1).encode(color=alt.Color("fill:N", scale=None))
    lines = rows.mark_text(align="left", x=24, fontSize=12, limit=KEY_PIXELS - 26).encode(text=alt.Text("line:N"))
    # As many rows as tiles: if the list comes below the area, no gap comes with it.
    legend = alt.layer(squares, lines, width=KEY_PIXELS - 20, height=min(HEIGHT, _LINE_PIXELS * len(shown)), view=BARE)
    if tiered:
        used = sorted({int(t) for t in shown["tier"] if t})
        note = pd.DataFrame({"i": used, "text": [TIERS[t] for t in used], "fill": [TIER_COLOURS[t - 1] for t in used]})
        strip = alt.Chart(note).encode(y=alt.Y("i:O", axis=None))
        tiers = alt.layer(
            strip.mark_square(size=120, x=10, opacity=1).encode(color=alt.Color("fill:N", scale=None)),
            strip.mark_text(align="left", x=24, fontSize=12).encode(text=alt.Text("text:N")),
        ).properties(
            width=KEY_PIXELS - 20,
            height=20 * len(used),
            view=BARE,
            title=alt.Title("tier", fontSize=12.5, anchor="start"),
        )
        return alt.hconcat(area, alt.vconcat(legend, tiers))
    return alt.hconcat(area, legend)


def _ink(colour: str) -> str:
    """Black or white, whichever is legible on the colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "black"
