"""The values of the benchmark of sizes, and what it says about them."""

import json
import pickle

import pytest
from broadleaf.bench import sizes, table
from broadleaf.bench.cases import CASES, KINDS, Case, Session, Step
from broadleaf.bench.record import Record
from broadleaf.bench.runner import Run
from broadleaf.bench.turn import SYSTEMS
from broadleaf.bench.workload import values

from benchmarks.environments import PEERS

pytestmark = pytest.mark.timeout(60)


def record(peer="broadleaf", seconds=(1.0,), metric="per_value", workers=1, size_bytes=1000, **params) -> Record:
    ways = {"broadleaf": "direct view", "ppe": "submit", "raw": "pickler"}
    shared = {"value": "bytes", "route": "apply", "size_bytes": size_bytes} | params
    return Record(
        peer, "1", "sizes", {"workers": workers, "config": "", "mode": ways[peer]} | shared, metric, list(seconds)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_values_have_about_their_size_and_are_new_each_time(kind):
    smallest_kb, _, module = KINDS[kind]
    pytest.importorskip(module)
    for size_bytes in (smallest_kb * 1000, 300_000):
        first, second = values.several(kind, size_bytes, 2)
        assert len(pickle.dumps(first, 5)) == pytest.approx(size_bytes, rel=0.3)
        assert values.same(first, second)
        assert not values.same(first, values.renewed(second, 7))
        # Every number gives other contents.
        assert not values.same(values.renewed(first, 8), values.renewed(second, 7))


def test_a_list_of_10_000_dicts_is_one_of_the_sizes():
    pytest.importorskip("numpy")
    assert len(values.several("list of dicts", 300_000, 1)[0]) == 10_000


def test_the_largest_ratio_of_a_size_to_a_larger_one_is_a_figure():
    records = [record(seconds=[s], size_bytes=n) for n, s in ((1000, 1.0), (4000, 3.0), (10_000, 2.0), (16_000, 4.0))]
    (found,) = sizes.ratios(records)
    assert (found.metric, found.values, found.note) == ("of_larger_size", [1.5], "4 kB over 10 kB")
    assert "size_bytes" not in found.params
    assert sizes.findings([*records, found]) == [
        "sizes: dearer than a larger size: bytes, apply, direct view: 1.50 x, 4 kB over 10 kB"
    ]
    # It is a comparison, so it is not compared.
    assert [row.cells[-1] for row in table.rows([found])] == [""]


def test_a_size_that_costs_little_more_than_a_larger_one_is_not_dearer():
    records = [record(seconds=[1.1], size_bytes=1000), record(seconds=[1.0], size_bytes=4000)]
    assert sizes.findings([*records, *sizes.ratios(records)]) == ["sizes: no size takes longer than a larger one"]


def test_routes_kinds_views_and_numbers_of_workers_are_not_mixed():
    one = record(seconds=[2.0], size_bytes=1000)
    others = [
        record(size_bytes=4000, **other)
        for other in ({"route": "push"}, {"value": "str"}, {"mode": "load-balanced view"})
    ]
    assert list(sizes.ratios([one, *others, record(size_bytes=4000, workers=16)])) == []


def test_many_workers_are_set_against_one():
    records = [record(seconds=[1.0]), record(seconds=[4.0], workers=16)]
    (found,) = sizes.ratios(records)
    assert (found.metric, found.values, found.params["workers"]) == ("of_one_worker", [4.0], 16)
    assert sizes.findings([*records, found]) == [
        "sizes: longer to all: bytes, apply, direct view, 16 workers: 1 kB 4.0 x"
    ]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (2.0, "beyond the pickler at least 1.5 x as fast as others"),
        (4.0, "less fast: bytes, apply, direct view, of ppe: 1 kB 1.00 x"),
        # No longer than the pickler alone.
        (-1.0, "beyond the pickler at least 1.5 x as fast as others"),
    ],
)
def test_what_ours_takes_beyond_the_pickler_is_set_against_others(ours, said):
    records = [record(seconds=[ours], metric="beyond_raw"), record("ppe", [4.0], "beyond_raw")]
    assert sizes.findings(records) == [f"sizes: {said}"]


def test_the_pickler_of_the_same_round_kind_route_and_size_is_taken_off():
    pytest.importorskip("numpy")
    steps = [
        Step("sizes", {"value": "str", "route": route, "size_bytes": n}, {"n": 1, "calls": 2, "warmup": 1})
        for route in ("apply", "push")
        for n in (1000, 2000)
    ]
    case = Case("sizes", "", lambda *_: [Session(1, steps, 2)], lambda quick: steps, floor=CASES["sizes"].floor)
    records = list(Run(case, {"raw": SYSTEMS["raw"], "ppe": PEERS["ppe"]}, 1, 2, True, lambda text: None).records())

    def found(peer: str, metric: str) -> dict[str, list[float]]:
        return {
            json.dumps([r.params["route"], r.params["size_bytes"]]): r.values
            for r in records
            if (r.peer, r.metric) == (peer, metric)
        }

    whole, pickler, beyond = found("ppe", "per_value"), found("raw", "per_value"), found("ppe", "beyond_raw")
    assert whole.keys() == pickler.keys() == beyond.keys()
    assert len(whole) == len(steps)
    for place, times in beyond.items():
        assert times == [a - b for a, b in zip(whole[place], pickler[place], strict=True)]
    assert found("raw", "beyond_raw") == {}
