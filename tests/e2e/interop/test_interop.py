"""The cluster through other libraries' interfaces."""

import asyncio
import concurrent.futures
import threading
import time

import broadleaf as ipp
import pytest
from broadleaf import error
from broadleaf.interop import aio
from gates import Gate
from waiting import until


def test_executor_submit_and_map(rc):
    executor = rc.executor()
    assert isinstance(executor, concurrent.futures.Executor)
    assert isinstance(executor.view, ipp.LoadBalancedView)
    assert executor._max_workers == 4
    assert executor.submit(lambda x, y: x * y, 2, y=3).result(10) == 6
    assert executor.submit(pow, 2, 5).result(10) == 32
    values = executor.map(lambda x: x, range(5))
    assert isinstance(values, ipp.LazyMapIterator)
    assert list(values) == list(range(5))
    assert list(executor.map(pow, range(10), range(10))) == list(map(pow, range(10), range(10)))
    assert list(executor.map(pow, range(40), range(40), chunksize=7)) == list(map(pow, range(40), range(40)))
    assert list(executor.map(abs, [])) == []
    failing = executor.map(divmod, [1, 1, 1], [2, 0, 3])
    assert next(failing) == (0, 1)
    with pytest.raises(ZeroDivisionError):
        next(failing)
    assert next(failing) == (0, 1)


def test_executor_map_times_out(rc, gate):
    executor = rc.executor()
    values = executor.map(gate.task_for(2), [0, 1], timeout=60)
    assert [next(values), next(values)] == [0, 1]
    values = executor.map(gate.task_for(2), [2], timeout=0.2)
    with pytest.raises(concurrent.futures.TimeoutError):
        next(values)
    gate.open()


def test_executor_shutdown(rc):
    view = rc.load_balanced_view()
    with view.executor as executor:
        future = executor.submit(time.sleep, 0.2)
        mapped = executor.map(lambda x: x, range(10))
    assert future.done()
    assert len(view.history) == 11
    assert list(mapped) == list(range(10))
    with pytest.raises(RuntimeError):
        executor.submit(abs, 1)
    with pytest.raises(RuntimeError):
        executor.map(abs, [1])
    executor.shutdown()
    assert view.apply_sync(abs, -1) == 1


def test_executor_cancels_on_shutdown(rc, gate):
    """Tasks that have not started are cancelled; running ones continue, like the futures of a process pool."""
    executor = rc.load_balanced_view([0]).executor
    futures = [executor.submit(gate.task())] + [executor.submit(time.sleep, 30) for _ in range(5)]
    mapped = rc.load_balanced_view([0]).executor
    items = mapped.map(time.sleep, [30] * 3, chunksize=2)
    gate.wait_for_tasks()
    assert until(futures[0].running)
    mapped.shutdown(wait=False, cancel_futures=True)
    executor.shutdown(wait=False, cancel_futures=True)
    gate.open()
    executor.shutdown(wait=True)
    assert [future.cancelled() for future in futures] == [False] + [True] * 5
    assert futures[0].exception() is None
    with pytest.raises(ipp.TaskAborted):
        next(items)


@pytest.mark.parametrize("options", [{}, {"chunksize": 3}, {"chunksize": None}, {"timeout": 20}])
@pytest.mark.parametrize("view_of", [ipp.Client.load_balanced_view, ipp.Client.broadcast_view, lambda rc: rc[:]])
def test_an_executors_map_over_nothing(rc, view_of, options):
    with view_of(rc).executor as executor:
        for nothing in ([], (), "", iter(())):
            assert list(executor.map(abs, nothing, **options)) == []
        assert list(executor.map(max, [1, 2], [], **options)) == []


def test_an_executor_cancels_no_other_tasks_than_its_own(gate):
    """A generator's items are submitted in blocks, between which others may submit."""
    with ipp.Cluster(n=1, max_outstanding_bytes=8 << 20) as rc:
        view, held = rc.load_balanced_view(), gate.task()
        others = []

        def items():
            for _ in range(4):
                others.append(view.apply_async(held))
                yield bytes(1_500_000)

        executor = view.executor
        lengths = executor.map(len, items(), chunksize=2)
        executor.shutdown(wait=False, cancel_futures=True)
        gate.open()
        assert [other.get(20) for other in others] == [None] * 4
        with pytest.raises(ipp.TaskAborted):
            next(lengths)
        executor.shutdown(wait=True)


def test_submitting_from_many_threads(rc):
    view = rc.load_balanced_view()
    results = {}

    def work(k):
        results[k] = [ar.get() for ar in [view.apply_async(lambda x: x, (k, i)) for i in range(200)]]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {k: [(k, i) for i in range(200)] for k in range(4)}


def test_joblib(rc):
    joblib = pytest.importorskip("joblib")
    rc.load_balanced_view().register_joblib_backend("broadleaf-test")
    parallel = joblib.Parallel(backend="broadleaf-test", n_jobs=-1)
    assert parallel(joblib.delayed(pow)(i, 2) for i in range(100)) == [i**2 for i in range(100)]
    with pytest.raises(ZeroDivisionError) as caught:
        parallel(joblib.delayed(divmod)(1, i) for i in range(3))
    assert isinstance(caught.value.__cause__, error.RemoteTraceback)
    with joblib.parallel_config(backend="broadleaf-test"):
        assert joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(-i) for i in range(10)) == list(range(10))


async def test_asyncio(rc, gate, tmp_path):
    view = rc.load_balanced_view()
    slow, quick = view.apply_async(gate.task()), view.apply_async(abs, -1)
    done, pending = await aio.wait([slow, quick], return_when=ipp.FIRST_COMPLETED)
    assert done == {quick}
    assert pending == {slow}
    order = []
    async for result in aio.as_completed([slow, quick]):
        order.append(result)
        gate.open()
    assert order == [quick, slow]
    mapped = view.map_async(lambda x: x, range(10), chunksize=3)
    assert [value async for value in mapped] == list(range(10))
    ticks, second = 0, Gate(tmp_path / "second")
    waiting = asyncio.ensure_future(aio.wait([view.apply_async(second.task())]))
    while not waiting.done():
        ticks += 1
        await asyncio.sleep(0.01)
        if ticks > 3:
            second.open()
