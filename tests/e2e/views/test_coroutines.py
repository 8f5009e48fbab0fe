"""`async def` tasks: they run on their engine's event loop, and their value is what they return."""

import asyncio
import functools

import broadleaf as ipp
import pytest
from broadleaf import error
from waiting import until


@ipp.interactive
async def twice(n):
    import asyncio

    await asyncio.sleep(0.001)
    return 2 * n


@ipp.interactive
async def divide(n):
    return 1 / n


def test_the_value_is_that_of_the_coroutine(rc, lview):
    assert rc[0].apply_sync(twice, 4) == 8
    assert rc[:].apply_sync(twice, 4) == [8] * 4
    assert lview.apply_async(twice, n=4).get(20) == 8
    assert lview.apply_sync(functools.partial(twice, 5)) == 10
    assert rc.executor().submit(twice, 3).result(20) == 6
    assert rc.broadcast_view(coalescing=True).apply_sync(twice, 1) == [2] * 4


def test_a_function_that_returns_a_coroutine(rc):
    def later(n):
        import asyncio

        return asyncio.sleep(0.001, n)

    assert rc[0].apply_sync(later, 5) == 5


def test_maps_of_coroutines(rc, lview):
    expected = [2 * n for n in range(10)]
    assert rc[:].map_sync(twice, range(10)) == expected
    assert lview.map_sync(twice, range(10)) == expected
    assert lview.map_sync(twice, range(10), chunksize=3) == expected
    assert list(lview.imap(twice, range(10))) == expected
    assert rc[:].parallel(block=True)(twice).map(range(10)) == expected


@pytest.mark.parametrize("chunksize", [1, 3])
def test_errors_of_coroutines(rc, lview, chunksize):
    with pytest.raises(ipp.RemoteError, match="ZeroDivisionError"):
        rc[0].apply_sync(divide, 0)
    with pytest.raises(ipp.RemoteError, match="ZeroDivisionError"):
        lview.map_sync(divide, [1, 0, 2], chunksize=chunksize)
    one, failed, half = lview.map_sync(divide, [1, 0, 2], chunksize=chunksize, return_exceptions=True)
    assert (one, half) == (1, 0.5)
    assert failed.ename == "ZeroDivisionError"


def test_an_interrupt_cancels_the_coroutine_and_lets_it_clean_up(rc):
    @ipp.interactive
    async def wait_long():
        import asyncio

        globals()["began"] = True
        try:
            await asyncio.sleep(30)
        finally:
            globals()["cleaned_up"] = True

    result = rc[0].apply_async(wait_long)
    assert until(result.running)
    result.abort()
    with pytest.raises(error.TaskAborted):
        result.get(20)
    # If it is aborted before its first step, it has nothing to clean up.
    assert rc[0].apply_sync(lambda: globals().get("began") == globals().get("cleaned_up"))
    assert rc[0].apply_sync(twice, 2) == 4, "the loop is usable"


def test_a_timeout_stops_a_coroutine(rc):
    view = rc.load_balanced_view([1])
    view.timeout = 0.2
    with pytest.raises(error.TaskTimeout):
        view.apply_async(asyncio.sleep, 30).get(20)
    assert rc[1].apply_sync(twice, 2) == 4


def test_coroutines_share_the_loop_of_executed_code(rc):
    rc[0].execute("import asyncio; loop = None", block=True)
    rc[0].execute("loop = asyncio.get_running_loop(); await asyncio.sleep(0)", block=True)

    @ipp.interactive
    async def is_same():
        import asyncio

        return asyncio.get_running_loop() is loop  # noqa: F821

    assert rc[0].apply_sync(is_same)
