"""`except ValueError` and `except RemoteError` both work, and futures raise what the tasks raised."""

import asyncio
import concurrent.futures
import errno
import threading
from xml.etree import ElementTree

import broadleaf as ipp
import pytest
from broadleaf import error


class OwnError(Exception):
    def __init__(self, code, hint):
        super().__init__(f"code {code}")
        self.code, self.hint = code, hint


def fail(code):
    raise OwnError(code, hint="h")


def stop():
    raise StopIteration(3)


def leave():
    raise SystemExit(3)


class BreaksAll(Exception):
    def __str__(self):
        raise SystemExit(5)

    __repr__ = __reduce__ = __str__


def test_views_raise_both(rc, dview, lview):
    for call in (
        lambda: rc[0].apply_sync(int, "x"),
        lambda: lview.apply_sync(int, "x"),
        lambda: lview.apply_async(int, "x").get(20),
        lambda: lview.apply_async(int, "x").result(),
        lambda: dview.apply_sync(int, "x"),
        lambda: rc.broadcast_view().apply_sync(int, "x"),
        lambda: lview.map_sync(int, ["1", "x"]),
        lambda: dview.map_sync(int, ["1", "x"]),
        lambda: list(lview.imap(int, ["1", "x"])),
        lambda: rc[0].execute("int('x')", block=True),
        lambda: ipp.AsyncResult.join(lview.apply_async(int, "x"), lview.apply_async(int, "y")).get(),
    ):
        with pytest.raises(ValueError, match="invalid literal"):
            call()
        with pytest.raises(ipp.RemoteError, match="invalid literal"):
            call()


def test_attributes_of_the_original(rc):
    with pytest.raises(OSError, match="nonexistent") as caught:
        rc[0].apply_sync(open, "/nonexistent")
    assert caught.value.errno == errno.ENOENT
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_types_defined_in_the_session(rc):
    session = {"__name__": "__main__"}
    exec(
        "class Own(Exception):\n    def __init__(self, a, b):\n        super().__init__(a)\n        self.b = b\n"
        "def fail():\n    raise Own(1, 2)\n",
        session,
    )
    with pytest.raises(session["Own"]) as caught:
        rc[0].apply_sync(session["fail"])
    assert caught.value.b == 2
    with pytest.raises(session["Own"]):
        rc.executor().submit(session["fail"]).result(20)


def test_exceptions_with_slots_and_without_text(rc):
    session = {"__name__": "__main__"}
    exec(
        "class Slots(Exception):\n    __slots__ = ('code',)\n    def __init__(self, code): self.code = code\n"
        "class Text(Exception):\n    def __str__(self): return '%s at %d' % self.args\n"
        "def fail(kind):\n    raise (Slots(5) if kind == 'slots' else Text('x'))\n",
        session,
    )
    executor = rc.executor()
    for call in (
        lambda f, x: rc[0].apply_sync(f, x),
        lambda f, x: rc.load_balanced_view().map_sync(f, [x]),
        lambda f, x: rc.broadcast_view(0).apply_sync(f, x),
        lambda f, x: executor.submit(f, x).result(20),
        lambda f, x: list(executor.map(f, [x])),
    ):
        with pytest.raises(session["Slots"]) as caught:
            call(session["fail"], "slots")
        assert caught.value.code == 5
        with pytest.raises(session["Text"]) as caught:
            call(session["fail"], "text")
        assert caught.value.args == ("x",)
    assert type(executor.submit(session["fail"], "text").exception(20)) is session["Text"]


def test_a_parse_error_is_caught_as_such(rc):
    for call in (
        lambda: rc[0].apply_sync(ElementTree.fromstring, "<a"),
        lambda: rc.load_balanced_view().map_sync(ElementTree.fromstring, ["<a"]),
        lambda: rc.executor().submit(ElementTree.fromstring, "<a").result(20),
    ):
        with pytest.raises(ElementTree.ParseError) as caught:
            call()
        assert caught.value.position == (1, 0)


def test_a_group_with_one_odd_member_is_taken_apart(rc):
    def fail():
        raise ExceptionGroup("g", [ValueError(1), OSError(threading.Lock()), KeyError(2)])

    for call in (lambda: rc[0].apply_sync(fail), lambda: rc.executor().submit(fail).result(20)):
        caught = []
        try:
            call()
        except* ValueError as group:
            caught.append(group.exceptions[0].args)
        except* KeyError as group:
            caught.append(group.exceptions[0].args)
        except* OSError as group:
            caught.append(len(group.exceptions))
        assert caught == [(1,), (2,), 1]


def test_the_executor_raises_the_original(rc):
    executor = rc.executor()
    for view_executor in (executor, rc[0].executor):
        future = view_executor.submit(int, "x")
        with pytest.raises(ValueError, match=r"^invalid literal") as caught:
            future.result(20)
        assert type(caught.value) is ValueError
        assert type(caught.value.__cause__) is error.RemoteTraceback
        assert type(future.exception()) is ValueError
    for options in ({}, {"chunksize": 2}, {"timeout": 20}):
        with pytest.raises(ValueError, match=r"^invalid literal") as caught:
            list(executor.map(int, ["1", "2", "x"], **options))
        assert type(caught.value) is ValueError
        assert "item 2 = 'x'" in str(caught.value.__cause__)
    assert type(executor.submit(time_out).exception(20)) is TimeoutError
    with pytest.raises(TimeoutError, match="mine"):
        executor.submit(time_out).result()


def time_out():
    raise TimeoutError("mine")


def test_a_dead_engine_and_an_abort_under_the_executor(cluster):
    import os
    import time

    with cluster.connect_client_sync() as rc:
        rc.wait_for_engines(4, timeout=20)
        cluster.start_engines_sync(1)
        rc.wait_for_engines(5, timeout=20)
        executor = rc.load_balanced_view([rc.ids[-1]]).executor
        with pytest.raises(ipp.EngineError, match="Set retries=1"):
            executor.submit(os._exit, 3).result(20)
        future = rc.executor().submit(time.sleep, 30)
        future.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(20)


def test_joblib_raises_the_original(rc):
    joblib = pytest.importorskip("joblib")
    rc.load_balanced_view().register_joblib_backend("broadleaf-errors")
    with pytest.raises(ValueError, match=r"^invalid literal") as caught:
        joblib.Parallel(backend="broadleaf-errors")(joblib.delayed(int)(x) for x in ["1", "x"])
    assert type(caught.value) is ValueError
    assert type(caught.value.__cause__) is error.RemoteTraceback


async def test_await_raises_the_original(rc, dview, lview):
    with pytest.raises(ValueError, match=r"^invalid literal") as caught:
        await lview.apply_async(int, "x")
    assert type(caught.value) is ValueError
    with pytest.raises(ValueError, match=r"^invalid literal"):
        await rc[0].apply_async(int, "x")
    with pytest.raises(ValueError, match=r"^invalid literal"):
        await lview.map_async(int, ["1", "x"])
    with pytest.raises(ipp.CompositeError) as composite:
        await dview.apply_async(int, "x")
    assert isinstance(composite.value, ValueError)
    with pytest.raises(ExceptionGroup) as group:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for(lview.apply_async(int, "x")))
    assert group.group_contains(ValueError) if hasattr(group, "group_contains") else group.value.subgroup(ValueError)
    assert await lview.apply_async(abs, -1) == 1


async def wait_for(ar):
    return await ar


def test_what_would_end_the_client_is_a_remote_error(rc, lview):
    for function in (leave, stop):
        for call in (
            lambda function=function: rc[0].apply_sync(function),
            lambda function=function: rc.executor().submit(function).result(20),
            lambda function=function: asyncio.run(wait_for(lview.apply_async(function))),
            lambda function=function: next(rc.executor().map(lambda f: f(), [function])),
        ):
            with pytest.raises(ipp.RemoteError) as caught:
                call()
            assert type(caught.value) is ipp.RemoteError


def test_a_remote_timeout_does_not_read_as_a_short_wait(lview):
    ar = lview.apply_async(time_out)
    with pytest.raises(ipp.RemoteError, match="mine") as caught:
        ar.get(20)
    assert not isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_an_attribute_error_of_a_task_is_not_one_of_the_result(rc):
    ar = rc[0].apply_async(lambda: (1).no_such)
    with pytest.raises(AttributeError, match=r"\[0:apply\] AttributeError: 'int' object has no attribute 'no_such'"):
        _ = ar.r
    with pytest.raises(AttributeError, match=r"result_dict|no_such"):
        _ = ar.result_dict
    assert getattr(ar, "no_attribute", None) is None


def test_an_exception_that_breaks_when_it_is_looked_at(rc):
    def fail_with():
        raise BreaksAll

    for _ in range(3):
        with pytest.raises(ipp.RemoteError) as caught:
            rc[0].apply_sync(fail_with)
        assert caught.value.ename == "BreaksAll"
        assert "in fail_with" in caught.value.traceback
    assert rc[0].map_sync(lambda x: fail_with() if x else x, [0, 1], return_exceptions=True)[1].ename == "BreaksAll"
    assert rc[0].apply_sync(lambda: 1) == 1


def test_a_huge_exception(rc):
    def huge():
        raise ValueError("x" * 70_000_000)

    with pytest.raises(ValueError, match="xxx") as caught:
        rc[0].apply_sync(huge)
    assert len(str(caught.value)) < 50_000
    assert len(caught.value.traceback) < 50_000


def test_many_failures_are_bounded(dview, lview):
    def own(x):
        raise ValueError(x)

    with pytest.raises(ValueError, match=r"\.\.\.\. 996 more exceptions") as caught:
        lview.map_sync(own, range(1000), chunksize=1)
    assert len(str(caught.value)) < 1000
    assert sum(map(len, caught.value.__notes__)) < 5000
    assert len(caught.value.exceptions) == 1000
