"""What the controller is told of errors: kinds, counts, and one of each in full."""

import broadleaf as ipp
import pytest
from broadleaf import requests
from broadleaf.errors.kinds import error_rows


def read(number):
    if number % 3 == 0:
        raise ValueError(f"{number} is bad")
    return 10 // (number % 5 - 1)


def other(number):
    return read(number)


@pytest.fixture
def client():
    """A client of a cluster of its own, which has seen no errors."""
    with ipp.Cluster(n=2) as client:
        yield client


def kinds(client):
    return {(row["function"], row["ename"]): row for row in error_rows(requests.failures(client.link), 0.0)}


@pytest.mark.parametrize("chunksize", [1, 7, 60])
def test_items_are_counted_by_type_and_line(client, chunksize):
    client.load_balanced_view().map_async(read, range(60), chunksize=chunksize).wait()
    found = kinds(client)
    assert {key: row["items"] for key, row in found.items()} == {
        ("read", "ValueError"): 20,
        # 1, 6, 11, ... 56, without those that 3 divides.
        ("read", "ZeroDivisionError"): 8,
    }
    assert found["read", "ValueError"]["tasks"] == min(20, -(-60 // chunksize))
    for row in found.values():
        assert row["file"] == __file__
        assert row["engine"] in client.ids
    assert found["read", "ValueError"]["source"] == 'raise ValueError(f"{number} is bad")'
    assert found["read", "ValueError"]["evalue"].endswith(" is bad")
    assert found["read", "ZeroDivisionError"]["traceback"].startswith("Traceback (most recent call last):")
    assert int(found["read", "ZeroDivisionError"]["item"]) % 5 == 1


def test_functions_that_share_a_line_and_builtins_are_described(client):
    view = client.load_balanced_view()
    for function, argument in ((read, 3), (other, 3), (int, "two"), (float, "three")):
        view.apply_async(function, argument).wait()
    found = kinds(client)
    assert set(found) == {(name, "ValueError") for name in ("read", "other", "int", "float")}
    assert found["other", "ValueError"]["line"] == found["read", "ValueError"]["line"] > 0
    assert "'three'" in found["float", "ValueError"]["evalue"]
    assert found["int", "ValueError"]["item"] == "'two'"


def test_aborted_tasks_are_no_errors(client, gate):
    result = client[0].apply_async(gate.task())
    gate.wait_for_tasks()
    result.abort()
    assert result.wait(30)
    assert kinds(client) == {}


def test_a_long_message_and_traceback_are_cut(client):
    def deep(n):
        return deep(n - 1) if n else int("x" * 100_000)

    client[0].apply_async(deep, 300).wait()
    (row,) = kinds(client).values()
    assert len(row["evalue"]) <= 300
    assert len(row["traceback"]) <= 2500
    assert row["source"].startswith("return deep(n - 1) if n else int(")
