"""Maps: chunks, order, laziness, errors."""

import itertools
from collections import deque
from collections.abc import Sequence

import broadleaf as ipp
import pytest
from broadleaf import error
from broadleaf.client.partition import automatic_chunk_items
from waiting import until


def square(x):
    return x**2


square = ipp.interactive(square)


def test_balanced_maps(lview):
    assert lview.map_sync(square, range(16)) == [x**2 for x in range(16)]
    ar = lview.map_async(square, iter(range(101)))
    assert isinstance(ar, ipp.AsyncMapResult)
    assert len(ar) == 101
    assert ar.get() == [x**2 for x in range(101)]
    assert lview.map_sync(lambda x, y: x * y, range(10), range(4)) == [0, 1, 4, 9]
    assert lview.map_sync(lambda x, y: x * y, range(4), range(10)) == [0, 1, 4, 9]
    assert lview.map_sync(square, []) == []
    assert list(lview.map_async(square, [])) == []
    assert lview.map_async(square, []).get() == []


@pytest.mark.parametrize("chunksize", [None, 0, 1, 3, 50, 500])
def test_any_chunk_size_gives_the_same(lview, chunksize):
    ar = lview.map_async(square, range(101), chunksize=chunksize)
    assert len(ar) == 101
    assert ar.get() == list(ar) == [x**2 for x in range(101)]
    assert ar.progress == 101


def test_a_long_map_goes_in_chunks(lview):
    n = 50_000
    ar = lview.map_async(square, range(n))
    assert ar.n_parts == -(-n // automatic_chunk_items(n, 4, 1024)) < 1100
    assert ar.get() == [x * x for x in range(n)]


def test_direct_maps(rc, dview):
    assert dview.map_sync(square, range(101)) == [x**2 for x in range(101)]
    assert dview.map_sync(square, []) == []
    assert dview.map_sync(square, [1, 2]) == [1, 4]
    assert rc[0].map_sync(lambda x: -x, range(5)) == [0, -1, -2, -3, -4]
    ar = dview.map_async(lambda x: x, range(10))
    assert len(ar) == 10
    assert list(ar) == list(range(10))
    assert rc.direct_view("all").map_sync(square, iter(range(7))) == [x**2 for x in range(7)]


def test_maps_over_arrays(rc, dview, lview):
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(101)
    assert (numpy.array(dview.map_sync(square, array)) == array**2).all()
    assert (numpy.array(lview.map_sync(square, array, chunksize=7)) == array**2).all()


def test_results_come_in_the_order_of_items(lview, gate):
    ordered = lview.map_async(gate.task_for(0), range(4), chunksize=1)
    assert until(lambda: ordered.progress == 3)
    gate.open()
    assert list(ordered) == [0, 1, 2, 3]


def test_unordered_results_come_as_they_arrive(lview, gate):
    unordered = lview.map_async(gate.task_for(0), range(4), chunksize=1, ordered=False)
    came = iter(unordered)
    assert {next(came) for _ in range(3)} == {1, 2, 3}
    gate.open()
    assert list(came) == [0]
    assert unordered.get() == [0, 1, 2, 3]


def fail_on_two(x):
    if x == 2:
        raise ValueError("two!")
    return x


fail_on_two = ipp.interactive(fail_on_two)


@pytest.mark.parametrize("chunksize", [1, 4, 100])
def test_an_item_that_raises(lview, chunksize):
    ar = lview.map_async(fail_on_two, range(5), chunksize=chunksize)
    with pytest.raises(ipp.CompositeError, match="two!"):
        ar.get()
    with pytest.raises(ipp.CompositeError):
        list(ar)
    caught = lview.map_async(fail_on_two, range(5), chunksize=chunksize, return_exceptions=True)
    values = list(caught)
    assert isinstance(values[2], ipp.RemoteError)
    assert isinstance(values[2].__cause__, ValueError)
    assert values[2].engine_info["engine_id"] in range(4)
    assert [*values[:2], *values[3:]] == [0, 1, 3, 4]
    assert caught.get() == values == list(caught)


def test_direct_map_with_exceptions(dview):
    values = dview.map_sync(fail_on_two, range(10), return_exceptions=True)
    assert isinstance(values[2], ipp.RemoteError)
    assert values[3:] == list(range(3, 10))
    with pytest.raises(ipp.CompositeError):
        dview.map_sync(fail_on_two, range(10))


def test_errors_afterwards_keep_positions(lview):
    ar = lview.map_async(fail_on_two, range(6), chunksize=2)
    values = ar.get(return_exceptions=True)
    assert [*values[:2], *values[3:]] == [0, 1, 3, 4, 5]
    assert isinstance(values[2], ipp.RemoteError)


def test_imap_looks_only_so_far_ahead(lview):
    taken = itertools.count()
    source = (next(taken) for _ in itertools.count())
    values = lview.imap(lambda i: i, source, max_outstanding=5)
    assert [next(values) for _ in range(20)] == list(range(20))
    assert next(taken) <= 26
    values.cancel()
    assert list(values) == list(range(20, 25))


def test_imap_unordered(lview, gate):
    values = lview.imap(gate.task_for(0), range(4), ordered=False, max_outstanding=2)
    assert [next(values) for _ in range(3)] == [1, 2, 3]
    gate.open()
    assert list(values) == [0]


def test_imap_exceptions(lview):
    values = list(lview.imap(fail_on_two, range(4), return_exceptions=True))
    assert isinstance(values[2], error.RemoteError)
    assert values[3] == 3

    def broken():
        yield 1
        raise KeyError("input")

    values = lview.imap(square, broken())
    assert next(values) == 1
    with pytest.raises(KeyError):
        next(values)


def test_a_map_runs_on_all_engines(rc, lview, gate):
    ar = lview.map_async(gate.task(), range(40), chunksize=1)
    gate.wait_for_tasks(4)
    gate.open()
    ar.get()
    assert set(ar.engine_id) == set(rc.ids)


def test_history_counts_items_of_requests(rc, lview):
    lview.map_sync(square, range(10))
    lview.apply_sync(square, 3)
    assert len(lview.history) == 11
    assert not lview.outstanding


def test_one_item_a_task_is_the_item_itself(rc, lview):
    assert lview.map_sync(lambda x: [x], range(5), chunksize=1) == [[i] for i in range(5)]
    assert lview.map_sync(pow, (2, 3), [3, 2], chunksize=1) == [8, 9]
    ar = lview.map_async(lambda x: None if x else x, [1, 0, 2], chunksize=1)
    assert list(ar) == ar.get() == [None, 0, None]
    assert [child.get() for child in ar.split()] == [[[None]], [[0]], [[None]]]
    assert (len(ar), ar.n_parts, ar.progress) == (3, 3, 3)
    alone = lview.map_async(abs, [-7], chunksize=1)
    assert alone.get_dict() == {alone.engine_id[0]: [7]}
    failing = lview.map_async(lambda x: 1 // x, [1, 0], chunksize=1)
    with pytest.raises(ipp.CompositeError):
        failing.get()
    value, error = failing.get(return_exceptions=True)
    assert value == 1
    assert error.ename == "ZeroDivisionError"
    value, error = lview.map_sync(lambda x: 1 // x, [1, 0], chunksize=1, return_exceptions=True)
    assert (value, error.ename) == (1, "ZeroDivisionError")


def test_items_that_go_one_by_one_are_not_pickled(rc, lview, monkeypatch):
    from broadleaf.client import connection
    from broadleaf.serialize.values import dump_args

    pickled = []
    # A client takes its hooks when it is made.
    monkeypatch.setattr(connection, "dump_args", lambda *args: pickled.append(args) or dump_args(*args))
    with rc.cluster.connect_client_sync() as own:
        view = own.load_balanced_view()
        assert view.map_sync(abs, range(100), chunksize=1) == list(range(100))
        assert pickled == []
        # Lists of plain values are not pickled either.
        assert view.map_sync(len, [{1, 2}] * 100, chunksize=50) == [2] * 100
        assert len(pickled) == 2


def stops_at_odd(x):
    if x % 2:
        raise StopIteration(x)
    return x


async def stops_at_odd_later(x):
    return stops_at_odd(x)


@pytest.mark.parametrize(
    "mapped",
    [
        lambda rc, f, **options: rc[:].map_async(f, range(7), **options),
        lambda rc, f, **options: rc[0].map_async(f, range(7), **options),
        lambda rc, f, **options: rc.load_balanced_view().map_async(f, range(7), chunksize=1, **options),
        lambda rc, f, **options: rc.load_balanced_view().map_async(f, range(7), chunksize=3, **options),
        lambda rc, f, **options: rc.load_balanced_view().map_async(f, iter(range(7)), chunksize=7, **options),
    ],
)
def test_a_function_that_raises_stop_iteration_ends_no_chunk(rc, mapped):
    told = mapped(rc, stops_at_odd, return_exceptions=True).get(20)
    assert [value if not isinstance(value, ipp.RemoteError) else value.ename for value in told] == [
        0, "StopIteration", 2, "StopIteration", 4, "StopIteration", 6
    ]  # fmt: skip
    assert [value.item_index for value in told if isinstance(value, ipp.RemoteError)] == [1, 3, 5]
    with pytest.raises(ipp.RemoteError, match="StopIteration"):
        mapped(rc, stops_at_odd).get(20)
    # Python makes a RuntimeError of it where a coroutine raises it.
    told = mapped(rc, stops_at_odd_later, return_exceptions=True).get(20)
    assert [isinstance(value, RuntimeError) or value for value in told] == [0, True, 2, True, 4, True, 6]


class NoSlices(Sequence):
    """A sequence whose items are found one by one."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        if not isinstance(index, int):
            raise KeyError(index)
        return self.items[index]


class Evens(list):
    """A list that is iterated over in its own way."""

    def __iter__(self):
        return iter(self[::2])


def test_a_list_with_an_iteration_of_its_own(rc, dview, lview):
    items = Evens(range(7))
    for view in (dview, lview):
        assert view.map_sync(abs, items) == [0, 2, 4, 6]
    for chunksize in (1, 3, None):
        assert lview.map_sync(abs, items, chunksize=chunksize) == [0, 2, 4, 6]
        assert list(rc.executor().map(abs, items, chunksize=chunksize)) == [0, 2, 4, 6]


def _sums(part):
    return [sum(part)]


@pytest.mark.parametrize("make", [deque, NoSlices])
def test_sequences_that_cannot_be_sliced(rc, dview, lview, make):
    items = make(list(range(7)))
    for view in (dview, lview):
        assert view.map_sync(abs, items) == list(range(7))
        assert view.map_sync(max, items, [3] * 7) == [3, 3, 3, 3, 4, 5, 6]
        assert sum(view.parallel(block=True)(_sums)(items)) == 21
        assert view.parallel(block=True)(abs).map(items) == list(range(7))
    for chunksize in (1, 3, None):
        assert lview.map_sync(abs, items, chunksize=chunksize) == list(range(7))
        assert list(rc.executor().map(abs, items, chunksize=chunksize)) == list(range(7))
    for dist in "br":
        dview.scatter("part", items, dist, block=True)
        assert dview.gather("part", dist, block=True) == list(range(7))


class Shrinks:
    """Empties the list that it is in when it is pickled."""

    def __init__(self, items):
        self.items = items

    def __reduce__(self):
        self.items.clear()
        return int, (7,)


def test_a_list_that_becomes_shorter_meanwhile_is_told(rc, lview):
    items = []
    items += [Shrinks(items), 1, 2]
    with pytest.raises(ValueError, match="it gave 1 of 3 calls; pass a copy"):
        lview.map_async(abs, items)
    assert rc.wait(timeout=20)
    assert lview.map_sync(abs, [-1, -2, -3]) == [1, 2, 3]
