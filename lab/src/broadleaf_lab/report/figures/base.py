"""What every figure of the laboratory shares: its parts, its look, units and words for numbers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

# A chart whose colours only mean something on white: the page leaves it unchanged in dark mode.
ON_WHITE = {"onWhite": True}
# Blue is faster and red is slower everywhere; colour-blind readers can tell both apart, and the other colours too.
FASTER, SLOWER, NEUTRAL, INK = "#2166ac", "#b2182b", "#8c8c8c", "#222222"
CATEGORIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c510a", "#555555")
TIERS = {
    1: "1 environment, safe option",
    2: "2 source, features kept",
    3: "3 option, feature lost",
    4: "4 source, feature lost",
}
TIER_COLOURS = ("#009e73", "#56b4e9", "#e69f00", "#d55e00")
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
LABEL_PIXELS = 300
MAX_POINTS = 1500
# The non-breaking space between a number and its unit.
JOINED = "\u00a0"


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart (`spec`, for Vega-Lite), the table behind it, what it shows and how to read it.

    `question` is what it answers, `title` states the finding, `reading` says how to read it. The table holds plain
    numbers, times in microseconds.
    """

    number: int
    key: str
    title: str
    reading: str
    spec: dict[str, Any]
    table: pd.DataFrame
    question: str = ""

    @property
    def stem(self) -> str:
        """Its file name without extension."""
        return f"{self.number:02d}_{self.key}"

    def svg(self) -> str:
        """The chart as a picture."""
        import vl_convert

        svg: str = vl_convert.vegalite_to_svg(self.spec)
        return svg

    def _repr_svg_(self) -> str:
        # A picture, not a script: it is seen without a network and after the kernel is gone.
        return self.svg()


@dataclass(frozen=True, slots=True)
class Missing:
    """A figure that this study's data cannot provide, and why."""

    number: int
    key: str
    reason: str
    question: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit in which times are shown; tables keep microseconds."""

    name: str
    us: float

    @classmethod
    def of(cls, *times_us: Any) -> Unit:
        """The unit in which the largest of the times is easy to read."""
        largest = max((float(np.nanmax(np.abs(np.asarray(t, dtype=float)))) for t in times_us if len(t)), default=1.0)
        if largest < 20_000:
            return cls("us", 1.0)
        return cls("ms", 1e3) if largest < 20_000_000 else cls("s", 1e6)

    def shown(self, time_us: float, signed: bool = False) -> str:
        """A time with its unit and three significant digits."""
        return f"{number(time_us / self.us, signed)}{JOINED}{self.name}"


def number(value: float, signed: bool = False) -> str:
    """A number with three significant digits, thousands grouped, and a true minus sign."""
    if not math.isfinite(value):
        return "unknown"
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    text = f"{size:,.{digits}f}".removesuffix(".00").removesuffix(".0")
    if float(text.replace(",", "")) == 0:
        return "0"
    return ("\u2212" if value < 0 else "+" if signed else "") + text


def percent(log_ratio: float) -> str:
    """A natural logarithm of a ratio of times as a change in percent."""
    return number(100 * math.expm1(log_ratio), signed=True) + JOINED + "%"


def on_off(level: Any) -> str:
    """A level as shown in the legend."""
    if isinstance(level, (bool, np.bool_)):
        return "on" if level else "off"
    if isinstance(level, (float, np.floating)) and float(level).is_integer():
        level = int(level)
    return str(level)


def shown_levels(levels: pd.Series, is_bool: bool) -> pd.Series:
    """A column of levels as words; a yes-or-no factor's 0 and 1 become off and on."""
    if is_bool:
        return levels.astype(float).map({0.0: "off", 1.0: "on"})
    return levels.map(on_off)


def in_order(levels: Iterable[Any]) -> list[str]:
    """Distinct levels as words, numbers in order of size."""
    distinct = pd.Series(list(levels)).dropna().drop_duplicates().tolist()
    try:
        return [on_off(level) for level in sorted(distinct, key=float)]
    except (TypeError, ValueError):
        return sorted(on_off(level) for level in distinct)


def thinned(frame: pd.DataFrame, max_rows: int = MAX_POINTS) -> pd.DataFrame:
    """What a figure draws of a table that grows with the runs: at most this many rows, sampled with a fixed seed, of
    numbers with as many digits as a pixel shows. The table behind the figure keeps all.
    """
    kept = frame if len(frame) <= max_rows else frame.sample(max_rows, random_state=7).sort_index()
    numbers = kept.select_dtypes("floating").columns
    return kept.assign(**{name: [short(value) for value in kept[name]] for name in numbers})


def short(value: float) -> float:
    """A number with five significant digits."""
    return float(f"{value:.5g}")


LOOK: dict[str, Any] = {
    "background": "white",
    "font": FONT,
    "title": {"fontSize": 16, "subtitleFontSize": 12.5, "subtitleColor": "#555555", "offset": 14, "subtitlePadding": 6},
    "axis": {
        "labelFontSize": 12.5,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "titleColor": "#333333",
        "titlePadding": 10,
        "labelLimit": LABEL_PIXELS,
        "gridColor": "#e6e6e6",
        "domainColor": "#999999",
        "tickColor": "#999999",
    },
    # Labels of numbers may be omitted, labels of names may not.
    "axisQuantitative": {"labelOverlap": "parity", "labelSeparation": 6},
    "legend": {
        "labelFontSize": 12.5,
        "titleFontSize": 12.5,
        "labelLimit": LABEL_PIXELS,
        "titleLimit": LABEL_PIXELS,
        "symbolSize": 90,
    },
    "header": {"labelFontSize": 12.5, "titleFontSize": 13},
    "view": {"stroke": "#cccccc", "continuousWidth": 300, "continuousHeight": 300},
}


def finish(chart: Any, text: str, reading: str, width: int) -> dict[str, Any]:
    """The chart with the laboratory's look and its title: the finding above and how to read it below, both wrapped to
    the chart's width.
    """
    # A chart copies all of its layers whenever something is set, so title and look are set in what it becomes.
    spec: dict[str, Any] = chart.to_dict(validate=False)
    heading = {
        "text": textwrap.wrap(text, max(30, int(width / 8.2))),
        "subtitle": textwrap.wrap(reading, max(40, int(width / 6.4))),
        "anchor": "start",
        "frame": "group",
    }
    return {**spec, "title": heading, "padding": 14, "config": LOOK}


def beside(parts: Sequence[Figure], names: Sequence[str], column: str) -> Figure:
    """One figure of several: their charts beside each other under the first one's reading, and their tables one below
    the other with a `column` that says whose a row is.
    """
    first, spec = parts[0], parts[0].spec
    texts = [part.title for part in parts]
    charts, datasets, width = [], {}, 0
    for part, name in zip(parts, names, strict=True):
        datasets.update(part.spec.get("datasets", {}))
        own = {k: v for k, v in part.spec.items() if k not in {"title", "config", "padding", "datasets", "$schema"}}
        charts.append({**own, "title": {"text": name, "anchor": "start", "fontSize": 13.5}})
        width += max(map(len, part.spec["title"]["text"]), default=0)
    text = ". ".join(texts)
    readings = " ".join(dict.fromkeys(part.reading for part in parts))
    heading = {
        # A page that has less room joins the lines.
        "text": [line for part in parts for line in textwrap.wrap(f"{part.title}.", max(60, width))],
        "subtitle": textwrap.wrap(readings, max(80, int(1.25 * width))),
        "anchor": "start",
        "frame": "group",
    }
    whole = {
        "$schema": spec["$schema"], "hconcat": charts, "datasets": datasets, "title": heading, "padding": 14,
        "config": LOOK,
    }  # fmt: skip
    table = pd.concat([part.table.assign(**{column: name}) for part, name in zip(parts, names, strict=True)])
    return Figure(first.number, first.key, text, readings, whole, table.reset_index(drop=True))


def require(frame: pd.DataFrame, columns: Sequence[str], figure: str) -> None:
    """Raises KeyError that names the columns that a figure lacks."""
    lacking = [c for c in columns if c not in frame.columns]
    if lacking:
        raise KeyError(f"the figure {figure} lacks the columns {', '.join(lacking)}; it has {', '.join(frame.columns)}")


def categories(names: Sequence[str]) -> alt.Scale:
    """A colour for each name, the same whatever the data."""
    return alt.Scale(domain=list(names), range=[CATEGORIES[i % len(CATEGORIES)] for i in range(len(names))])


def log_domain(values: Any) -> list[float]:
    """Bounds of a logarithmic axis around the values, a little wider than they are."""
    array = np.asarray(values, dtype=float)
    array = array[np.isfinite(array) & (array > 0)]
    low, high = float(array.min()), float(array.max())
    margin = max((high / low) ** 0.04, 1.02)
    return [low / margin, high * margin]


def axis_values(domain: Sequence[float]) -> list[float]:
    """Three to eight round tick positions inside the bounds of a logarithmic axis."""
    low, high = domain
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 6, 8)):
        inside = [float(f"{m * 10.0**e:.6g}") for e in decades for m in steps if low <= m * 10.0**e <= high]
        if len(inside) >= 4:
            return inside
    # For less than a factor of about four, ticks as on a linear axis.
    size = 10.0 ** math.floor(math.log10((high - low) / 3))
    step = max((m * size for m in (1, 2, 5) if (high - low) / (m * size) >= 3), default=size)
    first = math.ceil(low / step)
    return [float(f"{i * step:.6g}") for i in range(first, math.floor(high / step) + 1)]
