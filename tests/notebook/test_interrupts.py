"""Interrupting what engines run: a cell that waits, signals from a client, from a cluster, and from a shell."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time

import broadleaf as ipp
import pytest
from broadleaf.client.display import showing, streaming
from waiting import until

BEGUN = "import time\nopen(f'{directory}/{engine_id}', 'w').close()\n"
LOOP = BEGUN + "end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
SLEEP = BEGUN + "time.sleep(60)"
PRODUCT = f"import numpy\nfactor = numpy.ones((500, 500))\n{BEGUN}for _ in range(100_000):\n    factor @ factor"
# C code that returns once the engine's gate is opened, whatever signals come: a mutex that its own thread has locked.
CALL = f"""
import ctypes, threading
mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
libc.pthread_mutex_lock(mutex)
def unlock():
    open(f"{{gates}}/{{engine_id}}").read()
    libc.pthread_mutex_unlock(mutex)
threading.Thread(target=unlock).start()
print("begins")
{BEGUN}libc.pthread_mutex_lock(mutex)
print("never")
"""
ALIKE = pytest.mark.parametrize("code", [LOOP, SLEEP, PRODUCT], ids=["loop", "sleep", "product"])


@pytest.fixture
def begun(rc, tmp_path):
    """A function that says whether as many engines as given have begun with the code."""
    directory = tmp_path / "begun"
    directory.mkdir()
    rc[:].push({"directory": str(directory)}, block=True)
    return lambda n=4: len(list(directory.iterdir())) == n


def start(rc, code, begun):
    """Starts code on all engines, and returns once all run it."""
    busy = rc[:].execute(code, block=False)
    assert until(begun)
    return busy


def is_interrupted(busy):
    """Whether every task has ended by `KeyboardInterrupt`."""
    values = busy.get(20, return_exceptions=True)
    return [getattr(value, "ename", None) for value in values] == ["KeyboardInterrupt"] * len(values)


@ALIKE
def test_send_signal_by_name(rc, code, begun):
    busy = start(rc, code, begun)
    rc.send_signal("SIGINT")
    assert is_interrupted(busy)
    assert rc[:].apply_sync(abs, -1) == [1] * 4


@ALIKE
def test_signal_engines_of_the_cluster(rc, cluster, code, begun):
    busy = start(rc, code, begun)
    cluster.signal_engines_sync()
    assert is_interrupted(busy)
    assert rc[:].apply_sync(abs, -1) == [1] * 4


@ALIKE
def test_kill_from_a_shell(rc, code, begun):
    pids = rc[:].apply_sync(os.getpid)
    busy = start(rc, code, begun)
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    assert is_interrupted(busy)
    assert rc[:].apply_sync(os.getpid) == pids


def test_a_signal_that_another_thread_gets_ends_a_blocking_call(rc, tmp_path):
    """Python's main thread, which sleeps, is not woken by the signal itself."""

    def run(ready):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            ready.touch()
            time.sleep(60)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    ready = tmp_path / "ready"
    pid = rc[0].apply_sync(os.getpid)
    busy = rc[0].apply_async(run, ready)
    assert until(ready.exists)
    os.kill(pid, signal.SIGINT)
    with pytest.raises(ipp.RemoteError, match="KeyboardInterrupt"):
        busy.get(20)
    assert rc[0].apply_sync(os.getpid) == pid


def test_ctrl_c_while_earlier_output_is_shown(rc, begun, monkeypatch, capsys):
    """Whoever sees that the engines have begun may be faster than the client, which has yet to wait for them."""

    def interrupted(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with rc.live_output():
        busy = rc[:].execute(f"print('begins', flush=True)\n{SLEEP}", silent=False, block=False)
        assert until(lambda: len(busy.written_parts()) == 4)
        monkeypatch.setattr(streaming, "write_labelled", interrupted)
        busy.show()
    assert "Received Keyboard Interrupt" in capsys.readouterr().err
    assert [type(error) for error in busy.get(20, return_exceptions=True)] == [ipp.TaskAborted] * 4


def test_an_idle_engine_takes_no_notice(rc):
    pids = rc[:].apply_sync(os.getpid)
    rc.send_signal(2)
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    assert rc[:].apply_sync(os.getpid) == pids


def test_a_signal_that_came_before_a_task_is_not_the_task_s(rc):
    """Also where neither is Python code, which would have acted on the signal at its first instruction."""
    rc[0].apply_sync(abs, -1)  # an engine's first task runs Python code
    calls = ((time.sleep, 0.1), (_thread.interrupt_main,), (time.sleep, 0.1))
    queued = [rc[0].apply_async(*call) for call in calls]
    assert [one.get(20) for one in queued] == [None] * 3


def test_what_is_no_signal(rc):
    with pytest.raises(ValueError, match="'SIGNOTHING' is not a signal"):
        rc.send_signal("SIGNOTHING")
    with pytest.raises(ValueError):
        rc.send_signal(4000)


def test_an_interrupt_that_comes_late_is_not_the_next_task_s(rc):
    """Tasks are aborted as they end; later ones are left alone."""
    view = rc[0]
    for _ in range(200):
        ended = view.apply_async(abs, -1)
        with contextlib.suppress(RuntimeError):  # done by then
            ended.abort()
        assert view.apply_sync(sum, range(1000)) == 499500


def test_a_task_that_handles_sigint_itself_is_asked_in_its_own_way(rc, tmp_path):
    def run(ready):
        heard = []
        ours = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
        try:
            ready.touch()
            while not heard:
                time.sleep(0.01)
        finally:
            signal.signal(signal.SIGINT, ours)
        return "ended well"

    ready = tmp_path / "ready"
    busy = rc[0].apply_async(run, ready)
    assert until(ready.exists)
    rc.interrupt(0)
    assert busy.get(20) == "ended well"


@contextlib.contextmanager
def interrupting(condition, on_sent=lambda moment: None):
    """Sends SIGINT to this process once `condition()` holds and the main thread waits; says when it does."""

    def waits():
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None and frame.f_code is not showing._wait.__code__:
            frame = frame.f_back
        return frame is not None

    def interrupt():
        if until(condition) and until(waits):
            on_sent(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()


def have_printed(px, n):
    """Whether the output of that many engines is here."""
    result = px.find_cell_magic("px").__self__.last_result
    return result is not None and sum("begins" in text for text in result.stdout) == n


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_interrupting_a_cell(px, rc, capfd, stream, begun):
    with interrupting(lambda: begun() and have_printed(px, 4)):
        px.run_cell_magic("px", stream, f"print('begins', flush=True)\n{SLEEP}\nprint('never')")
    shown = capfd.readouterr()
    assert "Received Keyboard Interrupt. Sending signal SIGINT to engines..." in shown.err
    assert shown.out.count("begins") == 4
    assert "never" not in shown.out
    assert rc[:].apply_sync(abs, -1) == [1] * 4
    px.run_cell_magic("px", "", "print('next')")
    assert capfd.readouterr().out.count("next") == 4


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_a_cell_says_which_engines_go_on_in_compiled_code(px, rc, tmp_path, capfd, stream, begun):
    gates = [tmp_path / "1", tmp_path / "2"]
    for gate in gates:
        os.mkfifo(gate)
    rc[:].push({"gates": str(tmp_path)}, block=True)
    with interrupting(lambda: begun(2) and have_printed(px, 2)):
        px.run_cell_magic("px", f"--targets 1:3 {stream}", CALL)
    shown = capfd.readouterr()
    assert "Still busy: engines 1-2. " in shown.err
    assert shown.out.count("begins") == 2
    waiting = rc[:].apply_async(abs, -1)
    assert rc[0].apply_sync(abs, -1) == 1
    assert not waiting.ready()
    for gate in gates:
        gate.write_text("")
    assert waiting.get(20) == [1] * 4
    assert "never" not in capfd.readouterr().out
    px.run_cell_magic("px", "", "print('next')")
    assert capfd.readouterr().out.count("next") == 4


def test_interrupting_a_cell_leaves_others_alone(px, rc, cluster, begun):
    with cluster.connect_client_sync() as other:
        other.wait_for_engines(4, timeout=20)
        theirs = other[3].execute(SLEEP, block=False)
        assert until(lambda: begun(1))
        with interrupting(begun):
            px.run_cell_magic("px", "--targets 0:3", SLEEP)
        assert rc[:3].apply_sync(abs, -1) == [1] * 3
        assert not theirs.ready()
        theirs.abort()
        theirs.wait(20)


def test_an_interrupt_can_do_nothing(px, rc, begun, gate):
    rc[:]["wait_at_gate"] = gate.task()
    with interrupting(begun):
        px.run_cell_magic("px", "--signal-on-interrupt 0", f"{BEGUN}wait_at_gate(); done = 1")
    gate.open()
    assert rc.wait(timeout=20)
    assert rc[:]["done"] == [1] * 4


def test_an_interrupt_can_kill(tmp_path):
    with ipp.Cluster(n=2) as client:
        client[:].push({"directory": str(tmp_path)}, block=True)
        with interrupting(lambda: len(list(tmp_path.iterdir())) == 2):
            client[:].execute(SLEEP, block=False).show(signal_on_interrupt=9)
        assert until(lambda: client.ids == [])


def test_show_raises_the_interrupt_if_no_signal_is_to_be_sent(rc, begun):
    busy = rc[:].execute(SLEEP, block=False)
    with interrupting(begun), pytest.raises(KeyboardInterrupt):
        busy.show(signal_on_interrupt=None)
    assert rc[:].apply_sync(abs, -1) == [1] * 4
    assert busy.status == ["aborted"] * 4
