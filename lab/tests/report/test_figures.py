"""Every figure: the table behind it has the right numbers for known data, and the chart can be drawn."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

alt = pytest.importorskip("altair")
from broadleaf_lab.report.figures import roles  # noqa: E402
from broadleaf_lab.report.figures.base import (  # noqa: E402
    Figure,
    Missing,
    Unit,
    axis_values,
    beside,
    number,
    on_off,
    percent,
    thinned,
)
from broadleaf_lab.report.figures.effects import strip  # noqa: E402
from broadleaf_lab.report.figures.effects.before_after import before_after  # noqa: E402
from broadleaf_lab.report.figures.effects.interaction import two_by_two  # noqa: E402
from broadleaf_lab.report.figures.effects.means import means, side_by_side  # noqa: E402
from broadleaf_lab.report.figures.effects.response import response  # noqa: E402
from broadleaf_lab.report.figures.evidence import Evidence, Roles  # noqa: E402
from broadleaf_lab.report.figures.paths.pca import biplot, scree  # noqa: E402
from broadleaf_lab.report.figures.paths.treemap import REST, squarified, treemap  # noqa: E402
from broadleaf_lab.report.figures.paths.waterfall import waterfall  # noqa: E402
from broadleaf_lab.report.figures.quality.convergence import convergence  # noqa: E402
from broadleaf_lab.report.figures.quality.drift import drift  # noqa: E402
from broadleaf_lab.report.figures.quality.model import actual_predicted, bounds, tiles  # noqa: E402
from broadleaf_lab.report.figures.registry import BEST, ENTRIES, NICE, draw_all  # noqa: E402
from broadleaf_lab.report.questions import questions  # noqa: E402
from broadleaf_lab.text import listed  # noqa: E402
from converter import validated, vl_convert  # noqa: E402


def drawn(figure: Figure) -> str:
    """The figure as SVG: the chart follows Vega-Lite's schema, and compiles."""
    spec = validated(figure)
    svg: str = vl_convert.vegalite_to_svg(spec)
    assert figure.title.split()[0] in svg
    assert svg.count("NaN") == 0
    return svg


MEANS = pd.DataFrame(
    {
        "name": ["a", "b", "c"],
        "mean_us": [-100.0, 20.0, -300.0],
        "ci_low_us": [-150.0, 10.0, -320.0],
        "ci_high_us": [-50.0, 30.0, -280.0],
        "n": [5, 5, 5],
    }
)
PATH = pd.DataFrame(
    {
        "step": [1, 2, 3],
        "name": ["a", "b", "c"],
        "before_us": [1000.0, 400.0, 500.0],
        "after_us": [400.0, 500.0, 250.0],
        "tier": [1, 3, 4],
    }
)
DELTAS = pd.DataFrame(
    {
        "treatment": ["t"] * 4 + ["u"] * 2,
        "level_from": 0,
        "level_to": 1,
        "before_us": [1000.0, 800.0, 200.0, 100.0, 400.0, 300.0],
        "after_us": [500.0, 400.0, 200.0, 100.0, 800.0, 600.0],
        "other": [0, 0, 1, 1, 0, 1],
    }
)


def test_means_sorts_the_largest_saving_first_and_names_what_is_certain() -> None:
    figure = means(MEANS, 1, "means")
    assert figure.stem == "01_means"
    assert figure.table["name"].tolist() == ["c", "a", "b"]
    assert figure.table["mean_us"].tolist() == [-300, -100, 20]
    assert "c (\u2212300\u00a0us) and a (\u2212100\u00a0us)" in figure.title
    svg = drawn(figure)
    assert "mean change of time per task (us)" in svg


def test_means_claims_nothing_that_is_not_certain() -> None:
    figure = means(MEANS.assign(ci_high_us=400.0), 1, "means")
    assert figure.title.startswith("No factor is proven to save time")


def test_side_by_side_finds_what_changed() -> None:
    right = pd.DataFrame(
        {
            "name": ["a", "b", "c", "d"],
            "mean_us": [-400.0, -20.0, -295.0, 1.0],
            "ci_low_us": [-450.0, -30.0, -310.0, 0.0],
            "ci_high_us": [-350.0, -10.0, -285.0, 2.0],
            "n": [3, 3, 3, 3],
        }
    )
    figure = side_by_side(MEANS, right, ("all", "some"), 5, "both")
    assert figure.table["name"].tolist() == ["c", "a", "b"], "d is only in one of the tables"
    assert figure.table.set_index("name")["change_us"].to_dict() == {"c": 5.0, "a": -300.0, "b": -40.0}
    assert figure.title == "From all to some: b changes sign; a gets stronger"
    drawn(figure)


def test_side_by_side_without_any_change() -> None:
    figure = side_by_side(MEANS, MEANS, ("all", "some"), 5, "both")
    assert figure.title == "No single factor's effect is proven to differ between all and some"


def test_side_by_side_says_what_its_bars_show() -> None:
    names = [f"f{i}" for i in range(12)]
    one = pd.DataFrame({"name": names, "mean_us": -50.0, "ci_low_us": -90.0, "ci_high_us": -10.0, "n": 5})
    two = one.assign(mean_us=-100.0, ci_low_us=-160.0, ci_high_us=-40.0)
    title = side_by_side(one, two, ("all", "some"), 5, "both").title
    assert title.endswith("between all and some, but 12 of 12 are larger in the second")
    # Intervals that overlap a little do not hide a difference that is beyond doubt.
    two.loc[3, ["mean_us", "ci_low_us", "ci_high_us"]] = [-140.0, -195.0, -85.0]
    assert side_by_side(one.loc[3:3], two.loc[3:3], ("all", "some"), 5, "both").title.endswith("f3 gets stronger")


def test_before_after_splits_by_colour() -> None:
    figure = before_after(DELTAS, "t", 2, "scatter", colour_by="other", bools=frozenset({"other"}))
    assert figure.table["after_us"].tolist() == [500, 400, 200, 100]
    assert "\u221250\u00a0% where other is off, 0\u00a0% where other is on" in figure.title
    svg = drawn(figure)
    assert "time per task before t (us)" in svg
    assert "faster with it" in svg


def test_before_after_without_colour_splits_by_speed() -> None:
    figure = before_after(DELTAS, "t", 11, "scatter")
    assert "\u221250\u00a0% in the slower half of contexts, 0\u00a0% in the faster half" in figure.title
    drawn(figure)


def test_before_after_of_levels_that_are_numbers() -> None:
    deltas = DELTAS.assign(batch=[1, 16, 4, 1, 4, 4])
    svg = drawn(before_after(deltas, "t", 2, "scatter", colour_by="batch"))
    assert svg.index(">1<") < svg.index(">4<") < svg.index(">16<"), "levels are in the order of their size"


def test_waterfall_telescopes() -> None:
    figure = waterfall(PATH, 6, "waterfall")
    assert figure.table["delta_us"].tolist() == [-600, 100, -250]
    assert figure.table["delta_us"].sum() == 250 - 1000
    assert figure.table["delta_per_s"].tolist() == [1500, -500, 2000]
    assert "1,000\u00a0us to 250\u00a0us; a is the largest step (\u2212600\u00a0us)" in figure.title
    assert "time per task (us)" in drawn(figure)
    path = PATH.assign(ci_low_us=PATH["after_us"] - 10, ci_high_us=PATH["after_us"] + 10)
    told = waterfall(path, 5, "waterfall", "Times are made up.")
    assert told.reading.endswith("Line: 95 % interval of the step, at its end. Times are made up.")


@pytest.mark.parametrize("shares", [[1.0], [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0], [0.9, 0.05, 0.03, 0.02], [1.0] * 7])
def test_tiles_fill_the_whole_with_their_shares(shares: list[float]) -> None:
    found = squarified(shares, 0.0, 0.0, 600.0, 400.0)
    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in found]
    assert areas == pytest.approx([share / sum(shares) * 240_000 for share in shares])
    # As in the paper that describes them: seven areas on 6 by 4 begin with two halves of a column of width 3.
    if len(shares) == 7 and shares[0] == 6.0:
        assert found[:3] == [(0, 0, 300, 200), (0, 200, 300, 400), pytest.approx((300, 0, 471.43, 233.33), abs=0.01)]
    for i, (ax0, ay0, ax1, ay1) in enumerate(found):
        assert 0 <= ax0 < ax1 <= 600 + 1e-9
        for bx0, by0, bx1, by1 in found[i + 1 :]:
            apart = ax1 <= bx0 + 1e-9 or bx1 <= ax0 + 1e-9 or ay1 <= by0 + 1e-9 or by1 <= ay0 + 1e-9
            assert apart, "no two overlap"


def test_treemap_areas_are_the_whole() -> None:
    figure = treemap(PATH, 8, "treemap")
    table = figure.table.set_index("name")
    assert table["area_us"].to_dict() == {"a": 600, "c": 250, REST: 250}
    assert table["share"].sum() == pytest.approx(1)
    area = (table["x1"] - table["x0"]) * (table["y1"] - table["y0"])
    assert (area / area.sum()).tolist() == pytest.approx(table["share"].tolist())
    assert "cost time here: b" in figure.reading
    drawn(figure)
    drawn(treemap(PATH, 10, "treemap", "nicest first"))


def test_colour_strip_has_the_logarithms() -> None:
    figure = strip.colour_strip(DELTAS, 14, "strip")
    assert figure.table["log2_ratio"].tolist() == [-1, -1, 0, 0, 1, 1]
    assert "us, slow to fast" in drawn(figure)


def test_flipping_needs_both_ends_proven() -> None:
    rng = np.random.default_rng(1)
    before = np.linspace(100, 1000, 60)
    noise = np.exp(rng.normal(0, 0.01, 60))
    flips = pd.DataFrame(
        {"treatment": "x", "before_us": before, "after_us": before * np.where(before > 550, 0.8, 1.2) * noise}
    )
    helps = pd.DataFrame({"treatment": "y", "before_us": before, "after_us": before * 0.8 * noise})
    nothing = pd.DataFrame({"treatment": "placebo", "before_us": before, "after_us": before * noise})
    assert strip.flipping(pd.concat([flips, helps, nothing])) == ["x"]
    weak = pd.DataFrame(
        {"treatment": "w", "before_us": before, "after_us": before * np.where(before > 550, 0.99, 1.01)}
    )
    assert strip.flipping(weak) == [], "not beyond 1 %"
    assert strip.flipping(weak, known={"w"}) == ["w"]
    assert strip.flipping(helps, known={"y"}) == []


def test_actual_predicted_counts_errors() -> None:
    table = pd.DataFrame({"actual_us": [100.0, 200.0, 300.0, 400.0], "predicted_us": [110.0, 190.0, 310.0, 390.0]})
    figure = actual_predicted(table, 15, "model", "Main effects", 0.987, bounds([table]))
    assert "R² 0.99, typically 10\u00a0us off" in figure.title
    assert "predicted time per task (us)" in drawn(figure)
    assert bounds([table, table.assign(predicted_us=-20.0)]) == pytest.approx((-21, 412.6))


def test_tiles_are_symmetric_and_put_negatives_top_right() -> None:
    pairs = pd.DataFrame(
        {"a": ["x", "x", "y"], "b": ["y", "z", "z"], "estimate": [0.1, -0.005, -0.09], "q": [0.001, 0.7, 0.01]}
    )
    figure = tiles(pairs, 18, "tiles")
    assert (
        figure.title == "2 of 3 pairs interact for certain; most of all x with y (together 1.11 times the time that "
        "both alone make likely)"
    )
    assert len(figure.table) == 3
    spec = validated(figure)
    values = next(iter(spec["datasets"].values()))
    found = {(v["a"], v["b"]): v["value"] for v in values}
    assert found[("x", "y")] == found[("y", "x")] == pytest.approx(10.517)
    order = spec["layer"][0]["encoding"]["x"]["sort"]
    assert order[-1] == "z", "the most negative on average is last, which is right"
    assert spec["layer"][0]["encoding"]["y"]["sort"][0] == "z", "and first on y, which is the top"
    drawn(figure)


def test_biplot_names_what_is_opposed() -> None:
    scores = pd.DataFrame({"pc1": [100.0, -100.0, 90.0], "pc2": [1.0, 2.0, -3.0]})
    loadings = pd.DataFrame({"name": ["x", "y", "z"], "pc1": [0.7, -0.7, 0.05], "pc2": [0.1, 0.1, 0.99]})
    figure = biplot(scores, loadings, np.array([0.6, 0.3]), 19, "biplot")
    assert figure.title == ("Orders differ most (60 %) in what is saved by x against y, then (30 %) by z")
    assert figure.table["length"].tolist() == pytest.approx(sorted(figure.table["length"], reverse=True))
    assert "largest difference between orders (60 %; us)" in drawn(figure)


def test_scree_counts_components_until_noise_explains_one() -> None:
    variance = pd.DataFrame(
        {"component": [1, 2, 3, 4], "ratio": [0.5, 0.2, 0.1, 0.2], "null_95": [0.2, 0.15, 0.12, 0.1]}
    )
    figure = scree(variance, 20, "scree")
    assert figure.title == (
        "The first two ways in which orders differ hold 70 % of their differences; 2 of 4 are beyond noise"
    )
    assert figure.table["cumulative"].iloc[-1] == pytest.approx(1)
    drawn(figure)


def test_convergence_says_when_it_was_enough() -> None:
    rows = [
        {"runs": n, "name": name, "estimate_pct": -10.0, "ci_low_pct": -10 - w, "ci_high_pct": -10 + w}
        for n, w in ((50, 2.0), (100, 0.9), (150, 1.1), (200, 0.8), (250, 0.7))
        for name in ("x", "y")
    ]
    figure = convergence(pd.DataFrame(rows), 21, "convergence", half_width_pct=1.0)
    assert figure.title == "200 of 250 runs were enough to know every main effect to ±1 %", (
        "100 was enough, 150 was not"
    )
    assert convergence(pd.DataFrame(rows), 21, "c", 0.5).title.startswith(
        "After 250 runs the widest main effect is known to ±0.70 %"
    )
    assert "average effect on the time per task (%)" in drawn(figure)


def test_drift_of_the_controls() -> None:
    times = 1.7e9 + 60.0 * np.arange(40)
    y = 100 * np.exp(0.10 * np.arange(40) / 39)
    runs = pd.DataFrame(
        {"started_unix": times, "control": ["baseline", "all on"] * 20, "y_us": y, "residual_log": np.log(y / 105)}
    )
    figure = drift(runs, 22, "drift")
    assert f"drifted by {percent(0.10)}" in figure.title
    assert figure.table["elapsed_s"].iloc[-1] == 39 * 60
    assert "time since the first run (minutes)" in drawn(figure)


def test_drift_has_an_interval_and_is_not_claimed_without_one() -> None:
    rng = np.random.default_rng(2)
    residual = rng.normal(0, 0.03, 400)
    residual[[7, 300]] = math.log(3)
    runs = pd.DataFrame(
        {
            "started_unix": 1.7e9 + 6.0 * np.arange(400),
            "control": ["baseline", "all on", *[""] * 8] * 40,
            "y_us": 100 * np.exp(rng.normal(0, 0.03, 400)),
            "residual_log": residual,
        }
    )
    title = drift(runs, 22, "drift").title
    assert title.startswith("No steady drift is known: from the first control to the last ")
    assert "95 % interval \u2212" in title
    # Two disturbed runs do not make all runs scatter more.
    assert "runs scatter by 3.35 % around the model" in title
    assert title.endswith("2 of 400 are far from it")
    assert "triangle" in str(drift(runs, 22, "drift").spec)
    steady = runs.assign(y_us=runs["y_us"] * np.exp(np.linspace(0, 0.2, 400)))
    assert drift(steady, 22, "drift").title.startswith("The machine drifted by +2")


def test_two_by_two_has_a_panel_per_pair() -> None:
    cells = pd.DataFrame(
        [
            {
                "a": "x",
                "b": other,
                "kind": kind,
                "a_level": u,
                "b_level": v,
                "mean_us": m,
                "ci_low_us": m - 5,
                "ci_high_us": m + 5,
            }
            for other, kind in (("y", "either-or"), ("z", "additive"))
            for u, v, m in (("off", "off", 1000), ("on", "off", 500), ("off", "on", 505), ("on", "on", 500))
        ]
    )
    figure = two_by_two(cells, 23, "pairs")
    assert figure.title == "Pairs that matter most: x \u00d7 y (either-or) and x \u00d7 z (additive)"
    assert len(figure.spec["concat"]) == 2
    assert len(figure.table) == 8
    drawn(figure)


def test_response_finds_the_fastest_level() -> None:
    levels = pd.DataFrame(
        {"name": "batch", "level": [1, 16, 4], "position": [0, 2, 1], "mean_us": [100.0, 90.0, 60.0],
         "ci_low_us": [95.0, 85.0, 55.0], "ci_high_us": [105.0, 95.0, 65.0]}
    )  # fmt: skip
    figure = response(levels, 24, "response")
    assert figure.title == "Fastest level: batch = 4"
    assert figure.table["level"].tolist() == [1, 4, 16]
    assert "time per task (us)" in drawn(figure)


def test_roles_follow_the_numbers() -> None:
    rng = np.random.default_rng(5)
    before = np.linspace(100, 1000, 40)
    table = pd.concat(
        pd.DataFrame(
            {"treatment": name, "before_us": before, "after_us": before * ratio * np.exp(rng.normal(0, 0.005, 40))}
        )
        for name, ratio in (("a", 0.5), ("b", 0.6), ("c", 0.9), ("d", 0.99), ("flip", np.where(before > 550, 0.8, 1.2)))
    )
    savings = pd.Series({"a": -300.0, "b": -200.0, "c": -50.0, "d": -5.0, "flip": -20.0})
    us = pd.DataFrame({"a": ["a", "a"], "b": ["b", "c"], "estimate": [150.0, -400.0], "q": [0.01, 0.01]})
    pairs = pd.DataFrame(
        {
            "a": ["c", "a"],
            "b": ["d", "b"],
            "estimate": [0.05, 0.4],
            "q": [0.01, 0.01],
            "kind": ["sign-flip", "either-or"],
            "a_flips": [False, False],
            "b_flips": [True, False],
        }
    )
    chosen = roles.choose(table, savings, pairs, us)
    assert chosen == Roles("a", "b", "flip", "d", "c", ("flip",))
    assert roles.choose(None, savings, pairs, us) == Roles()


def test_every_figure_asks_another_question() -> None:
    assert [entry.number for entry in ENTRIES] == list(range(1, 15))
    assert len({entry.key for entry in ENTRIES}) == 14
    assert len({entry.question for entry in ENTRIES}) == 14
    assert all(entry.question.endswith("?") for entry in ENTRIES)


def test_parts_beside_each_other_keep_their_findings_and_tables() -> None:
    parts = [treemap(PATH, 9, "treemap", order) for order in ("best first", "nicest first")]
    figure = beside(parts, ("best first", "nicest first"), "order")
    assert figure.title == f"{parts[0].title}. {parts[1].title}"
    assert figure.table["order"].tolist() == ["best first"] * 3 + ["nicest first"] * 3
    assert [chart["title"]["text"] for chart in figure.spec["hconcat"]] == ["best first", "nicest first"]
    drawn(figure)


def test_the_means_and_those_without_the_strongest_have_the_same_axis() -> None:
    kept = MEANS.assign(ci_low_us=[-800.0, 5.0, -310.0])
    evidence = Evidence(Roles("c", "b"), frozenset(), 1.0, means=MEANS, means_kept=kept, kept_words="without c and b")
    found = {figure.key: figure for figure in draw_all(evidence) if isinstance(figure, Figure)}
    domains = [found[key].spec["layer"][0]["encoding"]["x"]["scale"]["domain"] for key in ("means", "means_both")]
    assert domains == [[-800.0, 30.0], [-800.0, 30.0]]


def test_what_cannot_be_drawn_says_why() -> None:
    evidence = Evidence(Roles(), frozenset(), 1.0, means=MEANS, reasons={"greedy": "nothing is proven to help"})
    found = draw_all(evidence)
    assert [figure.number for figure in found] == list(range(1, 15))
    assert [figure.key for figure in found if isinstance(figure, Figure)] == ["means"]
    missing = {figure.key: figure for figure in found if isinstance(figure, Missing)}
    assert missing["waterfall"].reason == "nothing is proven to help"
    assert missing["waterfall"].question == "Which steps lead from the baseline to the fastest?"
    assert missing["before_after"].reason == "no factor is known to save time"


def test_what_the_published_study_drew_can_be_asked_of_the_explorer() -> None:
    chosen = Roles("a", "b", "flip", "d", "c")
    treatments = {"a", "b", "flip", "d"}
    asked = {q.pop("question"): q for q in questions(chosen, "not a and not b", treatments, [BEST, NICE])}
    assert asked == {
        "When does a save time?": {"treatment": "a", "colour": "b", "scale": "us"},
        "When does b save time?": {"treatment": "b", "colour": "a", "scale": "us"},
        "What is left to gain without a and b?": {"condition": "not a and not b", "colour": None, "scale": "us"},
        "Does flip help slow and fast runs alike?": {"treatment": "flip", "colour": None, "scale": "log"},
        "Where does d help?": {"treatment": "d", "colour": None, "scale": "log"},
        "Does c decide whether d helps?": {"treatment": "d", "colour": "c", "scale": "log"},
        "How many tasks per second, best steps first?": {"order": BEST, "scale": "rate"},
        "How many tasks per second, nicest steps first?": {"order": NICE, "scale": "rate"},
    }
    assert questions(Roles(), "", treatments, []) == []
    assert [q["treatment"] for q in questions(chosen, "", {"a"}, [])] == ["a"], "only what has deltas"


def test_numbers_in_words() -> None:
    assert [number(v) for v in (1182.4, 61.04, 3.14159, 0.001, -577)] == ["1,182", "61", "3.14", "0", "\u2212577"]
    assert number(358, signed=True) == "+358"
    assert number(math.nan) == "unknown"
    assert percent(math.log(0.5)) == "\u221250\u00a0%"
    assert Unit.of([1500.0]).shown(1500) == "1,500\u00a0us"
    assert Unit.of([2.5e6]).shown(2.5e6) == "2,500\u00a0ms"
    assert Unit.of([4e7]).shown(4e7) == "40\u00a0s"
    assert listed(["a", "b", "c", "d"]) == "a, b and 2 more"
    assert [on_off(v) for v in (True, 4.0, "tcp")] == ["on", "4", "tcp"]


def test_ticks_are_round_and_inside() -> None:
    for domain in ([50, 1300], [95, 110], [1e-3, 5], [61, 1182], [330, 400]):
        ticks = axis_values(domain)
        assert 3 <= len(ticks) <= 9
        assert all(domain[0] <= t <= domain[1] for t in ticks)


def test_thinning_keeps_small_tables_and_repeats_itself() -> None:
    frame = pd.DataFrame({"x": range(5000)})
    assert len(thinned(frame)) == 1500
    assert thinned(frame).equals(thinned(frame))
    assert thinned(frame.head(10)) is not None
    assert len(thinned(frame.head(10))) == 10
