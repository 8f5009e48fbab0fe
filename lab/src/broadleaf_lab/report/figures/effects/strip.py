"""The colour strip: a row per factor, speed from slow to fast, coloured by what the factor did there."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import altair as alt
import numpy as np
import pandas as pd

from broadleaf_lab.report.figures.base import (
    FASTER,
    ON_WHITE,
    SLOWER,
    Figure,
    Unit,
    axis_values,
    finish,
    log_domain,
    require,
    short,
    thinned,
)
from broadleaf_lab.text import listed

WIDTH = 640
ROW_PIXELS = 27
POINTS_PER_ROW, MAX_POINTS = 120, 3600


def colour_strip(deltas: pd.DataFrame, number: int, key: str, flips: Sequence[str] | None = None) -> Figure:
    """Every delta as a mark: x its time per task before (slow left, fast right), colour log2 of after over before.

    `deltas` is deltas.csv. Blue is faster, red slower; the colours are symmetric and end at the 95th percentile of
    size. `flips` are the factors known to change sign with speed; without them, those that the deltas show.
    """
    require(deltas, ("treatment", "before_us", "after_us"), key)
    table = deltas[["treatment", "before_us", "after_us"]].reset_index(drop=True)
    table["log2_ratio"] = np.log2(table["after_us"] / table["before_us"])
    order = table.groupby("treatment")["log2_ratio"].mean().sort_values().index.tolist()
    flips = flipping(table) if flips is None else flips
    text = (
        f"{listed(flips)} {'helps' if len(flips) == 1 else 'help'} on one end of the speed range and "
        f"{'hinders' if len(flips) == 1 else 'hinder'} on the other"
        if flips
        else "No factor is known to help on one end of the speed range and to hinder on the other"
    )
    reading = (
        "A mark is one context. Left: slow before the treatment; right: fast. Blue: it made it faster; red: slower."
    )
    limit = max(float(table["log2_ratio"].abs().quantile(0.95)), 0.05)
    unit = Unit.of(table["before_us"])
    per_row = max(1, min(POINTS_PER_ROW, MAX_POINTS // len(order)))
    shown = pd.concat([thinned(rows, per_row) for _, rows in table.groupby("treatment", sort=False)])
    shown = shown.assign(
        before=(shown["before_us"] / unit.us).map(short),
        colour=shown["log2_ratio"].clip(-limit, limit).map(short),
        jitter=np.random.default_rng(7).random(len(shown)).round(3),
    ).sample(frac=1.0, random_state=7)
    domain = log_domain(shown["before"])
    ends = round(limit, 2)
    chart = (
        alt.Chart(shown[["treatment", "before", "colour", "jitter"]])
        .mark_circle(size=38 if len(shown) > 40 * len(order) else 64, opacity=0.85, stroke="#777777", strokeWidth=0.25)
        .encode(
            x=alt.X(
                "before:Q",
                scale=alt.Scale(type="log", domain=domain[::-1], nice=False),
                axis=alt.Axis(format=",.6~g", values=axis_values(domain), grid=True),
                title=f"time per task before the treatment ({unit.name}, slow to fast)",
            ),
            y=alt.Y("treatment:N", sort=order, title=None, axis=alt.Axis(grid=True, bandPosition=1)),
            yOffset=alt.YOffset("jitter:Q", scale=alt.Scale(domain=[-0.25, 1.25])),
            color=alt.Color(
                "colour:Q",
                title=["log2(after/before)", "\u22121 halves, +1 doubles"],
                scale=alt.Scale(
                    domain=[-ends, -ends / 8, 0, ends / 8, ends],
                    range=[FASTER, "#92c5de", "#f7f7f7", "#f4a582", SLOWER],
                ),
                legend=alt.Legend(gradientLength=180, values=[-ends, -ends / 2, 0, ends / 2, ends], format="+.2f"),
            ),
            tooltip=[
                alt.Tooltip("treatment"),
                alt.Tooltip("before", format=".3~g"),
                alt.Tooltip("colour", format="+.2f"),
            ],
        )
        .properties(width=WIDTH, height=alt.Step(ROW_PIXELS), usermeta=ON_WHITE)
    )
    return Figure(number, key, text, reading, finish(chart, text, reading, WIDTH + 240), table)


def flipping(deltas: pd.DataFrame, known: Collection[str] = (), min_log2: float = 0.0144, z: float = 3.0) -> list[str]:
    """Treatments that help in the slowest third of their contexts and hinder in the fastest, or the reverse.

    Both must be certain: means `z` standard errors beyond `min_log2`, the size below which a change has no practical
    meaning (1 % by default). For `known` treatments, whose sign change is proven otherwise, the signs of the means
    suffice. The treatment with the strongest contrast comes first.
    """
    found = []
    for name, rows in deltas.groupby("treatment"):
        ratio = np.log2(rows["after_us"] / rows["before_us"])
        low, high = rows["before_us"].quantile([1 / 3, 2 / 3])
        ends = [ratio[rows["before_us"] >= high], ratio[rows["before_us"] <= low]]
        if min(map(len, ends)) < 5:
            continue
        means = [float(end.mean()) for end in ends]
        errors = [float(end.std(ddof=1)) / len(end) ** 0.5 for end in ends]
        certain = all(abs(m) - z * e > min_log2 for m, e in zip(means, errors, strict=True))
        if means[0] * means[1] < 0 and (certain or name in known):
            found.append((-abs(means[0] - means[1]), str(name)))
    return [name for _, name in sorted(found)]
