"""Requests of more bytes than may be unresolved at a time: they are throttled, and end."""

from __future__ import annotations

import threading
import weakref

import broadleaf as ipp
import joblib
import numpy as np
import pytest

MIB = 1 << 20
BOUND_BYTES = 8 * MIB
# From 1 MiB on, a buffer that is sent again is found by its address.
SIZES = [MIB // 2, MIB, 3 * MIB]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def rc():
    with ipp.Cluster(n=2, max_outstanding_bytes=BOUND_BYTES) as rc:
        yield rc


def items_of(size: int, n_bytes: int = 5 * BOUND_BYTES) -> list[np.ndarray]:
    return [np.full(size // 8, i, float) for i in range(n_bytes // size)]


def first(array: np.ndarray) -> float:
    return float(array[0])


def by_joblib(rc, items):
    rc.load_balanced_view().register_joblib_backend()
    return joblib.Parallel(n_jobs=2, backend="broadleaf")(joblib.delayed(first)(item) for item in items)


def by_scatter(rc, items):
    rc[:].scatter("scattered", items, block=True)
    return [first(item) for item in rc[:].gather("scattered", block=True)]


ROUTES = {
    "map": lambda rc, items: rc.load_balanced_view().map_sync(first, items),
    "map, one each": lambda rc, items: rc.load_balanced_view().map_sync(first, items, chunksize=1),
    "map, chunks": lambda rc, items: rc.load_balanced_view().map_sync(first, items, chunksize=5),
    "map, two sequences": lambda rc, items: [
        int(n) for n in rc.load_balanced_view().map_sync(lambda a, b: first(a) * (first(a) == first(b)), items, items)
    ],
    "map, rows": lambda rc, items: rc.load_balanced_view().map_sync(first, np.stack(items)),
    "map, generator": lambda rc, items: rc.load_balanced_view().map_sync(first, iter(items)),
    "imap": lambda rc, items: list(rc.load_balanced_view().imap(first, iter(items))),
    "apply": lambda rc, items: [
        result.get() for result in [rc.load_balanced_view().apply_async(first, item) for item in items]
    ],
    "direct map": lambda rc, items: rc[:].map_sync(first, items),
    "scatter": by_scatter,
    "executor": lambda rc, items: list(rc.executor().map(first, items)),
    "joblib": by_joblib,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("route", ROUTES)
def test_a_request_of_more_than_the_bound_ends(rc, route, size):
    items = items_of(size)
    assert ROUTES[route](rc, items) == list(range(len(items)))


@pytest.mark.parametrize("n_bytes", [BOUND_BYTES // 2, BOUND_BYTES - MIB, BOUND_BYTES, 3 * BOUND_BYTES])
def test_calls_that_name_the_same_large_value_do_not_wait_for_ever(rc, n_bytes):
    table = np.ones(n_bytes // 8)
    view = rc.load_balanced_view()
    items = items_of(MIB)
    expected = [i + 1.0 for i in range(len(items))]
    assert view.map_sync(lambda item: first(item) + first(table), items) == expected
    assert view.map_sync(lambda item, table: first(item) + first(table), items, [table] * len(items)) == expected


def test_two_threads_with_large_values_of_their_own_do_not_wait_for_each_other(rc):
    tables = [np.full(BOUND_BYTES // 8, float(i)) for i in (1, 2)]
    items = items_of(MIB)
    view = rc.load_balanced_view()
    sums = {}

    def add(table: np.ndarray) -> None:
        sums[first(table)] = sum(view.map_sync(lambda item: first(item) + first(table), items))

    threads = [threading.Thread(target=add, args=(table,)) for table in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    n = len(items)
    assert sums == {i: n * (n - 1) / 2 + n * i for i in (1.0, 2.0)}


def test_nothing_is_charged_once_all_is_done(rc):
    assert rc.load_balanced_view().map_sync(first, items_of(3 * MIB, 2 * BOUND_BYTES)) is not None
    assert rc.link.counters()["outstanding_bytes"] == 0


def test_what_was_submitted_of_a_map_ends_when_an_item_cannot_be_sent(rc):
    class Unsendable:
        def __reduce__(self):
            raise TypeError("not this one")

    view = rc.load_balanced_view()
    with pytest.raises(ipp.SerializationError, match="not this one"):
        view.map_async(lambda item: __import__("time").sleep(60), [*range(20), Unsendable()], chunksize=1)
    assert view.wait(timeout=30), "tasks of a map that failed still run"


@pytest.mark.parametrize("size", [10_000, MIB // 2, 3 * MIB])
@pytest.mark.parametrize("route", ["map", "imap"])
def test_what_a_generator_yields_need_not_fit_into_memory(route, size):
    alive: list[weakref.ref[np.ndarray]] = []
    most_bytes = 0
    n = 8 * BOUND_BYTES // size

    def items():
        nonlocal most_bytes
        for i in range(n):
            alive[:] = [ref for ref in alive if ref() is not None]
            most_bytes = max(most_bytes, size * len(alive))
            item = np.full(size // 8, i, float)
            alive.append(weakref.ref(item))
            yield item

    # A cluster of its own: segments of other tests would still be there.
    with ipp.Cluster(n=2, max_outstanding_bytes=BOUND_BYTES) as rc:
        view = rc.load_balanced_view()
        values = view.map_sync(first, items()) if route == "map" else view.imap(first, items())
        assert sum(values) == n * (n - 1) / 2
        assert most_bytes <= BOUND_BYTES + 2 * size
        assert rc.counters()["segment_bytes"] <= 3 * BOUND_BYTES + 16 * MIB


def test_a_map_over_a_generator_is_one_result(rc):
    view = rc.load_balanced_view()
    sizes = [MIB, 10, 3 * MIB, *[MIB // 2] * 20, *[0] * 500]
    result = view.map_async(len, (bytes(size) for size in sizes), chunksize=2)
    assert len(result) == len(sizes)
    assert result.get() == sizes
    assert list(result) == sizes
    assert result.progress == len(sizes)
    assert len(result.metadata) == len(sizes)
    unordered = view.map_async(len, (bytes(size) for size in sizes), ordered=False)
    assert sorted(unordered) == sorted(sizes)
    assert view.map_sync(len, iter(())) == []
    assert view.map_sync(pow, (i for i in range(5)), [2] * 9) == [0, 1, 4, 9, 16]


def test_an_item_of_a_later_block_that_fails_is_named_by_its_position(rc):
    def check(item: bytes) -> int:
        if len(item) == 5:
            raise ValueError("five")
        return len(item)

    items = [bytes(MIB)] * 20 + [b"12345"] + [bytes(MIB)] * 3
    for chunksize in (1, 3):
        result = rc.load_balanced_view().map_async(check, iter(items), chunksize=chunksize, return_exceptions=True)
        values = result.get()
        assert [i for i, value in enumerate(values) if isinstance(value, Exception)] == [20]
        assert values[20].item_index == 20
        with pytest.raises(ipp.CompositeError, match="item 20"):
            rc.load_balanced_view().map_sync(check, iter(items), chunksize=chunksize)


def test_what_a_generator_has_yielded_ends_when_it_raises(rc):
    def items():
        for _ in range(20):
            yield np.zeros(MIB // 8)
        raise RuntimeError("no more")

    view = rc.load_balanced_view()
    with pytest.raises(RuntimeError, match="no more"):
        view.map_async(lambda item: __import__("time").sleep(0.3), items())
    assert view.wait(timeout=30)
