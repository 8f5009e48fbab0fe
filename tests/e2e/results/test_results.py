"""Results: values, waiting, futures, metadata."""

import asyncio
import concurrent.futures
import gc
import os
import signal
import sys
import threading
import time
import weakref
from datetime import datetime

import broadleaf as ipp
import pytest
from broadleaf import error
from waiting import until, until_shown


def sleep_for(seconds):
    import time

    time.sleep(seconds)
    return seconds


sleep_for = ipp.interactive(sleep_for)


def test_get_after_and_before_done(rc, gate):
    ar = rc[-1].apply_async(lambda: 42)
    assert ar.wait()
    assert ar.ready()
    assert ar.get() == ar.get() == ar.r == 42
    ar = rc[-1].apply_async(gate.task(), 43)
    with pytest.raises(TimeoutError):
        ar.get(0)
    assert not ar.wait(0)
    with pytest.raises(RuntimeError):
        ar.successful()
    gate.open()
    assert ar.get() == 43
    assert ar.successful()


def test_get_dict(rc, dview):
    assert dview.apply_async(lambda: 5).get_dict() == dict.fromkeys(rc.ids, 5)
    for value in (list(range(5)), "text", ("a", "b")):
        assert rc[-1].apply_async(lambda x: x, value).get_dict() == {3: value}
    with pytest.raises(ValueError, match="Cannot build dict"):
        rc.load_balanced_view().map_async(lambda x: x, range(20)).get_dict()


def test_iteration_and_indexing(rc, dview):
    ar = dview.apply_async(sleep_for, 0.1)
    assert list(ar) == [0.1] * 4
    assert ar[0] == 0.1
    assert ar[1:] == [0.1] * 3
    assert len(ar) == 4
    with pytest.raises(TypeError):
        iter(rc[0].apply_async(lambda: 5)).__next__()
    with pytest.raises(TypeError):
        ar[1.5]


def test_metadata(rc, dview, gate):
    ar = dview.apply_async(gate.task())
    assert ar.completed == [None] * 4
    with pytest.raises(KeyError):
        ar["foo"]
    with pytest.raises(AttributeError):
        _ = ar.foo
    assert not hasattr(ar, "__length_hint__")
    gate.open()
    ar.get()
    assert all(isinstance(moment, datetime) and moment.tzinfo for moment in ar.completed)
    assert ar.engine_id == rc.ids
    assert len(set(ar["engine_uuid"])) == 4
    assert ar.status == ["ok"] * 4
    assert all(a <= b for a, b in zip(ar.started, ar.completed, strict=True))
    single = rc[1].apply_async(lambda: 1)
    single.get()
    assert isinstance(single.completed, datetime)
    assert single.metadata.engine_id == 1
    assert "stdout" in dir(single)


def test_times(rc, dview, gate):
    held = gate.task()

    def work():
        import time

        held()
        time.sleep(0.2)

    ar = dview.apply_async(work)
    with pytest.raises(TimeoutError):
        _ = ar.wall_time
    with pytest.raises(TimeoutError):
        _ = ar.serial_time
    assert ar.elapsed >= 0
    gate.open()
    ar.get()
    assert 0.2 <= ar.wall_time == ar.elapsed
    assert ar.serial_time >= 0.8
    assert ar.timedelta(ar.submitted, ar.received) == pytest.approx(ar.wall_time, abs=1e-3)


def test_progress_and_wait_interactive(rc, lview, capsys):
    ar = lview.map_async(sleep_for, [0.01] * 20)
    ar.wait_interactive(interval=0.01)
    assert ar.ready()
    assert ar.progress == 20
    assert "20/20" in capsys.readouterr().err


def test_output(rc, dview, capsys):
    ar = dview.execute("import sys\nprint('to out')\nprint('to err', file=sys.stderr)", block=True)
    assert ar.stdout == ["to out\n"] * 4
    assert ar.stderr == ["to err\n"] * 4
    ar.display_outputs()
    shown = capsys.readouterr()
    assert shown.out.count("[stdout:") == 4
    assert shown.out.count("to out") == 4
    assert shown.err.count("to err") == 4
    ar = rc[0].execute("print(5555)", block=True)
    ar.display_outputs()
    assert capsys.readouterr().out == "5555\n"
    ar = dview.execute("a = 5", block=True)
    for groupby in ("type", "engine", "order"):
        ar.display_outputs(groupby)
    assert capsys.readouterr().out == ""
    ar = rc[0].execute("print(5555)\n1/0", block=False)
    ar.wait()
    ar.display_outputs()
    assert capsys.readouterr().out == "5555\n"


def test_output_streams_while_the_task_runs(rc, capsys):
    go_on = (
        "import time, os\nprint('first', flush=True)\nwhile not os.path.exists(path): time.sleep(0.01)\nprint('last')"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "go")
        rc[0]["path"] = path
        ar = rc[0].execute(go_on, block=False)
        with ar.stream_output():
            seen = until_shown("first", ar, capsys)
            assert not ar.ready()
            open(path, "w").close()
            ar.get(20)
        seen += capsys.readouterr().out
    assert seen.count("first") == 1
    assert seen.count("last") == 1


def test_futures_api(rc, lview):
    ar = lview.apply_async(sleep_for, 0.1)
    assert isinstance(ar, concurrent.futures.Future)
    called = threading.Event()
    ar.add_done_callback(lambda future: called.set() if future is ar else None)
    assert ar.result(10) == 0.1
    assert called.wait(10)
    assert ar.done()
    assert ar.exception() is None
    again = []
    ar.add_done_callback(again.append)
    assert again == [ar]
    failed = lview.apply_async(lambda: 1 / 0)
    assert isinstance(failed.exception(10), ipp.RemoteError)
    with pytest.raises(ipp.RemoteError):
        failed.result()


def test_wait_and_as_completed_of_the_standard_library(lview, gate):
    results = [lview.apply_async(function) for function in (gate.task(), bool, gate.task())]
    done, pending = concurrent.futures.wait(results, return_when=concurrent.futures.FIRST_COMPLETED)
    assert done == {results[1]}
    assert pending == {results[0], results[2]}
    gate.open()
    assert set(concurrent.futures.as_completed(results, timeout=20)) == set(results)
    done, pending = concurrent.futures.wait(results, timeout=20)
    assert not pending


def test_first_exception_of_the_standard_library(lview, gate):
    slow = lview.apply_async(gate.task())
    failing = lview.apply_async(lambda: 1 / 0)
    done, pending = concurrent.futures.wait([slow, failing], return_when=concurrent.futures.FIRST_EXCEPTION)
    assert failing in done
    assert slow in pending


async def test_await(rc, lview):
    assert await lview.apply_async(sleep_for, 0.05) == 0.05
    assert await asyncio.wrap_future(lview.apply_async(max, 1, 2)) == 2
    with pytest.raises(ZeroDivisionError):
        await lview.apply_async(lambda: 1 / 0)
    with pytest.raises(ipp.RemoteError):
        await asyncio.wrap_future(lview.apply_async(lambda: 1 / 0))
    assert await asyncio.gather(*(asyncio.wrap_future(lview.apply_async(abs, -i)) for i in range(5))) == list(range(5))
    assert await rc[:].apply_async(lambda: 3) == [3] * 4


async def test_cancelling_an_awaited_result_aborts_the_task(lview, gate):
    ar = lview.apply_async(gate.task())
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.wrap_future(ar), 0.1)
    assert ar.wait(20)
    assert ar.cancelled()


def test_cancel(rc):
    ar = rc[0].apply_async(time.sleep, 30)
    assert ar.cancel()
    assert ar.wait(20)
    assert ar.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        ar.result()
    with pytest.raises(error.TaskAborted):
        ar.get()
    done = rc[0].apply_async(lambda: 1)
    done.get()
    assert not done.cancel()


def test_split_and_join(rc, dview):
    parent = dview.apply_async(os.getpid)
    children = parent.split()
    assert [len(child) for child in children] == [1] * 4
    assert children[0].split() == (children[0],)
    assert [child.get(10) for child in children] == parent.get()
    joined = ipp.AsyncResult.join(*children)
    assert joined.get(5) == parent.get()
    assert joined.engine_id == parent.engine_id
    with pytest.raises(ValueError):
        ipp.AsyncResult.join()
    mapped = rc.load_balanced_view().map_async(lambda x: x, range(8), chunksize=2)
    assert [child.get(10) for child in mapped.split()] == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]


def test_wait_for_the_first(rc, dview, gate):
    dview.scatter("waits", [False, True, True, True], flatten=True, block=True)
    held = gate.task()
    ar = dview.apply_async(lambda waits: held() if waits else None, ipp.Reference("waits"))
    done, pending = ar.wait(return_when=ipp.FIRST_COMPLETED)
    assert len(done) == 1
    assert len(pending) == 3
    assert next(iter(done)).engine_id == 0
    concurrent.futures.wait(ar.split(), return_when=concurrent.futures.FIRST_COMPLETED)
    gate.open()
    assert ar.wait()


def test_first_exception_does_not_wait_for_the_others(rc, dview, gate):
    dview.scatter("rank", rc.ids, flatten=True, block=True)
    held = gate.task()

    def fail_on_0(rank):
        if rank == 0:
            raise ValueError("0!")
        held()

    ar = dview.apply_async(fail_on_0, ipp.Reference("rank"))
    with pytest.raises(ipp.RemoteError) as caught:
        ar.get(return_when=ipp.FIRST_EXCEPTION)
    assert "0!" in str(caught.value)
    assert not ar.ready()
    ar.abort()


def test_the_first_completed_values(rc, dview, gate):
    dview.scatter("rank", rc.ids, flatten=True, block=True)
    ar = dview.apply_async(gate.task_for(0, 2, 3), ipp.Reference("rank"))
    assert ar.get(20, return_when=ipp.FIRST_COMPLETED) == [1]
    with pytest.raises(TimeoutError):
        ar.get(0)
    with pytest.raises(ValueError, match="return_when"):
        ar.get(0, return_when="SOME_COMPLETED")
    ar.abort()
    assert isinstance(rc[0].apply_async(abs, -1).get(return_when=ipp.FIRST_COMPLETED), int)
    with pytest.raises(TimeoutError):
        rc[0].apply_async(gate.task()).get(0, return_when=ipp.FIRST_COMPLETED)


def test_the_first_completed_chunks_of_a_map(lview, gate):
    ar = lview.map_async(gate.task_for(2, 3), range(4), chunksize=2)
    assert ar.get(20, return_when=ipp.FIRST_COMPLETED) == [0, 1]
    ar.abort()
    failing = lview.map_async(lambda x: 1 / x, [0, 0], chunksize=2)
    with pytest.raises(ipp.RemoteError):
        failing.get(20, return_when=ipp.FIRST_COMPLETED)


def test_waiting_for_some_tasks_while_others_run(rc, lview, gate):
    running = lview.apply_async(gate.task())
    quick = [lview.apply_async(abs, -1) for _ in range(20)]
    assert rc.wait(quick, timeout=20)
    assert all(ar.ready() for ar in quick)
    assert not lview.wait(running, timeout=0.01)
    assert not running.ready()
    assert rc.wait([], timeout=1)
    running.abort()
    assert rc.wait(running, timeout=20)


def test_ctrl_c_while_waiting_for_some_tasks_leaves_the_others(rc, gate):
    wanted = rc[0].apply_async(time.sleep, 30)
    other = rc[1].apply_async(gate.task(), "other")
    thread = interrupt_once(running_on(rc, 0), "wait")
    with pytest.raises(KeyboardInterrupt):
        rc.wait(wanted)
    thread.join()
    with pytest.raises(error.TaskAborted):
        wanted.get(20)
    assert not other.done()
    gate.open()
    assert other.get(20) == "other"


def test_a_dropped_result_frees_its_value(rc):
    ar = rc[0].apply_async(lambda: {"big": 1})
    ar.get()
    gone = weakref.ref(ar)
    del ar
    gc.collect()
    assert gone() is None


def interrupt_once(condition, function="get"):
    """Sends SIGINT to this process once `condition()` holds and the main thread is in one of our functions."""
    main = threading.main_thread().ident

    def waiting():
        frame = sys._current_frames()[main]
        while frame is not None:
            if frame.f_code.co_name == function and "broadleaf" in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False

    def interrupt():
        until(lambda: condition() and waiting())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def running_on(rc, engine):
    return lambda: rc.queue_status(engine)["tasks"] > 0


def test_ctrl_c_aborts_what_is_waited_for(rc):
    running = rc[2].apply_async(time.sleep, 30)
    queued = rc[2].apply_async(time.sleep, 30)
    thread = interrupt_once(running_on(rc, 2))
    with pytest.raises(KeyboardInterrupt):
        ipp.AsyncResult.join(running, queued).get()
    thread.join()
    for ar in (running, queued):
        with pytest.raises(error.TaskAborted):
            ar.get(20)
    assert rc[2].apply_sync(lambda: "usable") == "usable"


def test_ctrl_c_in_a_blocking_call(rc):
    thread = interrupt_once(running_on(rc, 1))
    with pytest.raises(KeyboardInterrupt):
        rc[1].apply_sync(time.sleep, 30)
    thread.join()
    assert rc.wait(timeout=20)
    assert rc[1].apply_sync(lambda: "usable") == "usable"


def test_results_are_nothing_to_the_collector_until_they_keep_what_may_refer_to_them(rc):
    view = rc.load_balanced_view()
    number, several = view.apply_async(int), view.apply_async(list)
    failed = view.apply_async(lambda: 1 / 0)
    assert number.get() == 0
    assert not gc.is_tracked(number)
    assert not gc.is_tracked(several)
    several.get().append(several)
    with pytest.raises(error.RemoteError):
        failed.get()
    several_ref, failed_ref = weakref.ref(several), weakref.ref(failed)
    failed.exception().found_in = failed
    del several, failed
    gc.collect()
    assert several_ref() is None, "a result that is part of its own value"
    assert failed_ref() is None, "a result that its own error refers to"
