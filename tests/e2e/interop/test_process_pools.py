"""`Pool` and `ProcessPoolExecutor`, with the semantics of those of the standard library."""

import concurrent.futures
import itertools
import multiprocessing
import multiprocessing.pool
import os
import pickle
import threading
import time

import broadleaf as ipp
import pytest
from broadleaf.interop.process_pools import Pool
from waiting import until


@pytest.fixture
def pool(rc):
    """A pool over the engines of the module's cluster."""
    with ipp.Pool(client=rc) as pool:
        yield pool


def power(base, exponent=2):
    return base**exponent


def test_single_calls(pool):
    assert pool.apply(power, (3,)) == 9
    assert pool.apply(power, [3], {"exponent": 3}) == 27
    result = pool.apply_async(power, (4,))
    assert result.get(30) == 16
    assert result.ready()
    assert result.successful()
    assert isinstance(result.async_result, ipp.AsyncResult)


def test_maps(pool):
    items = list(range(50))
    squares = [power(n) for n in items]
    assert pool.map(power, items) == pool.map(power, iter(items), chunksize=7) == squares
    assert pool.map_async(power, items, 3).get(30) == squares
    assert pool.starmap(power, [(2, 3), (3,), (4, 2)]) == [8, 9, 16]
    assert pool.starmap_async(power, zip(items, items, strict=True)).get(30) == [n**n for n in items]
    assert list(pool.imap(power, items)) == list(pool.imap(power, iter(items), chunksize=8)) == squares
    assert sorted(pool.imap_unordered(power, items, 4)) == squares
    assert pool.map(power, []) == list(pool.imap(power, [])) == []


def test_callbacks_run_before_a_result_is_ready(pool):
    values, errors = [], []
    for _ in range(20):
        values.clear()
        pool.apply_async(power, (5,), callback=values.append).wait()
        assert values == [25]
    result = pool.map_async(power, [1, "a", 3], 1, values.append, errors.append)
    with pytest.raises(TypeError) as raised:
        result.get(30)
    assert values == [25]
    assert [type(error) for error in errors] == [TypeError]
    assert type(raised.value) is TypeError
    assert not result.successful()


def test_a_callback_that_raises_does_not_hold_up_others(pool, caplog):
    with caplog.at_level("CRITICAL", "concurrent.futures"):
        failing = pool.apply_async(power, (1,), callback=lambda value: 1 // 0)
        assert failing.get(30) == 1
    assert pool.apply(power, (2,)) == 4


def test_time_is_over(pool, gate):
    result = pool.apply_async(gate.task())
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(0.05)
    assert not result.ready()
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    values = pool.imap(gate.task_for(0), [0, 1])
    with pytest.raises(multiprocessing.TimeoutError):
        values.next(timeout=0.05)
    unordered = pool.imap_unordered(gate.task_for(0, 1), [0, 1])
    with pytest.raises(multiprocessing.TimeoutError):
        unordered.next(0.05)
    gate.open()
    result.wait()
    assert values.next(30) == 0
    assert list(values) == [1]
    assert sorted(unordered) == [0, 1]


def late(n):
    raise TimeoutError(f"{n} took too long")


def test_what_the_function_raised_is_raised(pool):
    for call in (
        lambda: pool.apply(late, (1,)),
        lambda: pool.map(late, [1]),
        lambda: pool.starmap(late, [(1,)]),
        lambda: next(pool.imap(late, [1])),
        lambda: next(pool.imap_unordered(late, [1], 2)),
        lambda: pool.imap(late, [1]).next(30),
    ):
        with pytest.raises(TimeoutError, match="1 took too long") as raised:
            call()
        assert type(raised.value) is TimeoutError
        assert "late" in str(raised.value.__cause__)


def test_an_endless_iterator_is_taken_as_values_are(pool):
    taken = []
    values = pool.imap(power, (taken.append(n) or n for n in itertools.count()))
    assert [next(values) for _ in range(3)] == [0, 1, 4]
    assert len(taken) <= 10 * 4 + 4


def test_join_completes_what_was_not_asked_for(rc):
    pool = ipp.Pool(client=rc)
    values = pool.imap_unordered(power, iter(range(200)))
    called = []
    pool.apply_async(power, (3,), callback=called.append)
    with pytest.raises(ValueError, match="Pool is still running"):
        pool.join()
    pool.close()
    pool.join()
    assert called == [9]
    assert sorted(values) == [n * n for n in range(200)]


def test_a_closed_pool_takes_no_calls(rc):
    pool = ipp.Pool(client=rc)
    assert repr(pool) == "<Pool: running, 4 engines>"
    pool.close()
    assert repr(pool) == "<Pool: closed>"
    calls = [
        lambda: pool.apply(power, (1,)),
        lambda: pool.map(power, [1]),
        lambda: pool.starmap(power, [(1,)]),
        lambda: pool.imap(power, [1]),
        lambda: pool.imap_unordered(power, [1]),
        lambda: pool.__enter__(),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="Pool not running"):
            call()
    pool.join()


def test_terminate_aborts_and_leaves_others_alone(rc, gate):
    other = rc.load_balanced_view().apply_async(gate.task())
    pool = ipp.Pool(client=rc)
    result = pool.apply_async(time.sleep, (60,))
    values = pool.imap(time.sleep, itertools.repeat(60))
    pool.terminate()
    pool.join()
    assert result.async_result.wait(30)
    assert result.async_result.status == "aborted"
    assert list(values) == []
    gate.open()
    other.get(30)
    assert other.status == "ok"


def test_the_end_of_a_block_terminates(rc):
    with ipp.Pool(client=rc) as pool:
        result = pool.apply_async(time.sleep, (60,))
    assert result.async_result.wait(30)
    with pytest.raises(ipp.TaskAborted):
        result.get()


def engine_process(_=None):
    return os.getpid()


def test_a_pool_starts_and_stops_engines_of_its_own():
    pool = ipp.Pool(2)
    processes = set(pool.map(engine_process, range(200), chunksize=1))
    assert 1 <= len(processes) <= 2
    assert os.getpid() not in processes
    result = pool.map_async(power, range(3))
    pool.close()
    pool.join()
    assert result.get() == [0, 1, 4]
    assert until(lambda: not any(map(os.path.exists, [f"/proc/{pid}" for pid in processes])))


def test_a_pool_of_some_engines_of_a_client(rc):
    with ipp.Pool(2, client=rc) as pool:
        assert set(pool.map(engine_process, range(100), 1)) <= set(rc[:2].apply_sync(engine_process))
    with pytest.raises(ValueError, match="a pool of 5 processes needs as many engines, and the client has 4 engines"):
        ipp.Pool(5, client=rc)


table: dict[str, int] = {}


@ipp.interactive
def fill(key, value):
    global table
    table = {key: value}


@ipp.interactive
def looked_up(key):
    return table[key]


def test_initializers(rc):
    with ipp.Pool(None, fill, ("a", 7), client=rc) as pool:
        assert pool.map(looked_up, ["a"] * 40, 1) == [7] * 40


def test_an_initializer_that_raises(rc):
    with pytest.raises(ipp.CompositeError, match="no table"):
        ipp.Pool(initializer=_no_table, client=rc)


def _no_table():
    raise LookupError("no table")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"processes": 0}, "at least 1"),
        ({"maxtasksperchild": 10}, "engines are not replaced"),
        ({"context": multiprocessing.get_context("fork")}, "do not inherit"),
    ],
)
def test_what_engines_cannot_do_is_refused(rc, arguments, message):
    with pytest.raises(ValueError, match=message):
        ipp.Pool(**arguments, client=rc)
    with pytest.raises(TypeError, match="initializer must be a callable"):
        ipp.Pool(initializer=3, client=rc)


def test_contexts_that_spawn_are_accepted(rc):
    with ipp.Pool(context=multiprocessing.get_context("spawn"), client=rc) as pool:
        assert pool.apply(abs, (-1,)) == 1


def test_a_pool_is_not_sent(pool):
    with pytest.raises(NotImplementedError, match="cannot be passed"):
        pickle.dumps(pool)


def test_callbacks_of_another_thread_see_the_value(pool):
    seen = threading.Event()
    pool.apply_async(power, (2,), callback=lambda value: seen.set())
    assert seen.wait(30)


def test_it_has_the_public_names_of_a_process_pool():
    public = {name for name in dir(multiprocessing.pool.Pool) if not name.startswith("_")}
    assert public - {"Process"} <= set(dir(Pool))


def test_an_executor_of_its_own_engines():
    with ipp.ProcessPoolExecutor(2, initializer=fill, initargs=("a", 3)) as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        processes = set(executor.map(engine_process, range(50)))
        assert executor.submit(looked_up, "a").result(30) == 3
        futures = [executor.submit(power, n) for n in range(5)]
        done = {future.result() for future in concurrent.futures.as_completed(futures)}
    assert done == {0, 1, 4, 9, 16}
    assert 1 <= len(processes) <= 2
    assert until(lambda: not any(map(os.path.exists, [f"/proc/{pid}" for pid in processes])))
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(power, 2)


def test_an_executor_that_does_not_wait_completes_its_calls(gate):
    executor = ipp.ProcessPoolExecutor(1)
    future = executor.submit(gate.task(), 5)
    executor.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(power, 2)
    gate.open()
    assert future.result(30) == 5
    assert until(lambda: executor.client.closed)


def test_what_an_executors_engines_cannot_do_is_refused():
    with pytest.raises(ValueError, match="greater than 0"):
        ipp.ProcessPoolExecutor(0)
    with pytest.raises(ValueError, match="max_tasks_per_child must be None"):
        ipp.ProcessPoolExecutor(1, max_tasks_per_child=3)
    with pytest.raises(ValueError, match="mp_context must not fork"):
        ipp.ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
    with pytest.raises(TypeError, match="callable"):
        ipp.ProcessPoolExecutor(1, initializer=3)
