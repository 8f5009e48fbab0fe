"""What the benchmark of scale says about figures."""

import os

import pytest
from broadleaf.bench import scale, table
from broadleaf.bench.record import Record
from broadleaf.bench.workload.measure import switches_and_processor_ms


def record(workers, metric, *values, case="scale", peer="broadleaf", **params):
    return Record(peer, "1", case, {"workers": workers, "config": "unix"} | params, metric, list(values))


def figures(records):
    return {(r.metric, r.params["workers"]): r.median for r in scale.ratios(records)}


def test_rates_and_round_trips_are_compared_with_those_of_the_fewest_workers():
    records = [
        *(record(n, "roundtrip", rate, case="throughput", n=20_000) for n, rate in ((100, 300.0), (4, 400.0))),
        *(record(n, "roundtrip_median", us, case="latency") for n, us in ((4, 30.0), (1000, 33.0))),
    ]
    assert figures(records) == {
        ("of_rate_of_fewest", 100): 0.75,
        ("of_round_trip_of_fewest", 1000): pytest.approx(1.1),
    }


def test_starts_are_compared_with_that_of_100_workers():
    starts = [record(n, "ready", s) for n, s in ((4, 0.1), (100, 0.5), (1000, 6.0))]
    assert figures(starts) == {("of_start_of_100", 1000): 12.0}
    assert figures(starts[:1] + starts[2:]) == {}


def test_a_call_to_all_is_divided_by_the_workers():
    assert figures([record(100, "delivered", 1.0, 2.0, 3.0, case="fan-out")]) == {("delivered_per_worker", 100): 20.0}


def test_what_misses_its_limit_is_named():
    kept = [record(100, "of_rate_of_fewest", 0.9), record(1000, "idle_switches", 1.5), record(4, "idle_switches", 99.0)]
    assert table.findings(kept) == ["scale: each figure is within its limit"]
    missed = [*kept, record(400, "of_start_of_100", 5.0), record(400, "of_rate_of_fewest", 0.25)]
    assert table.findings(missed) == [
        "scale: of_rate_of_fewest with 400 workers is 0.25, not at least 0.5",
        "scale: of_start_of_100 with 400 workers is 5, not at most 4.5",
    ]
    assert table.findings([record(1000, "idle_switches", 99.0, peer="ppe")]) == []


def test_switches_and_processor_time_are_those_of_all_threads():
    before = switches_and_processor_ms([os.getpid()])
    sum(range(3_000_000))
    os.sched_yield()
    after = switches_and_processor_ms([os.getpid(), 2**30])
    assert after[0] >= before[0] > 0
    assert after[1] > before[1] > 0
