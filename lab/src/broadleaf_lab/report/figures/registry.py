"""The figures of a report, each the answer to a question. What else the published study drew is a choice in the
explorer (`report/questions.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from altair.utils.schemapi import debug_mode

from broadleaf_lab.report.figures.base import Figure, Missing, beside
from broadleaf_lab.report.figures.effects.before_after import before_after
from broadleaf_lab.report.figures.effects.interaction import two_by_two
from broadleaf_lab.report.figures.effects.means import means, side_by_side
from broadleaf_lab.report.figures.effects.response import response
from broadleaf_lab.report.figures.effects.strip import colour_strip
from broadleaf_lab.report.figures.evidence import Evidence
from broadleaf_lab.report.figures.paths.pca import biplot, scree
from broadleaf_lab.report.figures.paths.treemap import treemap
from broadleaf_lab.report.figures.paths.waterfall import waterfall
from broadleaf_lab.report.figures.quality.convergence import convergence
from broadleaf_lab.report.figures.quality.drift import drift
from broadleaf_lab.report.figures.quality.model import actual_predicted, bounds, tiles
from broadleaf_lab.text import listed

BEST, NICE = "best first", "nicest first"


@dataclass(frozen=True, slots=True)
class Entry:
    """A figure's number, its key (used in file names), the question it answers, and how it is drawn."""

    number: int
    key: str
    question: str
    draw: Callable[[Evidence, int, str], Figure]


class _Lacking(Exception):
    """What a figure needs and the evidence lacks."""


def _need(evidence: Evidence, name: str) -> Any:
    value = getattr(evidence, name)
    if value is None or (hasattr(value, "empty") and value.empty):
        raise _Lacking(evidence.reasons.get(name, f"the runs give no {name.replace('_', ' ')}"))
    return value


def _strongest(e: Evidence, number: int, key: str) -> Figure:
    if e.roles.first is None:
        raise _Lacking(e.reasons.get("deltas", "no factor is known to save time"))
    return before_after(_need(e, "deltas"), e.roles.first, number, key, e.roles.second, e.bools)


def _areas(e: Evidence, number: int, key: str) -> Figure:
    parts = [treemap(_need(e, which), number, key, order) for which, order in (("greedy", BEST), ("nice", NICE))]
    return beside(parts, (BEST, NICE), "order")


def _models(e: Evidence, number: int, key: str) -> Figure:
    found = [model for model in (e.main_model, e.pair_model) if model is not None]
    if not found:
        raise _Lacking(e.reasons.get("main_model", "no model could be fitted"))
    common = bounds([model.table for model in found])
    parts = [actual_predicted(m.table, number, key, m.words, m.r_squared, common) for m in found]
    return beside(parts, [m.words for m in found], "model")


def _means_both(e: Evidence, number: int, key: str) -> Figure:
    names = ("all contexts", f"contexts {e.kept_words}")
    return side_by_side(_need(e, "means"), _need(e, "means_kept"), names, number, key, ends=_ends(e))


def _ends(e: Evidence) -> tuple[float, float]:
    """The same ends for the axes of the mean changes, with and without the two strongest."""
    tables = [table for table in (e.means, e.means_kept) if table is not None]
    values = pd.concat([table[["mean_us", "ci_low_us", "ci_high_us"]] for table in tables])
    return min(0.0, float(values.min().min())), max(0.0, float(values.max().max()))


def _coefficients(e: Evidence, number: int, key: str) -> Figure:
    names = ("mean delta", "model coefficient")
    left, right = _need(e, "means"), _need(e, "coefficients")
    both = left.merge(right, on="name", suffixes=("_1", "_2"))
    differing = both[(both["ci_low_us_1"] > both["ci_high_us_2"]) | (both["ci_low_us_2"] > both["ci_high_us_1"])][
        "name"
    ]
    agreeing = len(both) - len(differing)
    text = f"Mean deltas and model coefficients agree within their intervals for {agreeing} of {len(both)} factors"
    text += f"; not for {listed(differing)}" if len(differing) else ""
    return side_by_side(left, right, names, number, key, text)


def _orders(e: Evidence, number: int, key: str) -> Figure:
    found = _need(e, "components")
    parts = [
        biplot(found.scores, found.loadings, found.variance["ratio"].tolist(), number, key),
        scree(found.variance, number, key),
    ]
    return beside(parts, ("orders and settings", "components"), "part")


ENTRIES = (
    Entry(1, "means", "What does each setting change on average?",
          lambda e, n, k: means(_need(e, "means"), n, k, _ends(e))),
    Entry(2, "means_both", "What changes once the two strongest are left out?", _means_both),
    Entry(3, "before_after", "When does the strongest setting save time?", _strongest),
    Entry(4, "colour_strip", "Which settings help slow runs, and which fast ones?",
          lambda e, n, k: colour_strip(_need(e, "deltas"), n, k, e.roles.flips)),
    Entry(5, "waterfall", "Which steps lead from the baseline to the fastest?",
          lambda e, n, k: waterfall(_need(e, "greedy"), n, k, e.path_sources.get("greedy", ""))),
    Entry(6, "convergence", "Were there enough runs?",
          lambda e, n, k: convergence(_need(e, "convergence"), n, k, e.rope_pct / 2)),
    Entry(7, "pair_tiles", "Which settings change each other's effect?",
          lambda e, n, k: tiles(_need(e, "pairs"), n, k)),
    Entry(8, "pairs_two_by_two", "How do the strongest pairs change each other?",
          lambda e, n, k: two_by_two(_need(e, "cells"), n, k)),
    Entry(9, "treemap", "Which step takes which share of the time?", _areas),
    Entry(10, "orders", "What does the order of the steps decide?", _orders),
    Entry(11, "response", "Which level is the fastest?", lambda e, n, k: response(_need(e, "levels"), n, k)),
    Entry(12, "models", "How much do linear models explain?", _models),
    Entry(13, "coefficients_and_deltas", "Do deltas and the linear model agree?", _coefficients),
    Entry(14, "drift", "Did the machine hold still?", lambda e, n, k: drift(_need(e, "drift"), n, k)),
)  # fmt: skip


def noted(figure: Figure, note: str) -> Figure:
    """The figure with an additional sentence below its title and in its description."""
    if not note:
        return figure
    heading = figure.spec["title"]
    spec = {**figure.spec, "title": {**heading, "subtitle": [*heading["subtitle"], note]}}
    return replace(figure, spec=spec, reading=f"{figure.reading} {note}")


def draw_all(evidence: Evidence) -> list[Figure | Missing]:
    """Every figure in order, or why it cannot be drawn."""
    drawn: list[Figure | Missing] = []
    # Whether charts follow the schema does not depend on the runs: the tests check it.
    with debug_mode(False):
        for entry in ENTRIES:
            try:
                figure = noted(entry.draw(evidence, entry.number, entry.key), evidence.failure_note)
                drawn.append(replace(figure, question=entry.question))
            except _Lacking as lacking:
                drawn.append(Missing(entry.number, entry.key, str(lacking), entry.question))
    return drawn
