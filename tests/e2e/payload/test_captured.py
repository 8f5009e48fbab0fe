"""Large captured values of a function: they travel as arguments do, and no size of them ends a connection."""

import functools
import gc
import threading
import time
from pathlib import Path

import broadleaf as ipp
import numpy as np
import pytest
from broadleaf.serialize.chunks import MapChunk
from waiting import until

MIB = 1 << 20
# More than a function's body may have on the wire.
LARGE_BYTES = 72 * MIB
pytestmark = pytest.mark.timeout(120)

large = np.ones(LARGE_BYTES // 8)


class Model:
    """An object with a large array."""

    def __init__(self, weights):
        self.weights = weights

    def predict(self, x):
        return float(self.weights[-1]) + x

    def __call__(self, x):
        return self.predict(x)


def closure(array):
    return lambda x: float(array[-1]) + x


def of_array(array, x):
    return float(array[-1]) + x


def in_main(source: str, **names):
    """A function as `__main__` would define it, with these globals."""
    names["__name__"] = "__main__"
    exec(source, names)
    return names["f"]


def functions():
    """Functions that capture a large array, by the way in which they do."""
    return {
        "variable": closure(large),
        "method": Model(large).predict,
        "object": Model(large),
        "partial": functools.partial(of_array, large),
        "default": in_main("def f(x, a=large): return float(a[-1]) + x", large=large),
        "global": in_main("def f(x): return float(large[-1]) + x", large=large),
        "keyword": in_main("def f(x, *, a=large): return float(a[-1]) + x", large=large),
        "chunk": functools.partial(lambda function, x: function([x])[0], MapChunk(closure(large))),
    }


def copied_bytes(rc) -> int:
    return rc.link.counters()["copied_bytes"]


@pytest.mark.parametrize("way", functions())
def test_a_large_array_is_taken_along(rc, lview, way):
    function = functions()[way]
    other = rc[0].apply_async(abs, -1)
    assert lview.apply_async(function, 1).get(timeout=60) == 2
    before = copied_bytes(rc)
    assert lview.map(function, range(30), chunksize=1).get(timeout=60) == [1.0 + i for i in range(30)]
    # Once for all items, plus the few bytes that the pickle itself takes.
    assert copied_bytes(rc) - before <= LARGE_BYTES + MIB
    assert other.get(timeout=10) == 1


@pytest.mark.parametrize("kind", ["bytes", "texts", "numbers"])
def test_large_values_without_buffers_are_taken_along(rc, lview, kind):
    value = {
        "bytes": lambda: b"x" * LARGE_BYTES,
        "texts": lambda: [str(i) * 100 for i in range(120_000)],
        "numbers": lambda: {i: -i for i in range(8_000_000)},
    }[kind]()
    n = len(value)
    assert lview.apply_async(lambda: len(value)).get(timeout=60) == n
    assert rc[0].apply_async(len, value).get(timeout=60) == n
    if kind == "bytes":
        # What cannot be changed is unpacked once for a map.
        assert len(set(rc.load_balanced_view(0).map(lambda _: id(value), range(8), chunksize=1).get(timeout=60))) == 1


def test_calls_do_not_see_what_others_do_to_their_values(rc):
    array = np.zeros(2 * MIB)

    def count(x):
        array[0] += 1
        return float(array[0]), float(array[-1]) + x

    view = rc.load_balanced_view(0)
    assert view.map(count, range(5), chunksize=1).get(timeout=30) == [(1.0, float(x)) for x in range(5)]
    assert array[0] == 0
    # A call has what there was when it was submitted.
    first = view.apply_async(count, 0)
    array[-1] = 7
    second = view.apply_async(count, 0)
    array[0] = 100
    assert (first.get(timeout=30), second.get(timeout=30)) == ((1.0, 0.0), (1.0, 7.0))
    assert view.apply_async(count, 0).get(timeout=30) == (101.0, 7.0)


def test_an_engine_sends_on_what_a_function_took_along(rc):
    array = np.arange(2.0 * MIB)
    back = rc[0].apply_async(lambda: array).get(timeout=30)
    np.testing.assert_array_equal(back, array)
    back[0] = -1
    assert array[0] == 0


def test_an_array_in_many_calls_is_copied_once_while_it_does_not_change(rc, lview, tmp_path: Path):
    array = np.zeros(2 * MIB // 8)
    gate = tmp_path / "open"
    before = rc.link.counters()["copies"]
    held = [rc.load_balanced_view(i).apply_async(first_when_open, array, str(gate)) for i in range(4)]
    results = [lview.apply_async(of_array, array, i) for i in range(20)]
    assert rc.link.counters()["copies"] - before == 1
    array[-1] = 5
    results += [lview.apply_async(of_array, array, i) for i in range(20)]
    assert rc.link.counters()["copies"] - before == 2
    gate.touch()
    assert [r.get(timeout=30) for r in held] == [0.0] * 4
    assert [r.get(timeout=30) for r in results] == [*map(float, range(20)), *(5.0 + i for i in range(20))]
    del results, held
    gc.collect()
    assert lview.apply_async(of_array, array, 0).get(timeout=30) == 5


def first_when_open(array, path: str) -> float:
    wait_for(path)
    return float(array[0])


def wait_for(path: str) -> None:
    import os

    while not os.path.exists(path):
        time.sleep(0.01)


def meet(array, folder: str, me: int, other: int) -> float:
    """Returns only if the other call runs at the same time."""
    from pathlib import Path

    (Path(folder) / str(me)).touch()
    wait_for(str(Path(folder) / str(other)))
    return float(array[0])


def test_what_calls_have_in_common_counts_once_against_the_bound(tmp_path: Path):
    array = np.ones(8 * MIB // 8)
    with ipp.Cluster(n=2, max_outstanding_bytes=10 * MIB) as client:
        view = client.load_balanced_view()
        # Two of them together would exceed the limit if each counted the array.
        both = [view.apply_async(meet, array, str(tmp_path), *ids) for ids in ((0, 1), (1, 0))]
        assert [r.get(timeout=30) for r in both] == [1.0, 1.0]
        met = view.map(functools.partial(meet, array, str(tmp_path)), (2, 3), (3, 2), chunksize=1)
        assert met.get(timeout=30) == [1.0, 1.0]
        assert client.link.outstanding() == 0
        # It no longer counts: the limit is as wide as before.
        throttled = client.link.counters()["throttled"]
        slow = view.apply_async(first_when_open, np.zeros(MIB // 8), str(tmp_path / "open"))
        assert view.apply_async(of_array, np.ones(8 * MIB // 8), 1).get(timeout=30) == 2
        assert client.link.counters()["throttled"] == throttled
        (tmp_path / "open").touch()
        assert slow.get(timeout=30) == 0


def test_nothing_of_it_stays_in_use(rc, lview):
    def bytes_in_use() -> int:
        counters = rc.link.counters()
        return counters["segment_bytes"] - counters["warm_bytes"]

    array = np.ones(2 * MIB)
    function = closure(array)
    assert sum(lview.map(function, range(10), chunksize=1).get(timeout=30)) == 55

    def nothing_is_in_use() -> bool:
        # Engines return what they had with their next reply.
        rc[:].apply_sync(abs, 1)
        return bytes_in_use() == 0

    assert until(nothing_is_in_use)


def test_two_threads_that_send_the_same_array(rc, lview):
    array = np.ones(4 * MIB)
    wrong: list[float] = []

    def submit() -> None:
        for i in range(20):
            value = lview.apply_async(of_array, array, i).get(timeout=60)
            if value != 1.0 + i:
                wrong.append(value)

    threads = [threading.Thread(target=submit) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
