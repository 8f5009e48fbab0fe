"""Acceptance 5: deltas are the join of all runs with all runs, and if there are none, that is reported."""

import csv

import numpy as np
import pytest
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.analysis.pairs import deltas as tables
from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.spec.factors import Factor, column_value
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.system import simulate, two_level

FACTORS = (
    Factor("a", "flag"),
    Factor("on", "flag", (True, False), True),
    Factor("py", "python", ("3.11", "3.12", "3.13"), "3.12"),
    Factor("n", "config", (0, 4, 16), 4, scale="log2"),
)

RUN = st.fixed_dictionaries({
    **{f.name: st.sampled_from([column_value(level) for level in f.levels]) for f in FACTORS},
    "time_per_task_us": st.floats(10, 1000),
    "status": st.sampled_from(["ok", "ok", "ok", "ok", "failed"]),
    "block": st.integers(0, 2),
})  # fmt: skip


def placed(rows):
    return [{**row, "started_unix": 7.0 * at} for at, row in enumerate(rows)]


def brute_force(rows):
    """Every (treatment, level, context) with the runs before and after, found by trying all runs with all runs."""
    good = [row for row in rows if row["status"] == "ok"]
    found = {}
    for f in FACTORS:
        default = column_value(f.default)
        for x in good:
            for y in good:
                same = all(x[g.name] == y[g.name] for g in FACTORS if g is not f)
                if same and x[f.name] == default and y[f.name] != default:
                    context = tuple(x[g.name] for g in FACTORS if g is not f)
                    before, after = found.setdefault((f.name, y[f.name], context), ({}, {}))
                    before[x["started_unix"]], after[y["started_unix"]] = x, y
    return found


def key(row):
    context = tuple(row[f.name] for f in FACTORS if f.name != row["treatment"])
    return row["treatment"], row["level_to"], context


@settings(max_examples=30, deadline=None)
@given(st.lists(RUN, min_size=1, max_size=40))
def test_cells_and_crosses_are_the_join(rows):
    rows = placed(rows)
    if not any(row["status"] == "ok" for row in rows):
        return
    runs = frames.load(rows, FACTORS)
    wanted = brute_force(rows)
    cells = tables.deltas(runs, FACTORS).to_dict("records")
    assert {key(row) for row in cells} == set(wanted)
    assert len(cells) == len(wanted)
    for row in cells:
        before, after = ([r["time_per_task_us"] for r in side.values()] for side in wanted[key(row)])
        assert row["before_us"] == pytest.approx(np.median(before))
        assert row["after_us"] == pytest.approx(np.median(after))
        assert row["delta_us"] == pytest.approx(np.median(after) - np.median(before))
        assert row["log2_ratio"] == pytest.approx(np.log2(np.median(after) / np.median(before)))
        assert (row["n_before"], row["n_after"]) == (len(before), len(after))
        blocks = [{r["block"] for r in side.values()} for side in wanted[key(row)]]
        assert row["same_block"] == bool(blocks[0] & blocks[1])
    crossed = tables.deltas(runs, FACTORS, "cross").to_dict("records")
    assert sorted((*map(str, key(row)), row["delta_us"]) for row in crossed) == sorted(
        (*map(str, name), y["time_per_task_us"] - x["time_per_task_us"])
        for name, (before, after) in wanted.items() for x in before.values() for y in after.values()
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(RUN, min_size=4, max_size=40))
def test_mean_deltas_weigh_cells_by_their_runs(rows):
    rows = placed(rows)
    if not any(row["status"] == "ok" for row in rows):
        return
    runs = frames.load(rows, FACTORS)
    wanted = brute_force(rows)
    for row in tables.mean_deltas(runs, FACTORS, draws=5).to_dict("records"):
        total = weights = 0.0
        for (name, level, _), (before, after) in wanted.items():
            if (name, level) == (row["treatment"], row["level_to"]):
                weight = 2 / (1 / len(before) + 1 / len(after))
                change = np.median([y["time_per_task_us"] for y in after.values()]) - np.median(
                    [x["time_per_task_us"] for x in before.values()]
                )
                total, weights = total + weight * change, weights + weight
        assert row["mean_us"] == pytest.approx(total / weights)


def test_a_pure_fraction_has_no_pairs_and_that_is_said():
    system = two_level({f"f{i}": -0.1 for i in range(8)})
    plan = Plan.make(system.study(kind="resolution5", paths=0))
    rows = [row for row in simulate(plan, system, 1) if row["purpose"] == "design"]
    runs = frames.load(rows, system.factors)
    table = tables.deltas(runs, system.factors)
    assert table.empty
    assert list(table.columns)[:14] == list(tables.COLUMNS)
    told = tables.missing_pairs(table, system.factors)
    assert told is not None
    assert "0 deltas" in told
    assert "paths = 40" in told
    assert tables.mean_deltas(runs, system.factors).empty
    # The model still knows.
    predicted = tables.model_deltas(fit(system.factors, runs, pairs=False))
    assert set(predicted["source"]) == {"model"}
    assert predicted[predicted["treatment"] == "f0"]["log2_ratio"].mean() == pytest.approx(-0.1 / np.log(2), abs=0.1)


@pytest.mark.parametrize("scale", ["log", "us", "rate"])
def test_the_models_deltas_are_differences_of_its_predictions(scale):
    factors = (*FACTORS, Factor("nested", "flag", when="a"))
    rng = np.random.default_rng(3)
    rows = [{f.name: column_value(rng.choice(np.array(f.levels, dtype=object))) for f in factors} for _ in range(200)]
    for row in rows:
        row["nested"] *= row["a"]
        y = 6 + 0.1 * row["a"] - 0.2 * (row["n"] > 0) + 0.1 * row["on"] * (row["py"] == "3.13")
        row |= {"status": "ok", "block": 0, "time_per_task_us": float(np.exp(y + 0.05 * rng.standard_normal()))}
    made = fit(factors, frames.load(placed(rows), factors), scale)
    table = tables.model_deltas(made)
    # Some factors change sides in no context that was run; every other context is in the table, once.
    level = {f.name: {column_value(level): level for level in f.levels} for f in factors}
    seen = set()
    for row in table.to_dict("records"):
        treated = row["treatment"]
        start = {f.name: f.default if f.name == treated else level[f.name][row[f.name]] for f in factors}
        goal = {**start, treated: level[treated][row["level_to"]]}
        before, after = made.predict([start, goal])[0]
        assert (row["before_us"], row["after_us"]) == pytest.approx((before, after))
        if scale == "log":
            assert row["se_log2"] == pytest.approx(
                made.contrast(made.coding.row(goal) - made.coding.row(start)).se / np.log(2)
            )
        seen.add((treated, row["level_to"], tuple(start.items())))
    assert len(seen) == len(table)
    wanted = {
        (f.name, column_value(other), tuple({**config, f.name: f.default}.items()))
        for config in made.measured_configs
        for f in factors
        for other in f.others
        if made.coding.exists(f.name, {**config, f.name: f.default})
    }
    assert seen == wanted
    assert table["context_id"].notna().all()
    anonymous = tables.model_deltas(made, identified=False)
    assert anonymous["context_id"].isna().all()
    assert anonymous.drop(columns="context_id").equals(table.drop(columns="context_id"))


def test_paths_give_every_factor_deltas():
    system = two_level({f"f{i}": -0.1 for i in range(5)}, noise=0.02)
    plan = Plan.make(system.study(kind="paths", paths=12))
    runs = frames.load(simulate(plan, system, 1), system.factors)
    table = tables.deltas(runs, system.factors)
    assert tables.missing_pairs(table, system.factors) is None
    assert tables.cross_warning(tables.deltas(runs, system.factors, "cross")) is not None
    assert tables.cross_warning(table) is None
    means = tables.mean_deltas(runs, system.factors, draws=200)
    assert (means["ci_low"] < means["mean_us"]).all()
    assert (means["mean_us"] < means["ci_high"]).all()


def test_intervals_of_mean_deltas_contain_the_truth():
    system = two_level({"a": -0.2, "b": -0.3, "c": 0.0}, base_us=1000.0, noise=0.05)
    plan = Plan.make(system.study(kind="full", replicates=10, paths=0))
    hits = asked = 0
    for seed in range(12):
        runs = frames.load(simulate(plan, system, seed), system.factors)
        contexts = tables.deltas(runs, system.factors)
        for row in tables.mean_deltas(runs, system.factors, draws=200).to_dict("records"):
            mine = contexts[contexts["treatment"] == row["treatment"]]
            truth = []
            for context in mine.to_dict("records"):
                config = {f.name: bool(context[f.name]) for f in system.factors if f.name != row["treatment"]}
                before, after = ({**config, row["treatment"]: side} for side in (False, True))
                weight = 2 / (1 / context["n_before"] + 1 / context["n_after"])
                truth.append((weight, system.mean_us(after) - system.mean_us(before)))
            true = sum(w * d for w, d in truth) / sum(w for w, _ in truth)
            hits += row["ci_low"] <= true <= row["ci_high"]
            asked += 1
    assert hits / asked >= 0.85


@pytest.mark.parametrize("pairing", ["cell", "cross"])
@pytest.mark.parametrize("blocks", [3, 12])
def test_intervals_are_those_of_runs_drawn_and_paired_anew(pairing, blocks):
    rng = np.random.default_rng(5)
    rows = [
        {f.name: column_value(f.levels[rng.integers(len(f.levels))]) for f in FACTORS}
        | {"time_per_task_us": rng.uniform(10, 1000), "status": "ok", "block": at % blocks, "started_unix": float(at)}
        for at in range(150)
    ]
    runs = frames.load(rows, FACTORS)
    drawing = np.random.default_rng(1)
    drawn = {}
    for _ in range(20):
        if blocks < 10:
            chosen = drawing.integers(0, len(runs), len(runs))
        else:
            picked = drawing.integers(0, blocks, blocks)
            chosen = np.concatenate([np.flatnonzero(runs["block"] == block) for block in picked])
        for row in tables.mean_deltas(runs.iloc[chosen], FACTORS, pairing, draws=1).to_dict("records"):
            drawn.setdefault((row["treatment"], row["level_to"]), []).append(row["mean_us"])
    found = tables.mean_deltas(runs, FACTORS, pairing, draws=20).to_dict("records")
    assert len(found) == 6
    for row in found:
        ends = np.quantile(drawn[row["treatment"], row["level_to"]], [0.025, 0.975])
        assert [row["ci_low"], row["ci_high"]] == pytest.approx(ends)


def test_conditions_choose_runs_before_pairing():
    system = two_level({"log": -0.5, "lines": -0.4, "c": 0.0}, {("log", "lines"): 0.35}, noise=0.0)
    plan = Plan.make(system.study(kind="full", replicates=2, paths=0))
    runs = frames.load(simulate(plan, system, 1), system.factors)
    without = tables.mean_deltas(runs, system.factors, where="not log", draws=20).set_index("treatment")
    given_log = tables.mean_deltas(runs, system.factors, where="log", draws=20).set_index("treatment")
    assert "log" not in without.index
    assert without.loc["lines", "log2_ratio"] == pytest.approx(-0.4 / np.log(2))
    assert given_log.loc["lines", "log2_ratio"] == pytest.approx(-0.05 / np.log(2))


def test_the_table_is_written(tmp_path):
    system = two_level({"a": -0.5, "b": -0.4})
    plan = Plan.make(system.study(kind="full", paths=0))
    table = tables.deltas(frames.load(simulate(plan, system, 1), system.factors), system.factors)
    tables.save(table, tmp_path / "deltas.csv")
    with open(tmp_path / "deltas.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(table)
    assert rows[0]["before_us"] == repr(float(table["before_us"][0]))
    # The treatment itself is not part of its context.
    assert rows[0]["treatment"] == "a"
    assert rows[0]["a"] == ""
    assert rows[0]["b"] in ("0", "1")


def test_an_unknown_pairing_is_refused():
    runs = frames.load([{"status": "ok", "time_per_task_us": 1.0, "a": 0}], FACTORS)
    with pytest.raises(AnalysisError, match="pairing"):
        tables.deltas(runs, FACTORS, "nearest")
