"""Records, ratios and the closing table."""

import json

import pytest
from broadleaf.bench import table
from broadleaf.bench.record import Record, ratio_interval, skipped


def record(peer="ppe", metric="roundtrip_median", values=(3.0, 1.0, 2.0), case="latency", **params) -> Record:
    return Record(peer, "1", case, {"workers": 4, **params}, metric, list(values))


def test_a_record_is_one_json_line_with_its_spread():
    line = record(mode="submit").line()
    assert "\n" not in line
    assert json.loads(line) == {
        "peer": "ppe",
        "peer_version": "1",
        "case": "latency",
        "params": {"workers": 4, "mode": "submit"},
        "metric": "roundtrip_median",
        "unit": "us",
        "median": 2.0,
        "min": 1.0,
        "max": 3.0,
        "n_runs": 3,
    }


def test_a_skipped_case_says_why():
    found = json.loads(skipped("ray", "2", "map", {}, "no way").line())
    assert found["metric"] == "skipped"
    assert found["median"] is None
    assert found["n_runs"] == 0
    assert found["note"] == "no way"


@pytest.mark.parametrize(
    ("metric", "ours", "theirs", "times"),
    [("roundtrip_median", 10.0, 50.0, 5.0), ("roundtrip", 500.0, 50.0, 10.0), ("roundtrip", 25.0, 50.0, 0.5)],
)
def test_the_ratio_says_how_many_times_better_ours_is(metric, ours, theirs, times):
    mine, other = record("broadleaf", metric, [ours], config="unix"), record("ppe", metric, [theirs], mode="submit")
    reference = table.reference_values([mine, other])
    assert table.ratio(other, reference) == pytest.approx(times)
    assert table.ratio(mine, reference) is None


def test_records_of_other_parameters_are_not_compared():
    reference = table.reference_values([record("broadleaf", n=100)])
    assert table.ratio(record("ppe", n=1000), reference) is None


def test_the_table_has_a_row_for_every_record_in_the_order_of_the_cases():
    records = [record(case="latency"), record(case="echo"), record(case="latency", metric="roundtrip_p99")]
    assert [row.record.case for row in table.rows(records)] == ["latency", "latency", "echo"]


def test_findings_set_our_round_trip_against_the_machine():
    records = [
        Record("raw", "1", "raw_rtt", {"kind": "unix"}, "roundtrip_median", [40.0]),
        record("broadleaf", values=[80.0], config="unix"),
        record("broadleaf", values=[120.0], config="tcp + tls"),
    ]
    text = "\n".join(table.findings(records))
    assert "2.00 x the raw unix-socket round trip" in text
    assert "1.50 x that of the unix socket" in text


def test_the_interval_of_a_ratio_holds_it_and_narrows_with_steadier_pairs():
    steady = ratio_interval([9.7, 9.8, 9.75, 9.72, 9.79] * 4, [10.0, 10.1, 10.05, 10.02, 10.09] * 4)
    noisy = ratio_interval([5.0, 15.0, 9.0, 12.0, 7.0] * 4, [10.0, 8.0, 13.0, 6.0, 11.0] * 4)
    assert steady.low <= steady.middle <= steady.high
    assert steady.middle == pytest.approx(0.97, abs=0.005)
    assert steady.high - steady.low < noisy.high - noisy.low


def test_an_interval_is_the_same_every_time():
    assert ratio_interval([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == ratio_interval([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])


@pytest.mark.parametrize(("left", "right"), [([1.0], [1.0, 2.0]), ([], [])])
def test_series_that_cannot_be_paired_are_refused(left, right):
    with pytest.raises(ValueError, match="cannot be paired"):
        ratio_interval(left, right)
