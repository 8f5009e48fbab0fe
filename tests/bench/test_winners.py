"""Which of several ways is the fastest."""

import pytest
from broadleaf.bench.record import Record

from benchmarks import winners

SLOW_ROUNDS = [1.0, 1.1, 5.0, 1.0, 1.2]


def scaled(factor: float) -> list[float]:
    return [factor * time for time in SLOW_ROUNDS]


def test_the_fastest_comes_first_and_the_others_with_their_ratio():
    first, second = winners.standings({"TCP": scaled(1.5), "mover": scaled(1)})
    assert (first.way, first.verdict) == ("mover", winners.FASTEST)
    assert (second.way, second.verdict) == ("TCP", winners.SLOWER)
    # What a round did to both cancels.
    assert second.of_fastest == pytest.approx((1.5, 1.5, 1.5))


def test_ways_that_the_rounds_do_not_tell_apart_are_as_fast():
    _, second = winners.standings({"TCP": [1.0, 2.0, 1.0, 2.0, 1.0], "Bcast": [2.0, 1.0, 2.0, 1.0, 1.1]})
    assert second.verdict == winners.AS_FAST
    assert second.of_fastest.low < 1 < second.of_fastest.high


def test_the_table_compares_within_hosts_and_data():
    def record(peer: str, mode: str, data: str, values: list[float], metric: str = "last_host") -> Record:
        return Record(peer, "1", "movers", {"hosts": 2, "data": data, "mode": mode}, metric, values)

    rows = winners.rows(
        [
            record("broadleaf", "TCP", "array 100", [2.0, 2.0]),
            record("mpi4py", "Bcast", "array 100", [4.0, 4.0]),
            record("mpi4py", "Bcast", "array 100", [1.0, 1.0], "bytes_into_host"),
            record("broadleaf", "TCP", "csc 0.6", [9000.0, 9000.0]),
            record("mpi4py", "Bcast", "csc 0.6", [3000.0, 3000.0]),
        ],
        "last_host",
    )
    assert rows == [
        ("2 hosts, array 100", "broadleaf", "TCP", "2 ms", "", "the fastest"),
        ("2 hosts, array 100", "mpi4py", "Bcast", "4 ms", "2.00 (2.00 to 2.00)", "slower"),
        ("2 hosts, csc 0.6", "mpi4py", "Bcast", "3 s", "", "the fastest"),
        ("2 hosts, csc 0.6", "broadleaf", "TCP", "9 s", "3.00 (3.00 to 3.00)", "slower"),
    ]
