"""Ctrl-C ends what a statement has begun, wherever the statement is; it leaves what others hold, and says so."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import broadleaf as ipp
import numpy as np
import pytest
from broadleaf.interop import aio
from waiting import until

pytestmark = pytest.mark.timeout(90)


@contextlib.contextmanager
def interrupted(condition: Callable[[], object]) -> Iterator[None]:
    """The block is to be ended by Ctrl-C, which comes when the condition holds and the block has begun."""
    main = threading.main_thread().ident
    own = sys._getframe().f_code

    def has_begun() -> bool:
        frame = sys._current_frames()[main]
        while frame is not None and frame.f_code is not own:
            frame = frame.f_back
        return frame is None

    def interrupt():
        until(lambda: has_begun() and condition())
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        try:
            yield
        finally:
            thread.join()


def n_running(rc: ipp.Client) -> int:
    return sum(each["tasks"] for each in rc.queue_status().values() if isinstance(each, dict))


def assert_nothing_runs(rc: ipp.Client) -> None:
    """The tasks would take hours by themselves."""
    assert until(lambda: not rc.outstanding and not n_running(rc)), rc.queue_status()
    assert rc[:].apply_async(abs, -1).get(20) == [1] * len(rc)


class CtrlC:
    """Ctrl-C comes when this is pickled."""

    def __reduce__(self):
        raise KeyboardInterrupt


def wait_long(_: Any) -> None:
    import time

    time.sleep(1000)


ITEMS = [*range(50), CtrlC(), *range(50)]
SUBMISSIONS = {
    "map_sync": lambda rc: rc.load_balanced_view().map_sync(wait_long, ITEMS),
    "map_async": lambda rc: rc.load_balanced_view().map_async(wait_long, ITEMS),
    "map of chunks": lambda rc: rc.load_balanced_view().map_async(wait_long, ITEMS, chunksize=5),
    "imap": lambda rc: rc.load_balanced_view().imap(wait_long, ITEMS, max_outstanding=0),
    "imap unordered": lambda rc: rc.load_balanced_view().imap(wait_long, ITEMS, max_outstanding=0, ordered=False),
    "imap of chunks": lambda rc: rc.load_balanced_view().imap(wait_long, ITEMS, max_outstanding=0, chunksize=5),
    "starmap": lambda rc: rc.load_balanced_view().starmap(wait_long, [(item,) for item in ITEMS]),
    "starmap of chunks": lambda rc: rc.load_balanced_view().starmap(wait_long, zip(ITEMS, strict=True), chunksize=5),
    "client.map": lambda rc: rc.map(wait_long, ITEMS),
    "pool": lambda rc: ipp.Pool(client=rc).map(wait_long, ITEMS),
    "pool's imap": lambda rc: ipp.Pool(client=rc).imap(wait_long, ITEMS),
    "executor.map": lambda rc: rc.executor().map(wait_long, ITEMS),
    "executor.map of chunks": lambda rc: rc.executor().map(wait_long, ITEMS, chunksize=5),
    "parallel map": lambda rc: rc.load_balanced_view().parallel()(wait_long).map(ITEMS),
    "parallel call": lambda rc: rc.load_balanced_view().parallel()(wait_long)(ITEMS),
    "direct map": lambda rc: rc[:].map_async(wait_long, ITEMS),
    "direct imap": lambda rc: rc[:].imap(wait_long, ITEMS),
    "direct parallel": lambda rc: rc[:].parallel()(wait_long)(ITEMS),
    "scatter": lambda rc: rc[:].scatter("part", ITEMS),
}


@pytest.mark.parametrize("submission", SUBMISSIONS)
def test_ctrl_c_in_a_submission_ends_what_it_has_submitted(rc, submission):
    with pytest.raises(KeyboardInterrupt):
        SUBMISSIONS[submission](rc)
    assert_nothing_runs(rc)


def test_a_submission_that_waits_for_room(rc):
    """More than fits at once: it waits until tasks that it has submitted itself have ended."""
    items = [np.zeros(100_000) for _ in range(1000)]
    view = rc.load_balanced_view()
    before = rc.counters()["throttled"]
    with interrupted(lambda: rc.counters()["throttled"] > before):
        view.map_sync(wait_long, items)
    assert_nothing_runs(rc)


def test_ctrl_c_before_a_submission_leaves_earlier_ones_alone(rc, gate):
    view = rc.load_balanced_view()
    earlier = view.apply_async(gate.task(), 1)
    for interrupted_call in (
        lambda: view.apply_async(wait_long, CtrlC()),
        lambda: view.apply_sync(wait_long, CtrlC()),
        lambda: view.map_async(wait_long, [CtrlC()]),
        lambda: view.map_async(wait_long, (each for each in [CtrlC().__reduce__()])),
        lambda: rc[0].apply_async(wait_long, CtrlC()),
        lambda: rc[:].push({"a": CtrlC()}),
        lambda: rc.executor().submit(wait_long, CtrlC()),
        lambda: rc.submit(wait_long, CtrlC()),
    ):
        with pytest.raises(KeyboardInterrupt):
            interrupted_call()
    assert not earlier.done()
    gate.open()
    assert earlier.get(20) == 1


def for_each(values: Any) -> None:
    for _ in values:
        pass


def in_executor(rc: ipp.Client, wait: Callable[[Any], object]) -> None:
    with rc.executor() as pool:
        wait([pool.submit(wait_long, i) for i in range(50)])


def joblib_parallel(rc: ipp.Client) -> None:
    joblib = pytest.importorskip("joblib")
    rc.load_balanced_view().register_joblib_backend("interrupted")
    joblib.Parallel(backend="interrupted", n_jobs=-1)(joblib.delayed(wait_long)(i) for i in range(50))


async def gather(rc: ipp.Client) -> None:
    view = rc.load_balanced_view()
    await asyncio.gather(*(view.apply_async(wait_long, i) for i in range(50)))


async def async_for(rc: ipp.Client, **options: Any) -> None:
    async for _ in rc.load_balanced_view().imap(wait_long, range(50), **options):
        pass


async def async_for_parts(rc: ipp.Client) -> None:
    async for _ in rc[:].imap(wait_long, range(50)):
        pass


async def wait_for_results(rc: ipp.Client) -> None:
    view = rc.load_balanced_view()
    await aio.wait([view.apply_async(wait_long, i) for i in range(50)])


async def results_as_completed(rc: ipp.Client) -> None:
    view = rc.load_balanced_view()
    async for _ in aio.as_completed([view.apply_async(wait_long, i) for i in range(50)]):
        pass


def results(rc: ipp.Client) -> list[ipp.AsyncResult]:
    view = rc.load_balanced_view()
    return [view.apply_async(wait_long, i) for i in range(50)]


WAITS = {
    "imap": lambda rc: for_each(rc.load_balanced_view().imap(wait_long, range(50))),
    "imap unordered": lambda rc: for_each(rc.load_balanced_view().imap(wait_long, range(50), ordered=False)),
    "direct imap": lambda rc: for_each(rc[:].imap(wait_long, range(50))),
    "map result": lambda rc: for_each(rc.load_balanced_view().map_async(wait_long, range(50))),
    "executor.map": lambda rc: for_each(rc.executor().map(wait_long, range(50))),
    "executor.map with a timeout": lambda rc: for_each(rc.executor().map(wait_long, range(50), timeout=60)),
    "executor.map on a direct view": lambda rc: for_each(rc[:].executor.map(wait_long, range(50))),
    "executor, result": lambda rc: in_executor(rc, lambda futures: futures[0].result()),
    "executor, wait": lambda rc: in_executor(rc, concurrent.futures.wait),
    "executor, as_completed": lambda rc: in_executor(rc, lambda f: for_each(concurrent.futures.as_completed(f))),
    "executor, exit": lambda rc: in_executor(rc, lambda futures: None),
    "futures.wait": lambda rc: concurrent.futures.wait(results(rc)),
    "futures.as_completed": lambda rc: for_each(concurrent.futures.as_completed(results(rc))),
    "client.wait": lambda rc: rc.wait(results(rc)),
    "client.wait_interactive": lambda rc: rc.wait_interactive(results(rc)),
    "client.wait_interactive for all": lambda rc: (results(rc), rc.wait_interactive()),
    "execute": lambda rc: rc[:].execute("import time; time.sleep(1000)", block=True),
    "remote function": lambda rc: rc[:].remote(block=True)(wait_long)(1),
    "joblib": joblib_parallel,
    "asyncio.gather": lambda rc: asyncio.run(gather(rc)),
    "async for": lambda rc: asyncio.run(async_for(rc)),
    "async for, unordered": lambda rc: asyncio.run(async_for(rc, ordered=False)),
    "async for, direct": lambda rc: asyncio.run(async_for_parts(rc)),
    "aio.wait": lambda rc: asyncio.run(wait_for_results(rc)),
    "aio.as_completed": lambda rc: asyncio.run(results_as_completed(rc)),
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_in_a_wait_ends_what_it_waits_for(rc, wait):
    def is_waiting() -> bool:
        """All engines are busy, and so this thread waits, at the latest, after a moment."""
        if n_running(rc) < len(rc):
            return False
        time.sleep(0.2)
        return True

    with interrupted(is_waiting):
        WAITS[wait](rc)
    assert_nothing_runs(rc)


@pytest.mark.parametrize("of_another_thread", [True, False])
def test_a_wait_that_ctrl_c_ends_while_it_begins_blocks_nobody(rc, gate, of_another_thread):
    """`concurrent.futures.wait` acquires what it never releases then."""
    result = rc[0].apply_async(gate.task(), 1)
    told = threading.Event()
    result.add_done_callback(lambda _: told.set())
    begins = concurrent.futures._base._AcquireFutures([result])
    begins.__enter__()
    if of_another_thread:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(concurrent.futures.wait, [result])
            gate.open()
            assert waiting.result(20).done == {result}
    gate.open()
    assert told.wait(20)
    assert concurrent.futures.wait([result], 20).done == {result}
    assert result.result(0) == 1


def test_a_result_does_not_end_while_somebody_looks(rc, gate):
    """Otherwise who looks could wait for what he has just missed."""
    result = rc[0].apply_async(gate.task(), 1)
    seen = []

    class Looking(concurrent.futures._base._Waiter):
        def add_result(self, future):
            seen.append("told")

    code = compile("def look(act):\n    act()\n", concurrent.futures.Future.__init__.__code__.co_filename, "exec")
    namespace = {}
    exec(code, namespace)

    def act():
        with result._condition:
            gate.open()
            assert until(result.all_done)
            assert rc[1].apply_sync(abs, -1) == 1
            seen.append(result._state)
            result._waiters.append(Looking())

    namespace["look"](act)
    assert seen == ["PENDING", "told"]
    assert result._state == "FINISHED"


@pytest.mark.parametrize("ordered", [True, False])
def test_an_iterator_is_closed_like_a_generator(rc, ordered):
    view = rc.load_balanced_view()
    values = view.imap(lambda i: wait_long(i) if i else i, range(50), ordered=ordered)
    assert next(values) == 0
    values.close()
    assert_nothing_runs(rc)
    assert list(values) == []
    direct = rc[:].imap(wait_long, range(8))
    direct.close()
    assert_nothing_runs(rc)
    assert list(direct) == []


@pytest.mark.parametrize("ordered", [True, False])
def test_an_iterator_that_is_dropped_after_its_first_value(rc, ordered):
    view = rc.load_balanced_view()
    for value in view.imap(lambda i: wait_long(i) if i else i, range(50), ordered=ordered):
        assert value == 0
        break
    gc.collect()
    assert_nothing_runs(rc)


def test_a_map_of_an_executor_that_nobody_iterates_over_is_run(rc, tmp_path):
    """As by other executors, whose iterator is a generator that has not started."""
    paths = [str(tmp_path / str(i)) for i in range(20)]
    rc.executor().map(lambda path: open(path, "w").close(), paths)
    gc.collect()
    assert rc.wait(timeout=30)
    assert len(list(tmp_path.iterdir())) == 20


def test_a_map_that_takes_too_long_is_aborted(rc):
    values = rc.executor().map(wait_long, range(50), timeout=0.1)
    with pytest.raises(TimeoutError):
        next(values)
    assert_nothing_runs(rc)


def test_an_executor_waits_for_its_own_tasks_only(rc, gate):
    view = rc.load_balanced_view()
    other = view.apply_async(gate.task(), "other")
    with view.executor as pool:
        assert pool.submit(abs, -1).result() == 1
        assert repr(pool).endswith(": open>")
    assert not other.done()
    with interrupted(lambda: n_running(rc) == len(rc)), view.executor as pool:
        for_each(pool.map(wait_long, range(50)))
    assert not other.done()
    gate.open()
    assert other.get(20) == "other"


def test_a_call_after_ctrl_c_says_what_it_waits_for(rc):
    held = results(rc)
    with interrupted(lambda: n_running(rc) == len(rc)):
        for result in held:
            result.get()
    assert held[0].status == "aborted" or until(lambda: held[0].status == "aborted")
    with (
        pytest.warns(
            UserWarning, match=r"49 tasks submitted before Ctrl-C are still running or waiting .* Client\.abort\(\)"
        ),
        pytest.raises(TimeoutError),
    ):
        rc[:].apply_async(abs, -1).get(1.5)
    # The advice works, and it is said once.
    rc.abort()
    assert_nothing_runs(rc)


def test_nothing_is_said_if_nothing_is_left(rc, recwarn):
    with interrupted(lambda: n_running(rc) == len(rc)):
        rc.load_balanced_view().map_sync(wait_long, range(50))
    assert_nothing_runs(rc)
    rc[0].apply_sync(time.sleep, 1.3)
    assert not [each for each in recwarn if "Ctrl-C" in str(each.message)]
