"""Designs: resolution, balance and feasibility by brute force, blocks, orders and the plan they become."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from broadleaf_lab.designs import balanced, dopt, two_level
from broadleaf_lab.designs.blocks import arrange, cut
from broadleaf_lab.designs.entries import Entry
from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.designs.terms import Terms, efficiency, independent
from broadleaf_lab.errors import ConstraintError, DesignError
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.study import DESIGNS, DesignSpec
from broadleaf_lab.study import Study

MIXED = Study(
    "mixed",
    factors=(
        Factor("a", "flag"),
        Factor("b", "flag"),
        Factor("py", "python", ("3.12", "3.13t"), "3.12"),
        Factor("jit", "env", when="py >= '3.13'"),
        Factor("n", "config", (0, 4, 64, 1024), 0, "log2"),
        Factor("log", "config", ("debug", "info", "off"), "debug"),
        Factor("c", "flag"),
    ),
    constraints={"one": "not (a and b)", "few": "n < 1024 or log == 'off'"},
)


def flags(k):
    return tuple(Factor(f"f{i}", "flag") for i in range(k))


def study(k, **design):
    return Study("s", factors=flags(k), design=DesignSpec(**design))


def signs(configs, factors):
    return np.array([[1 if config[f.name] == f.on else -1 for f in factors] for config in configs])


def brute_force_resolution(matrix, up_to=5):
    """The smallest number of columns whose product is constant: the shortest defining word."""
    for size in range(1, up_to):
        for columns in itertools.combinations(range(matrix.shape[1]), size):
            if abs(matrix[:, columns].prod(axis=1).sum()) == len(matrix):
                return size
    return up_to


def of(plan, *purposes):
    return [row for row in plan.rows if row.purpose in purposes]


@pytest.mark.parametrize(
    ("k", "runs"), [(5, 16), (6, 32), (7, 64), (8, 64), (9, 128), (10, 128), (11, 128), (12, 256), (17, 256)]
)
def test_fractions_have_resolution_five_and_effects_that_are_orthogonal(k, runs):
    made = two_level.resolution5(flags(k), study(k).rules(), 16)
    configs = [entry.config for group in made.groups for entry in group]
    assert len(configs) == len({tuple(config.values()) for config in configs}) == runs
    matrix = signs(configs, flags(k))
    assert brute_force_resolution(matrix) >= 5
    model = Terms(flags(k)).matrix(configs)
    assert np.array_equal(model.T @ model, runs * np.eye(model.shape[1]))


def test_the_brute_force_check_can_fail():
    base = np.array(list(itertools.product((-1, 1), repeat=4)))
    generator = {3: [0, 1], 4: [0, 1, 2], 5: [0, 1, 2, 3]}
    for resolution, columns in generator.items():
        assert brute_force_resolution(np.column_stack([base, base[:, columns].prod(axis=1)])) == resolution
        words = [1, 2, 4, 8, sum(1 << c for c in columns)]
        assert two_level.resolution(words) == resolution


@pytest.mark.parametrize(("k", "blocks", "size"), [(4, 1, 16), (5, 2, 16), (6, 2, 16), (8, 4, 16), (11, 8, 16),
                                                   (12, 16, 16), (17, 8, 32)])  # fmt: skip
def test_differences_between_blocks_are_mixed_with_no_effect_and_no_pair(k, blocks, size):
    # A block keeps effects and pairs clear only if it has more runs than there are factors: 17 need 32.
    rules = study(k).rules()
    made = two_level.full(flags(k), rules, 16) if k <= 5 else two_level.resolution5(flags(k), rules, 16)
    assert [len(group) for group in made.groups] == [size] * blocks
    for group in made.groups:
        matrix = Terms(flags(k)).matrix([entry.config for entry in group])[:, 1:]
        assert np.array_equal(matrix.sum(axis=0), np.zeros(matrix.shape[1]))


def test_full_factorials_leave_out_what_is_impossible():
    made = two_level.full(MIXED.factors, MIXED.rules(), 16)
    every = itertools.product(*(f.levels for f in MIXED.factors))
    names = [f.name for f in MIXED.factors]
    possible = [c for levels in every if MIXED.rules().allows(c := dict(zip(names, levels, strict=True)))]
    assert [entry.config for entry in made.loose] == possible
    assert made.spec["impossible"] == 2**5 * 12 - len(possible)


@pytest.mark.parametrize("k", [3, 7, 11, 18, 23])
def test_foldovers_keep_main_effects_clear_of_pairs(k):
    made = two_level.foldover(flags(k), study(k).rules(), 16)
    configs = [entry.config for group in made.groups for entry in group]
    matrix = signs(configs, flags(k))
    assert len(matrix) == 2 * 4 * math.ceil((k + 1) / 4)
    assert np.array_equal(matrix.T @ matrix, len(matrix) * np.eye(k))
    pairs = np.column_stack([matrix[:, i] * matrix[:, j] for i, j in itertools.combinations(range(k), 2)])
    assert not (matrix.T @ pairs).any()
    for group in made.groups:
        assert not signs([entry.config for entry in group], flags(k)).sum(axis=0).any()


def test_exchange_finds_the_best_choice():
    # All choices of 6 of 8 corners by hand.
    corners = Terms(flags(3)).matrix(
        [dict(zip(("f0", "f1", "f2"), levels, strict=True)) for levels in itertools.product((False, True), repeat=3)]
    )[:, :4]
    best = max(
        float(np.linalg.det(corners[list(rows)].T @ corners[list(rows)]))
        for rows in itertools.combinations_with_replacement(range(8), 6)
    )
    chosen = dopt.exchange(corners, 6, np.random.default_rng(1))
    assert np.linalg.det(corners[chosen].T @ corners[chosen]) == pytest.approx(best)


def test_optimal_designs_of_a_free_space_are_orthogonal_where_they_can_be():
    factors = flags(5)
    made = dopt.dopt(factors, study(5).rules(), np.random.default_rng(1), 16)
    assert made.spec["d_efficiency_pct"] == 100
    assert made.spec["max_vif"] == 1


def test_optimal_designs_say_what_constraints_make_unknowable():
    made = dopt.dopt(MIXED.factors, MIXED.rules(), np.random.default_rng(1))
    # A nested factor's effect where it does not exist is not a question.
    assert MIXED.rules().nested_pairs() == {"jit:py", "py:jit"}
    assert made.spec["not_estimable"] == ["a:b"]
    assert made.spec["runs"] == math.ceil(1.5 * made.spec["terms"])
    assert made.spec["d_efficiency_pct"] > 60
    kept = Terms(MIXED.factors)
    matrix = kept.matrix([entry.config for entry in made.loose])
    matrix = matrix[:, independent(matrix.T @ matrix, (matrix**2).sum(axis=0))]
    assert matrix.shape[1] == made.spec["terms"]
    assert efficiency(matrix)[0] == pytest.approx(made.spec["d_efficiency_pct"], abs=0.06)


def test_optimal_designs_drop_the_pairs_when_runs_are_few_and_refuse_less_than_that():
    made = dopt.dopt(flags(10), study(10).rules(), np.random.default_rng(1), 16)
    assert (made.spec["pairs"], made.spec["terms"], made.spec["runs"]) == (False, 11, 16)
    with pytest.raises(DesignError, match="at least 11"):
        dopt.dopt(flags(10), study(10).rules(), np.random.default_rng(1), 10)


def test_model_columns_are_orthonormal_over_all_combinations():
    names = [f.name for f in MIXED.factors]
    every = [dict(zip(names, levels, strict=True)) for levels in itertools.product(*(f.levels for f in MIXED.factors))]
    terms = Terms(MIXED.factors)
    matrix = terms.matrix(every)
    assert np.allclose(matrix.T @ matrix / len(every), np.eye(len(terms)), atol=1e-12)
    # A number with four levels takes three columns, so that any shape can be estimated.
    assert terms.names.count("n") == 3
    assert terms.names.count("log") == 2
    assert terms.names.count("log:n") + terms.names.count("n:log") == 6
    assert efficiency(matrix) == pytest.approx((100, 1))
    # Columns of other lengths make no design better than orthogonal.
    assert efficiency(matrix * np.arange(1, matrix.shape[1] + 1)) == pytest.approx((100, 1))


def test_variance_inflation_of_two_correlated_columns():
    x = np.array([1.0, 1, 1, -1, -1, -1, 1, -1])
    y = np.array([1.0, 1, -1, -1, -1, 1, 1, -1])
    r = np.corrcoef(x, y)[0, 1]
    assert efficiency(np.column_stack([np.ones(8), x, y]))[1] == pytest.approx(1 / (1 - r**2))


@pytest.mark.parametrize(("k", "runs"), [(4, 16), (6, 24), (8, 32)])
def test_balanced_designs_are_balanced_and_have_their_flips(k, runs):
    made = balanced.balanced(flags(k), study(k).rules(), np.random.default_rng(3))
    configs = [entry.config for entry in made.loose]
    assert len(configs) == runs
    matrix = signs(configs, flags(k))
    assert not matrix.sum(axis=0).any()
    for i, j in itertools.combinations(range(k), 2):
        for a, b in itertools.product((-1, 1), repeat=2):
            assert abs(((matrix[:, i] == a) & (matrix[:, j] == b)).sum() - runs / 4) <= 2
    flipped = {
        int(np.flatnonzero(one != other)[0])
        for one, other in itertools.combinations(matrix, 2)
        if (one != other).sum() == 1
    }
    assert flipped == set(range(k))
    assert made.spec["level_imbalance"] == 0


def test_balanced_designs_keep_to_constraints():
    made = balanced.balanced(MIXED.factors, MIXED.rules(), np.random.default_rng(1))
    assert all(MIXED.rules().allows(entry.config) for entry in made.loose)
    with pytest.raises(DesignError, match="at least 14"):
        balanced.balanced(MIXED.factors, MIXED.rules(), np.random.default_rng(1), 12)


def test_10_000_generated_configurations_violate_no_constraint():
    seen = 0
    rules = MIXED.rules()
    seed = 0
    while seen < 10_000:
        seed += 1
        for kind in ("dopt", "paths", "edges", "random", "full", "greedy", "auto"):
            plan = replace(MIXED, design=DesignSpec(kind=kind, seed=seed, paths=20, edges=20, runs=120)).plan()
            assert [rules.violated(row.config) for row in plan.rows] == [[]] * len(plan)
            seen += len(plan)
    assert seen >= 10_000


def test_paths_apply_one_factor_a_step_in_random_orders():
    plan = study(6, kind="paths", paths=30).plan()
    orders = set()
    for number in range(1, 31):
        steps = sorted((r for r in plan.rows if r.path_id == number), key=lambda r: r.path_step)
        assert [r.path_step for r in steps] == list(range(7))
        changed = [
            [name for name in one.config if one.config[name] != other.config[name]]
            for one, other in itertools.pairwise(steps)
        ]
        assert all(len(names) == 1 for names in changed)
        orders.add(tuple(names[0] for names in changed))
        assert not any(steps[0].config.values())
        assert all(steps[-1].config.values())
    assert len(orders) > 25
    assert Counter(order[0] for order in orders).keys() == {f.name for f in flags(6)}


def test_paths_go_as_far_as_constraints_let_them():
    plan = replace(MIXED, design=DesignSpec(kind="paths", paths=25)).plan()
    ends = set()
    for number in range(1, 26):
        steps = sorted((r for r in plan.rows if r.path_id == number), key=lambda r: r.path_step)
        end = steps[-1].config
        ends.add((end["a"], end["b"]))
        assert end["jit"]
        assert len(steps) == 7
    assert ends == {(True, False), (False, True)}


def test_edges_hold_every_neighbour_of_their_points():
    plan = study(5, kind="edges", edges=4).plan()
    groups = {}
    for row in of(plan, "edge"):
        groups.setdefault(row.block, []).append(tuple(row.config.values()))
    points = sum(len(configs) for configs in groups.values()) / 6
    assert points == 4
    pairs = sum(
        sum(a != b for a, b in zip(one, other, strict=True)) == 1
        for configs in groups.values()
        for one, other in itertools.combinations(configs, 2)
    )
    assert pairs >= 4 * 5


def test_a_fraction_alone_has_no_pairs_that_differ_in_one_factor():
    # Why paths belong to a design that should give deltas.
    configs = [tuple(row.config.values()) for row in of(study(8, kind="resolution5").plan(), "design")]
    assert not any(
        sum(a != b for a, b in zip(one, other, strict=True)) == 1 for one, other in itertools.combinations(configs, 2)
    )


@pytest.mark.parametrize(
    ("k", "kind", "paths"), [(4, "full", 40), (5, "full", 40), (8, "resolution5", 40), (16, "resolution5", 20)]
)
def test_auto_chooses(k, kind, paths):
    spec = study(k).plan().spec
    assert [design["kind"] for design in spec["designs"]] == [kind, "paths"]
    assert spec["designs"][1]["paths"] == paths


def test_auto_spends_no_more_on_orders_than_on_the_design_of_very_many_factors():
    plan = study(40).plan()
    assert [design["kind"] for design in plan.spec["designs"]] == ["dopt", "paths"]
    assert len(of(plan, "design")) == 4 * 41
    # Some paths span two blocks, with a run in both.
    assert 3 * 41 <= len(of(plan, "path")) < 1.2 * len(of(plan, "design"))


def test_auto_keeps_to_levels_and_constraints():
    assert [design["kind"] for design in MIXED.plan().spec["designs"]] == ["dopt", "paths"]
    cut_off = replace(study(8), constraints={"one": "not (f0 and f1)"})
    assert [design["kind"] for design in cut_off.plan().spec["designs"]] == ["dopt", "paths"]


def test_twelve_factors_take_the_runs_the_method_promises():
    plan = study(12).plan()
    assert len(of(plan, "design")) == 256
    assert len(of(plan, "path")) == 40 * 13


@pytest.mark.parametrize("kind", ["resolution5", "foldover"])
def test_regular_designs_refuse_what_they_cannot_do(kind):
    with pytest.raises(DesignError, match=r"n, log have more.*'dopt'"):
        replace(MIXED, design=DesignSpec(kind=kind)).plan()
    with pytest.raises(DesignError, match="the constraints one forbid"):
        replace(study(8, kind=kind), constraints={"one": "not (f0 and f1)"}).plan()


def test_every_block_has_both_controls_once_and_is_of_its_size():
    plan = study(8).plan()
    blocks = {}
    for row in plan.rows:
        blocks.setdefault(row.block, []).append(row)
    assert sorted(blocks) == list(range(1, plan.spec["blocks"] + 1))
    for rows in blocks.values():
        assert [row.order_in_block for row in rows] == list(range(len(rows)))
        assert len(rows) <= 18
        assert any(not any(row.config.values()) for row in rows if row.purpose in ("control", "path"))
        assert any(all(row.config.values()) for row in rows if row.purpose in ("control", "path"))
        assert sum(row.purpose == "control" for row in rows) in (0, 2)


def test_blocks_of_kinds_are_mixed_over_the_session():
    plan = study(8).plan()
    first_half = Counter(row.purpose for row in plan.rows[: len(plan) // 2])
    assert first_half["design"] > 0
    assert first_half["path"] > 0
    places = [row.order_in_block for row in plan.rows if row.path_step == 0]
    assert len(set(places)) > 5


def test_a_long_path_is_cut_with_the_run_at_the_cut_in_both_parts():
    entries = [Entry("path", {"x": step}, 1, step) for step in range(41)]
    parts = cut(entries, 16)
    assert len(parts) == 3
    assert [len(part) for part in parts] == [14, 15, 14]
    assert [part[0].path_step for part in parts[1:]] == [part[-1].path_step for part in parts[:-1]]
    assert [part[0].replicate for part in parts] == [1, 2, 2]
    assert cut(entries[:20], 16) == [entries[:20]]


def test_replicates_are_runs_of_their_own_in_other_blocks():
    plan = study(5, kind="full", replicates=3).plan()
    rows = of(plan, "design")
    assert Counter(row.replicate for row in rows) == {1: 32, 2: 32, 3: 32}
    by_config = {}
    for row in rows:
        by_config.setdefault(tuple(row.config.values()), set()).add(row.block)
    assert all(len(blocks) == 3 for blocks in by_config.values())


def test_the_seed_decides_everything_and_nothing_else_does(tmp_path):
    assert MIXED.plan() == MIXED.plan()
    other = replace(MIXED, design=DesignSpec(seed=2))
    assert other.plan().rows != MIXED.plan().rows
    MIXED.plan().save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == MIXED.plan()


def test_row_numbers_are_the_order_of_the_runs():
    plan = MIXED.plan()
    assert [row.row for row in plan.rows] == list(range(len(plan)))


def test_wrong_plan_files_say_what_to_do(tmp_path):
    path = tmp_path / "plan.json"
    with pytest.raises(DesignError, match="lab plan"):
        Plan.load(path)
    path.write_text("{")
    with pytest.raises(DesignError, match="not a plan"):
        Plan.load(path)
    path.write_text('{"version": 99}')
    with pytest.raises(DesignError, match="version 99"):
        Plan.load(path)


def test_excludes_from_outside_count_as_constraints():
    plan = Plan.make(study(6, kind="paths", paths=10), {"patches": "not (f0 and f1)"})
    assert not any(row.config["f0"] and row.config["f1"] for row in plan.rows)
    assert plan.spec["excludes"] == {"patches": "not (f0 and f1)"}


def test_a_plan_of_impossible_constraints_names_them():
    with pytest.raises(ConstraintError, match="'on' and 'off' contradict"):
        Plan.make(replace(study(3), constraints={"on": "f0", "off": "not f0"}))


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("kind", DESIGNS)
def test_every_design_plans_a_small_study(kind, k):
    plan = study(k, kind=kind, rows=({"f0": True},), factor="f0").plan()
    assert {row.config["f0"] for row in plan.rows} == {False, True}
    assert plan.spec["kind"] == kind


def test_explicit_rows_and_sweeps():
    rows = ({"n": 64, "log": "off"}, {"a": True}, {})
    plan = replace(MIXED, design=DesignSpec(kind="explicit", rows=rows)).plan()
    assert sorted(str(row.config) for row in of(plan, "explicit")) == sorted(str({**MIXED.baseline, **r}) for r in rows)
    plan = replace(MIXED, constraints={}, design=DesignSpec(kind="sweep", replicates=2)).plan()
    assert Counter(row.config["n"] for row in of(plan, "sweep")) == {0: 2, 4: 2, 64: 2, 1024: 2}
    with pytest.raises(DesignError, match=r"row 2 of design.rows .*violates one"):
        replace(MIXED, design=DesignSpec(kind="explicit", rows=({}, {"a": True, "b": True}))).plan()
    with pytest.raises(DesignError, match="violates few"):
        replace(MIXED, design=DesignSpec(kind="sweep", factor="n")).plan()
    with pytest.raises(DesignError, match="varies one factor"):
        study(3, kind="sweep").plan()


def test_loose_runs_are_dealt_into_blocks_of_equal_size():
    entries = [Entry("design", {"x": i}) for i in range(50)]
    rows = arrange([], entries, [{"x": -1}], 16, np.random.default_rng(1))
    sizes = Counter(row.block for row in rows)
    assert set(sizes.values()) <= {17, 18}
    assert sorted(row.config["x"] for row in rows if row.purpose == "design") == list(range(50))


def test_a_plan_that_is_stopped_early_has_designed_runs():
    """At every point at least about half of the runs are designed, until none are left: a quarter were."""
    purposes = [row.purpose for row in study(12, kind="auto").plan().rows]
    designed = [index for index, purpose in enumerate(purposes) if purpose == "design"]
    for stop in range(60, designed[-1], 20):
        assert sum(purpose == "design" for purpose in purposes[:stop]) > 0.4 * stop
