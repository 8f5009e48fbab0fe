"""Results as futures: what is true immediately after `cancel`, what runs, waiting among other futures, `async for`."""

import asyncio
import concurrent.futures
import threading
import time

import broadleaf as ipp
import pytest
from waiting import until


@ipp.interactive
def ignore_interrupts(path):
    while True:
        try:
            import os
            import time

            open(path + ".started", "w").close()
            while not os.path.exists(path):
                time.sleep(0.01)
            return "went on"
        except KeyboardInterrupt:
            pass


def assert_cancelled(result):
    assert result.cancelled()
    assert result.done()
    assert not result.running()
    assert not result.successful()
    with pytest.raises(concurrent.futures.CancelledError):
        result.result(0)
    with pytest.raises(concurrent.futures.CancelledError):
        result.exception(0)


def test_a_cancelled_result_is_cancelled_at_once(rc):
    running, queued = (rc[0].apply_async(time.sleep, 30) for _ in range(2))
    assert until(running.running)
    for result in (queued, running):
        told = threading.Event()
        result.add_done_callback(lambda future, told=told: told.set())
        assert result.cancel()
        assert_cancelled(result)
        assert told.wait(10)
        assert result.cancel(), "again"
    assert rc.wait(timeout=20), "the engine is free again"
    assert running.engine_id == 0
    assert rc[0].apply_sync(abs, -1) == 1


def test_a_task_that_goes_on_all_the_same_does_not_change_that(rc, tmp_path):
    result = rc[1].apply_async(ignore_interrupts, str(tmp_path / "go"))
    assert until((tmp_path / "go.started").exists)
    assert result.running()
    assert result.cancel()
    assert_cancelled(result)
    assert not rc.wait(timeout=0.05), "its task is not done yet"
    (tmp_path / "go").touch()
    assert rc.wait(timeout=20)
    assert_cancelled(result)
    assert result.status == "aborted"


def test_what_is_done_cannot_be_cancelled(rc):
    done = rc[0].apply_async(abs, -1)
    done.get()
    assert not done.cancel()
    assert not done.cancelled()
    assert done.result() == 1


def test_several_tasks_are_cancelled_together(rc, lview, gate):
    mapped = lview.map_async(gate.task_for(*range(1, 6)), range(6), chunksize=1)
    assert until(lambda: mapped.n_done() > 0)
    assert mapped.cancel()
    assert_cancelled(mapped)
    assert sorted(mapped.status) == ["aborted"] * 5 + ["ok"]
    assert mapped.get(return_exceptions=True)[0] == 0
    with pytest.raises(ipp.CompositeError):
        mapped.get()


@pytest.mark.parametrize("coalescing", [False, True])
def test_a_part_of_a_broadcast_is_cancelled_by_itself(rc, coalescing, tmp_path):
    view = rc.broadcast_view(coalescing=coalescing)
    view["path"] = str(tmp_path / "go")
    result = view.apply_async(ignore_interrupts, ipp.Reference("path"))
    part = result.split()[2]
    assert part.cancel()
    assert_cancelled(part)
    assert not result.done()
    (tmp_path / "go").touch()
    assert result.wait(20)
    assert result.status == ["ok", "ok", "aborted", "ok"]
    assert rc.wait(timeout=20)


def test_running_is_true_from_its_start_to_its_end(rc, lview, tmp_path):
    running = rc[0].apply_async(ignore_interrupts, str(tmp_path / "go"))
    behind = rc[0].apply_async(abs, -1)
    assert until(running.running)
    assert not behind.running()
    assert rc.get_result(running.msg_ids).running()
    (tmp_path / "go").touch()
    assert running.get(20) == "went on"
    assert not running.running()
    assert behind.get(20) == 1
    assert not behind.running()


def test_a_map_runs_from_its_first_tasks_start(lview, tmp_path):
    mapped = lview.map_async(ignore_interrupts, [str(tmp_path / "go")] * 40)
    assert until(mapped.running)
    (tmp_path / "go").touch()
    mapped.get(20)
    assert not mapped.running()


def test_running_tasks_of_another_client(rc, cluster, tmp_path):
    running = rc[0].apply_async(ignore_interrupts, str(tmp_path / "go"))
    with cluster.connect_client_sync() as other:
        seen = other.get_result(running.msg_ids)
        assert until(seen.running)
        assert not seen.cancel(), "it is not this client's to abort"
        assert not seen.cancelled()
        (tmp_path / "go").touch()
        assert seen.get(20) == ["went on"]
        assert not seen.running()
    running.get(20)


def test_waiting_for_futures_of_any_kind(rc, cluster, gate):
    plain = concurrent.futures.Future()
    ours = rc[0].apply_async(abs, -1)
    assert not rc.wait([ours, plain, *ours.msg_ids], timeout=0.05)
    assert not rc.wait(plain, timeout=0)
    threading.Timer(0.1, plain.set_result, [None]).start()
    assert rc.wait([ours, plain, *ours.msg_ids], timeout=20)
    assert rc[0].wait([ours, plain], timeout=20)
    with cluster.connect_client_sync() as other:
        other.wait_for_engines(4, timeout=20)
        foreign = other[1].apply_async(gate.task())
        assert not rc.wait([foreign], timeout=0.01), "its number is another task's here"
        threading.Timer(0.1, gate.open).start()
        assert rc.wait([foreign, plain], timeout=20)
        assert foreign.done()
    with pytest.raises(TypeError, match="task"):
        rc.wait([object()])


async def test_async_for_over_a_map(lview, gate):
    assert [n async for n in lview.map_async(lambda x: x * x, range(10), chunksize=3)] == [x * x for x in range(10)]
    came = []
    async for n in lview.map_async(gate.task_for(0), range(3), chunksize=1, ordered=False):
        came.append(n)
        if len(came) == 2:
            gate.open()
    assert came in ([1, 2, 0], [2, 1, 0])
    assert [n async for n in lview.map_async(abs, [])] == []


async def test_async_for_does_not_block_the_loop(lview, gate):
    """The iteration waits for tasks that only another coroutine of its loop lets go on."""

    async def open_the_gate():
        await asyncio.to_thread(gate.wait_for_tasks, 2)
        gate.open()

    opening = asyncio.ensure_future(open_the_gate())
    assert [n async for n in lview.map_async(gate.task(), range(2), chunksize=1)] == [0, 1]
    await opening


async def test_async_for_raises_where_the_item_would_be(lview):
    seen = []
    with pytest.raises(ipp.RemoteError, match="ZeroDivisionError"):
        async for value in lview.map_async(lambda x: 1 // x, [1, 0, 1]):
            seen.append(value)
    assert seen == [1]
    kept = lview.map_async(lambda x: 1 // x, [1, 0, 1], return_exceptions=True)
    first, error, last = [value async for value in kept]
    assert (first, last) == (1, 1)
    assert isinstance(error, ipp.RemoteError)


async def test_async_for_over_engines_and_over_a_lazy_map(rc, lview, gate):
    asyncio.get_running_loop().call_later(0.05, gate.open)
    assert [n async for n in rc[:].apply_async(gate.task(), 5)] == [5] * 4
    with pytest.raises(TypeError, match="await"):
        async for _ in rc[0].apply_async(abs, -1):
            pass
    assert [n async for n in rc[:].imap(abs, range(-10, 0))] == list(range(10, 0, -1))
    assert [n async for n in lview.imap(abs, range(-50, 0))] == list(range(50, 0, -1))
    failing = lview.imap(lambda x: 1 // x, [1, 0, 2])
    assert await anext(failing) == 1
    with pytest.raises(ipp.RemoteError):
        await anext(failing)
    assert [n async for n in failing] == [0]
    executor_map = rc.executor().map(abs, range(-5, 0), chunksize=2)
    assert [n async for n in executor_map] == [5, 4, 3, 2, 1]


async def test_async_for_over_an_unordered_lazy_map(lview, gate):
    unordered = lview.imap(gate.task_for(0), range(3), ordered=False, max_outstanding=2)
    assert [await anext(unordered) for _ in range(2)] == [1, 2]
    gate.open()
    assert [n async for n in unordered] == [0]


async def test_an_iteration_that_is_cancelled_aborts_its_tasks(rc, lview, gate):
    mapped = lview.map_async(gate.task(), range(3), chunksize=1)

    async def iterate():
        async for _ in mapped:
            pass

    iterating = asyncio.ensure_future(iterate())
    await asyncio.to_thread(gate.wait_for_tasks, 3)
    iterating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await iterating
    assert mapped.wait(20)
    assert mapped.cancelled()


async def test_what_is_awaited_ends_with_the_connection(cluster, gate):
    with cluster.connect_client_sync() as client:
        client.wait_for_engines(4, timeout=20)
        mapped = client.load_balanced_view().map_async(gate.task(), range(2))
        single = client[0].apply_async(gate.task())
        asyncio.get_running_loop().call_later(0.05, client.close)
        with pytest.raises(ipp.LinkLost):
            async for _ in mapped:
                pass
        with pytest.raises(ipp.LinkLost):
            await single


def test_a_function_whose_loading_was_interrupted_is_loaded_again(rc, tmp_path, monkeypatch):
    gate = tmp_path / "gate"
    (tmp_path / "slow_to_import.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\nanswer = 42\n"
    )
    gate.touch()
    monkeypatch.syspath_prepend(tmp_path)
    import slow_to_import

    @ipp.interactive
    def answer():
        return slow_to_import.answer

    answer.__globals__["slow_to_import"] = slow_to_import
    rc[0].execute(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})", block=True)
    gate.unlink()
    interrupted = rc[0].apply_async(answer)
    assert until(interrupted.running)
    assert interrupted.cancel()
    gate.touch()
    assert rc.wait(timeout=20)
    assert rc[0].apply_sync(answer) == 42


def test_a_result_that_something_waits_for_as_a_future_is_shown(dview, capsys):
    result = dview.apply_async(print, "hello")
    result.add_done_callback(lambda _: None)
    result.display_outputs()
    assert capsys.readouterr().out.count("hello") == len(dview)
