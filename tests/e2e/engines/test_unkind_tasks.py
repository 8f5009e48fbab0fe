"""What tasks do to their engine, to its limits and to its process, without ending it or its client."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time

import broadleaf as ipp
import pytest

pytestmark = pytest.mark.timeout(60)


class LeavesWhenPickled:
    def __reduce__(self):
        raise SystemExit(6)


class LeavesWhenLoaded:
    def __reduce__(self):
        return sys.exit, (7,)


class LeavesWhenShown(Exception):
    def __str__(self):
        raise SystemExit(5)

    __repr__ = __str__


class ErrorThatLeavesWhenPickled(Exception):
    def __reduce__(self):
        raise SystemExit(6)


class ErrorThatLeavesWhenLoaded(Exception):
    def __reduce__(self):
        return sys.exit, (7,)


def fail_with(kind):
    raise kind


@pytest.mark.parametrize("kind", [LeavesWhenShown, ErrorThatLeavesWhenPickled, ErrorThatLeavesWhenLoaded])
def test_errors_that_raise_system_exit(rc, kind):
    view = rc[0]
    pid = view.apply_sync(os.getpid)
    result = view.apply_async(fail_with, kind)
    with pytest.raises(ipp.RemoteError) as raised:
        result.get(timeout=20)
    assert raised.value.ename == kind.__name__
    assert kind.__name__ in f"{raised.value} {raised.value!r} {result!r}"
    assert view.apply_sync(os.getpid) == pid


def test_values_that_raise_system_exit(rc):
    view = rc[0]
    pid = view.apply_sync(os.getpid)
    with pytest.raises(ipp.RemoteError, match=r"the result \(.*LeavesWhenPickled\) cannot be sent: SystemExit: 6"):
        view.apply_async(LeavesWhenPickled).get(timeout=20)
    with pytest.raises(ipp.error.SerializationError, match="the result cannot be loaded here: SystemExit: 7"):
        view.apply_async(LeavesWhenLoaded).get(timeout=20)
    assert view.apply_sync(os.getpid) == pid


def test_arguments_that_raise_system_exit(rc):
    view = rc[0]
    with pytest.raises(ipp.error.SerializationError, match=r"argument 2 .*LeavesWhenPickled.* SystemExit: 6"):
        view.apply_async(max, 1, LeavesWhenPickled())
    with pytest.raises(ipp.RemoteError, match="SystemExit: 7"):
        view.apply_async(id, LeavesWhenLoaded()).get(timeout=20)
    with pytest.raises(ipp.error.SerializationError, match="SystemExit: 6"):
        rc.load_balanced_view().map_sync(id, [LeavesWhenPickled()])
    assert view.apply_sync(lambda: "goes on") == "goes on"


def test_a_file_that_may_not_grow_is_an_error(rc, tmp_path):
    def write_too_much(path):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with open(path, "wb", 0) as file:
                while file.write(bytes(600)):
                    pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    view = rc[0]
    pid = view.apply_sync(os.getpid)
    with pytest.raises(OSError, match="File too large"):
        view.apply_async(write_too_much, str(tmp_path / "file")).get(timeout=20)
    assert view.apply_sync(os.getpid) == pid


def test_the_log_of_an_engine_that_may_not_grow(rc):
    def say_too_much():
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
        try:
            os.write(1, b"through the pipe\n")
            print("printed")
        finally:
            sys.stdout.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    view = rc[0]
    pid = view.apply_sync(os.getpid)
    result = view.apply_async(say_too_much)
    result.get(timeout=20)
    assert result.stdout == "through the pipe\nprinted\n"
    assert view.apply_sync(os.getpid) == pid


def test_an_engine_that_is_stopped_in_a_task_times_out_and_is_replaced():
    with ipp.Cluster(n=1, restart_engines=True, interrupt_grace_s=0.2) as client:
        view = client.load_balanced_view()
        pid = view.apply_sync(os.getpid)
        view.timeout = 1.0
        with pytest.raises(ipp.TaskTimeout):
            view.apply_async(lambda: os.kill(os.getpid(), signal.SIGSTOP) or time.sleep(30)).get(timeout=20)
        view.timeout = None
        assert view.apply_async(os.getpid).get(timeout=20) != pid


def test_a_task_for_an_engine_that_is_stopped_times_out():
    with ipp.Cluster(n=1) as client:
        view = client.load_balanced_view()
        pid = view.apply_sync(os.getpid)
        os.kill(pid, signal.SIGSTOP)
        try:
            view.timeout = 0.2
            with pytest.raises(ipp.TaskTimeout):
                view.apply_async(time.sleep, 30).get(timeout=20)
        finally:
            os.kill(pid, signal.SIGCONT)
        view.timeout = None
        assert view.apply_async(os.getpid).get(timeout=20) == pid


def test_progress_can_be_shown_of_what_has_ended(cluster, capsys):
    client = cluster.connect_client_sync()
    one = client[0].apply_async(int)
    many = client.load_balanced_view().map_async(abs, range(10))
    client.wait(timeout=20)
    for _ in range(2):
        one.wait_interactive()
        many.wait_interactive()
        assert client.wait_interactive()
        assert client.wait_interactive([one, many])
        client.close()
    assert "10/10" in capsys.readouterr().err


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_an_engine_whose_modules_are_gone_is_replaced(start):
    with ipp.Cluster(n=2, restart_engines=True, engine_start=start) as client:
        view = client[0]
        pid = view.apply_sync(os.getpid)
        assert view.apply_async(lambda: sys.modules.clear()).get(timeout=20) is None
        with pytest.raises(ipp.EngineError, match=r"(?s)exited with code \d+ while it ran this task.*sys\.modules"):
            view.apply_async(lambda: "needs a module").get(timeout=20)
        client.wait_for_engines(2, timeout=20)
        assert client[0].apply_async(os.getpid).get(timeout=20) != pid
