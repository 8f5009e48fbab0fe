"""Messages of many buffers, and values of every size: memory grows with the bytes sent, and each arrives as it was."""

from __future__ import annotations

import gc
import sys

import broadleaf as ipp
import numpy as np
import pytest

MIB = 1 << 20
LARGEST_SLAB_BYTES = 16 * MIB
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def rc():
    with ipp.Cluster(n=2) as rc:
        yield rc


def engine_counters() -> dict[str, int]:
    return sys.stdout._engine.counters()  # type: ignore[union-attr]


def arrays_of(n: int, n_bytes: int) -> list[np.ndarray]:
    return [np.full(n_bytes // 8, i, float) for i in range(n)]


def firsts(arrays: list[np.ndarray]) -> list[float]:
    return [float(array[0]) for array in arrays]


CASES = [(2000, 17_000), (1000, 100_000), (400, 400_000), (1000, 400_000), (250, 800_000)]


@pytest.mark.parametrize(("n", "n_bytes"), CASES)
def test_memory_grows_with_the_bytes_sent(n, n_bytes):
    allowed_bytes = n * n_bytes * 5 // 4 + LARGEST_SLAB_BYTES
    # A cluster of its own: segments of other tests would be used again.
    with ipp.Cluster(n=1) as rc:
        assert rc[0].apply_sync(firsts, arrays_of(n, n_bytes)) == [float(i) for i in range(n)]
        assert rc.counters()["segment_bytes"] <= allowed_bytes
        back = rc[0].apply_sync(arrays_of, n, n_bytes)
        assert firsts(back) == [float(i) for i in range(n)]
        assert rc[0].apply_sync(engine_counters)["segment_bytes"] <= allowed_bytes


@pytest.mark.parametrize("chunksize", [1, 10, 100, None])
def test_chunks_of_images(rc, chunksize):
    images = arrays_of(300, 500_000)
    gc.collect()
    assert rc.load_balanced_view().map_sync(lambda image: float(image[0]), images, chunksize=chunksize) == list(
        range(300)
    )
    assert rc[:].map_sync(lambda image: float(image[0]), images) == list(range(300))
    rc[:].scatter("images", images, block=True)
    assert rc[:].gather("images", block=True)[299][0] == 299
    # Those of the direct map, of scatter, and of the map at most.
    assert rc.counters()["segment_bytes"] <= 2 * 300 * 500_000 * 5 // 4 + 3 * LARGEST_SLAB_BYTES


def test_what_does_not_fit_says_why():
    with ipp.Cluster(n=1, shared_memory=False) as rc:
        # A message holds 255 MiB.
        with pytest.raises(
            ipp.SerializationError, match=r"argument 1 \(list\) cannot be sent: .*option `shared_memory`"
        ):
            rc[0].apply_sync(len, [np.zeros(15 * MIB)] * 1 + [np.zeros(20 * MIB)])
        with pytest.raises(ipp.RemoteError, match=r"the result \(list\) cannot be sent: .*option `shared_memory`"):
            rc[0].apply_sync(lambda: [__import__("numpy").zeros(20 << 20) for _ in range(2)])
        assert rc[0].apply_sync(len, "still there") == 11


SIZES = [1, 100, 16_383, 16_384, 16_385, 70_000, 1_000_000, 5_000_000]
MAKE = {
    "bytes": lambda n: bytes(i % 251 for i in range(min(n, 1000))) * (n // min(n, 1000)),
    "bytearray": lambda n: bytearray(b"ab" * n),
    "text": lambda n: "x" * n,
    "text of two bytes": lambda n: "é" * n,
    # Python calls a function for each such character that it decodes.
    "text that is not UTF-8": lambda n: "x" * (n - 1) + "\udc80",
    "list of ints": lambda n: [i * 40_503 % 2**33 for i in range(n // 8 + 1)],
    "list of floats": lambda n: [i / 3 for i in range(n // 8 + 1)],
    "list of None": lambda n: [None] * (n // 8 + 1),
    "range": lambda n: range(-n, n, 3),
    "list of dicts": lambda n: [{"a": i, "b": "t"} for i in range(n // 30 + 1)],
    "rows": lambda n: [
        {"id": i, "name": f"item {i}", "at": {"x": i / 3, "y": None}, "tags": ["a", ("b", b"c", i % 2 == 0)]}
        for i in range(n // 400 + 1)
    ],
    "tuple of one bytes twice": lambda n: (b"q" * n,) * 2,
    "dict": lambda n: {"a": b"r" * n, "b": ("s" * n, None, 1.5)},
    "many texts": lambda n: tuple("u" * 1000 + str(i) for i in range(n // 1000 + 1)),
    "small arrays": lambda n: [np.full(125, i, float) for i in range(n // 1000 + 1)],
    "array": lambda n: np.arange(n // 8 + 1),
}


def same(a, b) -> bool:
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b)) and a.dtype == b.dtype
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def echo(value, again=None):
    if isinstance(value, np.ndarray):
        value[:1] += 0
    return value if again is None else (value, again)


@pytest.mark.filterwarnings("ignore:Each task of this map unpacks")
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", MAKE)
def test_values_of_every_size_by_every_route(rc, kind, n):
    value = MAKE[kind](n)
    assert same(rc[0].apply_sync(echo, value), value)
    assert same(rc[0].apply_sync(echo, value, again=value), (value, value))
    assert all(same(back, value) for back in rc[:].apply_sync(echo, value))
    assert all(same(back, value) for back in rc.broadcast_view(coalescing=True).apply_sync(echo, value))
    balanced = rc.load_balanced_view()
    assert all(same(back, value) for back in balanced.map_sync(echo, [value] * 3))
    assert all(same(back, value) for back in balanced.map_sync(lambda _: value, range(3)))
    assert same(rc.executor().submit(echo, value).result(), value)
    rc[:].push({"pushed": value}, block=True)
    assert all(same(back, value) for back in rc[:].pull("pushed", block=True))


def test_a_value_that_occurs_twice_is_one_object(rc):
    text = "x" * 100_000
    assert rc[0].apply_sync(lambda pair: pair[0] is pair[1], (text, text))
    assert rc[0].apply_sync(lambda a, b: a is b, b"y" * 100_000, b"z" * 100_000) is False


def test_what_rows_share_they_share_on_arrival(rc):
    shared = ["tag"]
    rows = [{"tags": shared, "next": None} for _ in range(2000)]
    rows[0]["next"] = rows
    relations = [lambda rows: rows[0]["next"] is rows, lambda rows: rows[0]["tags"] is rows[1999]["tags"]]
    for relation in relations:
        assert rc[0].apply_sync(relation, rows)
        assert rc.load_balanced_view().map_sync(relation, [rows, rows]) == [True, True]
    back = rc[0].apply_sync(echo, rows)
    assert all(relation(back) for relation in relations)
    assert rc[0].apply_sync(lambda a, b: a[0]["tags"] is b, rows, shared)


def test_another_client_gets_a_result_of_64_kib_whatever_it_is(rc):
    for value in (b"x" * 60_000, "y" * 20_000, [{"a": i} for i in range(2_000)], np.arange(8_000)):
        result = rc[0].apply_async(lambda value=value: value)
        assert same(result.get(), value)
        with rc.cluster.connect_client_sync() as other:
            assert same(other.get_result(result.msg_ids[0]).get(20), value)
