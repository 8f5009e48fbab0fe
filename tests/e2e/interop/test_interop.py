"""The cluster through other libraries' interfaces."""

import asyncio
import concurrent.futures
import itertools
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


@pytest.mark.parametrize("chunksize", [1, 3])
def test_an_executors_buffer_bounds_what_is_taken(rc, chunksize):
    taken = itertools.count()
    executor = rc.executor()
    values = executor.map(str, taken, chunksize=chunksize, buffersize=4)
    executor.shutdown(wait=True)
    assert next(taken) == 4 * chunksize
    assert next(values) == "0"
    values.close()


def test_an_executors_buffer_and_its_time_limit(rc, gate):
    executor = rc.executor()
    assert list(executor.map(abs, range(-9, 0), buffersize=2)) == list(range(9, 0, -1))
    assert list(executor.map(abs, range(-9, 0), buffersize=2, chunksize=4, timeout=60)) == list(range(9, 0, -1))
    assert list(executor.map(abs, buffersize=2)) == []
    values = executor.map(gate.task_for(1), range(3), buffersize=2, timeout=0.2)
    assert next(values) == 0
    with pytest.raises(concurrent.futures.TimeoutError):
        next(values)
    gate.open()


def test_an_executors_buffersize_is_checked(rc):
    executor = rc.executor()
    for wrong in ("foo", 2.0):
        with pytest.raises(TypeError, match="buffersize must be an integer or None"):
            executor.map(str, range(4), buffersize=wrong)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="buffersize must be None or > 0"):
            executor.map(str, range(4), buffersize=wrong)
    with pytest.raises(TypeError, match="load-balanced"):
        rc[:].executor.map(str, range(4), buffersize=1)


@ipp.interactive
def set_table(key, value):
    global table
    table = {**globals().get("table", {}), key: value}


@ipp.interactive
def count_call():
    global calls
    calls = globals().get("calls", 0) + 1


@ipp.interactive
def read_calls(_):
    return calls


def test_an_executors_initializer_runs_once_on_each_engine(rc):
    with rc.executor(initializer=set_table, initargs=("a", 1)), rc.executor(initializer=set_table, initargs=("b", 2)):
        assert rc[:]["table"] == [{"a": 1, "b": 2}] * 4
    with rc.executor(initializer=count_call) as executor:
        assert list(executor.map(read_calls, range(20))) == [1] * 20
    with pytest.raises(TypeError, match="initializer must be a callable"):
        rc.executor(initializer=1)


def test_an_initializer_runs_on_engines_that_come_later():
    with ipp.Cluster(n=1) as rc:
        executor = rc.executor(initializer=count_call)
        rc.cluster.start_engines_sync(1)
        rc.wait_for_engines(2, timeout=30)
        assert rc[:]["calls"] == [1, 1]
        executor.shutdown()


def test_an_initializer_that_raises_is_told_of_at_once(rc):
    def fails():
        raise LookupError("no table here")

    with pytest.raises(ipp.CompositeError, match="no table here"):
        rc.executor(initializer=fails)
    with pytest.raises(LookupError, match="no table here"):
        rc.executor(targets=[0], initializer=fails)


def test_a_client_submits_and_maps_on_any_engine(rc):
    future = rc.submit(pow, 2, exp=5)
    assert isinstance(future, concurrent.futures.Future)
    assert future.get(20) == 32
    mapped = rc.map(pow, range(20), [2] * 20, chunksize=3, label="squares")
    assert isinstance(mapped, ipp.AsyncMapResult)
    assert list(mapped) == [n * n for n in range(20)]
    assert mapped.metadata[0].label == "squares"
    assert rc.map(abs, []).get() == []
    with pytest.raises(ZeroDivisionError):
        rc.submit(divmod, 1, 0).get(20)
    with pytest.raises(TypeError):
        rc.map(abs, [1], block=True)


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
