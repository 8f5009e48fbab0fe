"""The HTML page: verdicts first, then tables, then figures; everything it needs is inside the one file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import pandas as pd

from broadleaf_lab.report.figures.base import Figure, Missing, Unit, in_order, short, shown_levels
from broadleaf_lab.spec.factors import Factor, column_value

MAX_ROWS_PER_TREATMENT = 250
MAX_ROWS = 5000
MAX_LEVELS = 150_000
"""Of all factors in all rows: with more than thirty factors there are fewer rows."""
FIRST_READING = 6
"""The figures up to this number are drawn at once; the others are folded, and drawn when somebody opens them."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """The verdict on one factor: its word and the sentence."""

    factor: str
    word: str
    sentence: str

    @property
    def css(self) -> str:
        """The class that colours the word."""
        return self.word.split()[0] if self.word.split()[0] in {"helps", "hinders", "depends", "unknown"} else "calm"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page, its cells as text."""

    title: str
    reading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a page."""

    name: str
    facts: tuple[str, ...]
    summary: tuple[str, ...]
    verdicts: tuple[Sentence, ...]
    warnings: tuple[str, ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure | Missing, ...]
    method: tuple[str, ...]
    explorer: Mapping[str, Any] | None = None
    explorer_note: str = ""
    explorer_reason: str = ""
    model: Mapping[str, Any] | None = None


def render(contents: Contents) -> str:
    """The page as one HTML string without references to anything outside, except the folder `figures`."""
    import jinja2
    import vl_convert

    here = resources.files("broadleaf_lab.report").joinpath("web")

    def text(name: str) -> str:
        return here.joinpath(name).read_text(encoding="utf-8")

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False)
    template = environment.from_string(text("page.html.j2"))
    from markupsafe import Markup

    drawn = [f for f in contents.figures if isinstance(f, Figure)]
    first = [f for f in drawn if f.number <= FIRST_READING]
    specs = {f"chart-{f.number}": f.spec for f in drawn}
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    page: str = template.render(
        name=contents.name,
        facts=contents.facts,
        summary=contents.summary,
        verdicts=contents.verdicts,
        warnings=contents.warnings,
        tables=contents.tables,
        figures=first,
        more=drawn[len(first) :],
        missing=[f for f in contents.figures if isinstance(f, Missing)],
        method=contents.method,
        explorer=Markup(_json(contents.explorer)) if contents.explorer else None,
        explorer_note=contents.explorer_note,
        explorer_reason=contents.explorer_reason,
        model=Markup(_json(contents.model)) if contents.model else None,
        asked=bool((contents.explorer or {}).get("questions")),
        condition_example=_condition_example(contents.explorer),
        style=Markup(text("page.css")),
        script=Markup("\n".join(map(text, _SCRIPTS))),
        # An end tag inside the script would end it early.
        bundle=Markup(bundle.replace("</script", "<\\/script")),
        specs=Markup(_json(specs)),
    )
    return page


_SCRIPTS = ("conditions.js", "predictor.js", "charts.js", "explorer.js")


def _condition_example(explorer: Mapping[str, Any] | None) -> str:
    """A condition over the study's own factors, as an example of what one may write."""
    factors = (explorer or {}).get("factors", [])
    flags = [f["name"] for f in factors if f["levels"] == ["off", "on"]]
    if flags:
        return f"not {flags[0]}"
    return f"{factors[0]['name']} == {factors[0]['values'][0]!r}" if factors else ""


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")


def explorer_data(
    deltas: pd.DataFrame,
    factors: Sequence[Factor],
    paths: Mapping[str, pd.DataFrame],
    second: str | None,
    questions: Sequence[Mapping[str, Any]] = (),
) -> tuple[dict[str, Any], str]:
    """The values for the drop-downs, column by column, and a note if deltas were omitted to keep the file small.

    `deltas` is deltas.csv; `paths` are tables for waterfalls, by the name of their order; `second` is the factor that
    sets the colours at first; `questions` are those that one may ask by name.
    """
    most = min(MAX_ROWS, MAX_LEVELS // max(len(factors), 1))
    max_rows = max(1, min(MAX_ROWS_PER_TREATMENT, most // max(deltas["treatment"].nunique(), 1)))
    kept = pd.concat(
        [g if len(g) <= max_rows else g.sample(max_rows, random_state=7) for _, g in deltas.groupby("treatment")]
    )
    order = deltas.groupby("treatment")["delta_us"].mean().sort_values().index.tolist()
    columns = {f.name: f for f in factors if f.name in kept.columns}
    unit = Unit.of(deltas["before_us"], deltas["after_us"])
    context: dict[str, list[int]] = {}
    listed = []
    for name, factor in columns.items():
        values = kept[name].where(kept[name].notna(), column_value(factor.default))
        levels = ["off", "on"] if factor.is_bool else in_order([*map(column_value, factor.levels), *values.unique()])
        words = shown_levels(values, factor.is_bool)
        context[name] = [levels.index(word) for word in words]
        kinds = [False, True] if factor.is_bool else [_value(word, factor) for word in levels]
        listed.append({"name": name, "levels": levels, "values": kinds})
    data = {
        "unit": unit.name,
        "unit_us": unit.us,
        "treatments": order,
        "treatment": [order.index(t) for t in kept["treatment"]],
        "before_us": [short(v) for v in kept["before_us"]],
        "after_us": [short(v) for v in kept["after_us"]],
        "factors": listed,
        "context": context,
        "second": second,
        "questions": list(questions),
        "paths": {
            name: [
                {"name": str(r.name), "before_us": short(r.before_us), "after_us": short(r.after_us)}
                for r in path.sort_values("step").itertuples(index=False)
            ]
            for name, path in paths.items()
        },
    }
    note = (
        f"Of {len(deltas)} deltas, {len(kept)} drawn at random are inside this page." if len(kept) < len(deltas) else ""
    )
    return data, note


def _value(word: str, factor: Factor) -> float | str:
    """A level as a condition compares it: numbers as numbers."""
    return float(word) if all(isinstance(level, int | float) for level in factor.levels) else word
