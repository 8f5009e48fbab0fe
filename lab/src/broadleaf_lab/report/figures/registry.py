"""The numbered figures of a report: 1 to 20 are those of the published study, in order; the others are additions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from altair.utils.schemapi import debug_mode

from broadleaf_lab.report.figures.base import Figure, Missing
from broadleaf_lab.report.figures.effects.before_after import before_after
from broadleaf_lab.report.figures.effects.interaction import two_by_two
from broadleaf_lab.report.figures.effects.means import means, side_by_side
from broadleaf_lab.report.figures.effects.placebo import placebo
from broadleaf_lab.report.figures.effects.response import response
from broadleaf_lab.report.figures.effects.strip import colour_strip
from broadleaf_lab.report.figures.evidence import Evidence
from broadleaf_lab.report.figures.paths.pca import biplot, scree
from broadleaf_lab.report.figures.paths.treemap import treemap
from broadleaf_lab.report.figures.paths.waterfall import waterfall
from broadleaf_lab.report.figures.quality.convergence import convergence
from broadleaf_lab.report.figures.quality.drift import drift
from broadleaf_lab.report.figures.quality.failures import failures
from broadleaf_lab.report.figures.quality.model import actual_predicted, half_normal, tiles
from broadleaf_lab.text import listed

BEST, NICE = "best first", "nicest first"


@dataclass(frozen=True, slots=True)
class Entry:
    """A figure's number, its key (used in file names) and how it is drawn."""

    number: int
    key: str
    draw: Callable[[Evidence, int, str], Figure]


class _Lacking(Exception):
    """What a figure needs and the evidence lacks."""


def _need(evidence: Evidence, name: str) -> Any:
    value = getattr(evidence, name)
    if value is None or (hasattr(value, "empty") and value.empty):
        raise _Lacking(evidence.reasons.get(name, f"the runs give no {name.replace('_', ' ')}"))
    return value


def _role(evidence: Evidence, name: str) -> str:
    value: str | None = getattr(evidence.roles, name)
    if value is None:
        untold = evidence.reasons.get(name) or evidence.reasons.get("deltas")
        raise _Lacking(untold or f"no factor is known to play the part: {_PARTS[name]}")
    return value


_PARTS = {
    "first": "the one that saves most",
    "second": "the one that does the same work as the strongest",
    "flip": "one whose effect depends on the speed",
    "puzzle": "one whose effect depends on another",
    "moderator": "the one on which the puzzling one depends",
}


def _scatter(treatment: str, colour_by: str | None, scale: str) -> Callable[[Evidence, int, str], Figure]:
    def draw(evidence: Evidence, number: int, key: str) -> Figure:
        subject = _role(evidence, treatment)
        colour = _role(evidence, colour_by) if colour_by else None
        return before_after(_need(evidence, "deltas"), subject, number, key, colour, scale, evidence.bools)

    return draw


def _path(which: str, scale: str, order: str) -> Callable[[Evidence, int, str], Figure]:
    return lambda e, number, key: waterfall(_need(e, which), number, key, scale, order, e.path_sources.get(which, ""))


def _areas(which: str, order: str) -> Callable[[Evidence, int, str], Figure]:
    return lambda e, number, key: treemap(_need(e, which), number, key, order)


def _model(which: str) -> Callable[[Evidence, int, str], Figure]:
    def draw(evidence: Evidence, number: int, key: str) -> Figure:
        model = _need(evidence, which)
        return actual_predicted(model.table, number, key, model.words, model.r_squared)

    return draw


def _means_kept(e: Evidence, number: int, key: str) -> Figure:
    return means(_need(e, "means_kept"), number, key, f"over contexts {e.kept_words}")


def _means_both(e: Evidence, number: int, key: str) -> Figure:
    names = ("all contexts", f"contexts {e.kept_words}")
    return side_by_side(_need(e, "means"), _need(e, "means_kept"), names, number, key)


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


def _biplot(e: Evidence, number: int, key: str) -> Figure:
    found = _need(e, "components")
    return biplot(found.scores, found.loadings, found.variance["ratio"].tolist(), number, key)


ENTRIES = (
    Entry(1, "means", lambda e, n, k: means(_need(e, "means"), n, k)),
    Entry(2, "before_after_first", _scatter("first", "second", "us")),
    Entry(3, "before_after_second", _scatter("second", "first", "us")),
    Entry(4, "means_kept", _means_kept),
    Entry(5, "means_both", _means_both),
    Entry(6, "waterfall_best", _path("greedy", "us", BEST)),
    Entry(7, "waterfall_best_rate", _path("greedy", "rate", BEST)),
    Entry(8, "treemap_best", _areas("greedy", BEST)),
    Entry(9, "waterfall_nice_rate", _path("nice", "rate", NICE)),
    Entry(10, "treemap_nice", _areas("nice", NICE)),
    Entry(11, "before_after_flip", _scatter("flip", None, "log")),
    Entry(12, "before_after_puzzle", _scatter("puzzle", None, "log")),
    Entry(13, "before_after_puzzle_coloured", _scatter("puzzle", "moderator", "log")),
    Entry(14, "colour_strip", lambda e, n, k: colour_strip(_need(e, "deltas"), n, k, e.roles.flips)),
    Entry(15, "model_main", _model("main_model")),
    Entry(16, "coefficients_and_deltas", _coefficients),
    Entry(17, "model_pairs", _model("pair_model")),
    Entry(18, "pair_tiles", lambda e, n, k: tiles(_need(e, "pairs"), n, k, "log")),
    Entry(19, "pca_biplot", _biplot),
    Entry(20, "pca_scree", lambda e, n, k: scree(_need(e, "components").variance, n, k)),
    Entry(21, "convergence", lambda e, n, k: convergence(_need(e, "convergence"), n, k, e.rope_pct / 2)),
    Entry(22, "drift", lambda e, n, k: drift(_need(e, "drift"), n, k)),
    Entry(23, "pairs_two_by_two", lambda e, n, k: two_by_two(_need(e, "cells"), n, k)),
    Entry(24, "response", lambda e, n, k: response(_need(e, "levels"), n, k)),
    Entry(25, "half_normal", lambda e, n, k: half_normal(_need(e, "terms"), n, k)),
    Entry(26, "placebo", lambda e, n, k: placebo(_need(e, "placebo"), n, k, e.rope_pct, e.placebo_word)),
    Entry(27, "failures", lambda e, n, k: failures(_need(e, "failures"), n, k)),
)


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
                figure = entry.draw(evidence, entry.number, entry.key)
                drawn.append(figure if entry.key == "failures" else noted(figure, evidence.failure_note))
            except _Lacking as lacking:
                drawn.append(Missing(entry.number, entry.key, str(lacking)))
    return drawn
