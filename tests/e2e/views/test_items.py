"""Values, errors and metadata of a map belong to items, however many of them travel together."""

import asyncio
import sys

import broadleaf as ipp
import pytest

N = 5000
BAD = (7, 8, 4321)


@ipp.interactive
def add_one(x):
    if x in (7, 8, 4321):
        raise ValueError(f"{x} is bad")
    return x + 1


async def taken(values):
    return [value async for value in values]


ROUTES = {
    "get afterwards": lambda rc: rc.load_balanced_view().map_async(add_one, range(N)).get(return_exceptions=True),
    "iterator": lambda rc: rc.load_balanced_view().map_async(add_one, iter(range(N))).get(return_exceptions=True),
    "one task": lambda rc: (
        rc.load_balanced_view().map_async(add_one, range(N), chunksize=N).get(return_exceptions=True)
    ),
    "map": lambda rc: rc.load_balanced_view().map_sync(add_one, range(N), return_exceptions=True),
    "items one by one": lambda rc: (
        rc.load_balanced_view().map_async(add_one, range(N), chunksize=1).get(return_exceptions=True)
    ),
    "direct": lambda rc: rc[:].map_async(add_one, range(N)).get(return_exceptions=True),
    "one engine": lambda rc: rc[0].map_async(add_one, range(N)).get(return_exceptions=True),
    "broadcast": lambda rc: rc.broadcast_view().map_async(add_one, range(N)).get(return_exceptions=True),
    "direct imap": lambda rc: list(rc[:].imap(add_one, range(N), return_exceptions=True)),
    "balanced imap": lambda rc: list(rc.load_balanced_view().imap(add_one, range(N), return_exceptions=True)),
    "starmap": lambda rc: rc.load_balanced_view().starmap(
        add_one, [(n,) for n in range(N)], return_exceptions=True, block=True
    ),
    "starmap of an iterator": lambda rc: rc.load_balanced_view().starmap(
        add_one, ([n] for n in range(N)), return_exceptions=True, block=True
    ),
    "imap of chunks": lambda rc: list(
        rc.load_balanced_view().imap(add_one, range(N), chunksize=300, return_exceptions=True)
    ),
    "client": lambda rc: rc.map(add_one, range(N), return_exceptions=True).get(),
    "executor with a buffer": lambda rc: list(
        rc.executor().map(add_one, range(N), chunksize=300, buffersize=3, return_exceptions=True)
    ),
    "parallel function": lambda rc: (
        rc.load_balanced_view().parallel(return_exceptions=True, block=True, chunksize=300)(add_one).map(range(N))
    ),
    "direct parallel function": lambda rc: rc[:].parallel(return_exceptions=True, block=True)(add_one).map(range(N)),
    "executor": lambda rc: list(rc.executor().map(add_one, range(N), chunksize=300, return_exceptions=True)),
    "executor with a timeout": lambda rc: list(
        rc.executor().map(add_one, range(N), chunksize=300, return_exceptions=True, timeout=60)
    ),
    "iteration": lambda rc: list(rc.load_balanced_view().map_async(add_one, range(N), return_exceptions=True)),
    "async iteration": lambda rc: asyncio.run(
        taken(rc.load_balanced_view().map_async(add_one, range(N), return_exceptions=True))
    ),
    "parts": lambda rc: [
        value
        for part in rc.load_balanced_view().map_async(add_one, range(N), chunksize=300).split()
        for value in part.get(return_exceptions=True)[0]
    ],
}


@pytest.mark.parametrize("route", ROUTES)
def test_only_the_items_that_raised_are_errors(rc, route):
    values = ROUTES[route](rc)
    assert len(values) == N
    failed = [position for position, value in enumerate(values) if isinstance(value, BaseException)]
    assert failed == list(BAD)
    assert [value for value in values if not isinstance(value, BaseException)] == [
        x + 1 for x in range(N) if x not in BAD
    ]
    for position in BAD:
        error = values[position]
        assert (error.ename, error.evalue) == ("ValueError", f"{position} is bad")
        assert error.engine_info["engine_id"] in rc.ids
        assert "is bad" in error.traceback
        if route != "parts":
            assert (error.item_index, error.item_repr) == (position, str(position))


@pytest.mark.parametrize("chunksize", [1, 3, 5000])
def test_a_map_raises_an_error_for_each_item(lview, chunksize):
    result = lview.map_async(add_one, range(10), chunksize=chunksize)
    with pytest.raises(ipp.CompositeError, match="7 is bad") as caught:
        result.get()
    assert [error.item_index for error in caught.value.exceptions] == [7, 8]
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("chunksize", [1, 4, 100])
def test_values_before_the_first_error_come(rc, lview, chunksize):
    def until_it_raises(values):
        seen = []
        with pytest.raises(ValueError, match="7 is bad"):
            for value in values:
                seen.append(value)
        return seen

    expected = list(range(1, 8))
    assert until_it_raises(lview.map_async(add_one, range(10), chunksize=chunksize)) == expected
    assert until_it_raises(rc.executor().map(add_one, range(10), chunksize=chunksize)) == expected
    assert until_it_raises(rc.executor().map(add_one, range(10), chunksize=chunksize, timeout=60)) == expected


@pytest.mark.parametrize("chunksize", [1, 3, 100])
def test_metadata_is_that_of_items(lview, chunksize):
    @ipp.interactive
    def work(x):
        print("item", x)
        return add_one(x)

    work.__globals__["add_one"] = add_one
    result = lview.map_async(work, range(10), chunksize=chunksize)
    result.wait()
    assert result.status == ["ok"] * 7 + ["error"] * 2 + ["ok"]
    assert [error and error.evalue for error in result.error] == [None] * 7 + ["7 is bad", "8 is bad", None]
    assert result.get(return_exceptions=True)[7] is result.error[7]
    assert "".join(result.stdout) == "".join(f"item {x}\n" for x in range(10))
    for values in (result.metadata, result.engine_id, result.started, result.outputs, result["completed"]):
        assert len(values) == len(result) == 10
    assert [item.status for item in result.metadata] == result.status
    assert [item.error for item in result.metadata] == result.error
    assert result.timedelta(result.submitted, result.completed) > 0


@pytest.mark.parametrize("chunksize", [1, 4])
def test_a_value_that_cannot_be_pickled_is_the_failure_of_its_item(lview, chunksize):
    @ipp.interactive
    def odd(x):
        import threading

        return threading.Lock() if x == 2 else 1 // (x - 5)

    values = lview.map_async(odd, range(8), chunksize=chunksize).get(return_exceptions=True)
    assert [getattr(value, "ename", value) for value in values] == [
        -1, -1, "SerializationError", -1, -1, "ZeroDivisionError", 1, 0,
    ]  # fmt: skip
    assert "the result (_thread.lock)" in str(values[2])
    with pytest.raises(ipp.CompositeError, match="cannot pickle") as caught:
        lview.map_sync(odd, range(5), chunksize=chunksize)
    assert [error.item_index for error in caught.value.exceptions] == [2]


@pytest.mark.parametrize("chunksize", [1, 16])
def test_large_values_next_to_an_error_arrive(lview, chunksize):
    numpy = pytest.importorskip("numpy")

    @ipp.interactive
    def make(x):
        import numpy

        return numpy.full(200_000 if x % 2 else 10, float(x)) if x != 5 else [][0]

    values = lview.map_async(make, range(16), chunksize=chunksize).get(return_exceptions=True)
    assert values[5].ename == "IndexError"
    for x, value in enumerate(values):
        if x != 5:
            assert (value == numpy.full(200_000 if x % 2 else 10, float(x))).all()
            value += 1


@pytest.mark.parametrize("chunksize", [1, 4])
def test_an_item_that_exits_fails_alone(lview, chunksize):
    values = lview.map_async(lambda x: sys.exit(3) if x == 1 else x, range(4), chunksize=chunksize)
    values = values.get(return_exceptions=True)
    assert [getattr(value, "ename", value) for value in values] == [0, "SystemExit", 2, 3]


@pytest.mark.parametrize("chunksize", [1, 4])
@pytest.mark.parametrize("return_exceptions", [False, True])
def test_tasks_of_any_length_are_retried(rc, tmp_path, chunksize, return_exceptions):
    @ipp.interactive
    def fail_once(x, path):
        import pathlib

        if x == 2 and not pathlib.Path(path).exists():
            pathlib.Path(path).touch()
            raise OSError("once")
        return x

    view = rc.load_balanced_view()
    view.retries = 1
    paths = [str(tmp_path / "failed")] * 4
    values = view.map_sync(fail_once, range(4), paths, chunksize=chunksize, return_exceptions=return_exceptions)
    assert values == [0, 1, 2, 3]


@pytest.mark.parametrize("chunksize", [1, 4])
def test_coroutines_fail_one_by_one(lview, chunksize):
    @ipp.interactive
    async def invert(x):
        return 1 / x

    values = lview.map_async(invert, [1, 0, 2, 0], chunksize=chunksize).get(return_exceptions=True)
    assert [getattr(value, "ename", value) for value in values] == [1, "ZeroDivisionError", 0.5, "ZeroDivisionError"]


def test_another_client_gets_items_too(rc, cluster):
    result = rc.load_balanced_view().map_async(add_one, range(6, 10), chunksize=4)
    result.wait()
    with cluster.connect_client_sync() as other:
        (values,) = other.get_result(result.msg_ids).get(return_exceptions=True)
    assert [getattr(value, "evalue", value) for value in values] == [7, "7 is bad", "8 is bad", 10]


def test_a_child_forked_in_a_chunk_leaves_the_other_items_to_its_parent(rc, tmp_path):
    @ipp.interactive
    def forks(x, path):
        import os

        with open(path, "a") as file:
            file.write(f"{x} ")
        if x == 1 and os.fork() == 0:
            raise ValueError("in the child")
        return x

    path = str(tmp_path / "calls")
    assert rc[0].map_sync(forks, range(4), [path] * 4) == [0, 1, 2, 3]
    rc[0].apply_sync(lambda: __import__("os").wait())
    assert (tmp_path / "calls").read_text() == "0 1 2 3 "


def test_the_exception_of_a_future_is_one_object(rc, lview, dview):
    for result in (
        rc.executor().submit(divmod, 1, 0),
        lview.apply_async(divmod, 1, 0),
        dview.apply_async(divmod, 1, 0),
        rc.broadcast_view(coalescing=True).apply_async(divmod, 1, 0),
        lview.map_async(add_one, range(10), chunksize=4),
        dview.execute("1 / 0"),
        dview.apply_async(divmod, 1, 0).split()[1],
    ):
        first = result.exception(20)
        assert isinstance(first, Exception)
        assert result.exception() is first
        # Raising it keeps its traceback, and a result raises a new one.
        with pytest.raises(type(first)) as caught:
            result.get()
        assert caught.value is not first
    assert rc[0].apply_async(abs, -1).exception() is None
