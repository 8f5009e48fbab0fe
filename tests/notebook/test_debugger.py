"""`breakpoint()` in tasks, and debuggers of failed tasks, with somebody at the terminal who types."""

from __future__ import annotations

import builtins
import linecache
import signal
import sys
import threading
from types import SimpleNamespace

import broadleaf as ipp
import pytest
from broadleaf.client.display import debugger
from waiting import until

pytestmark = pytest.mark.timeout(90)


def double(number):
    total = number * 2
    breakpoint()
    total += 1
    return total


def stop_at_the_end(number):
    number += 1
    breakpoint()


def fail(number):
    divisor = number - number
    return number / divisor


def stop_in_a_thread():
    thread = threading.Thread(target=breakpoint)
    thread.start()
    thread.join()
    return "went on"


def traced():
    return sys.gettrace() is not None


@pytest.fixture(scope="module")
def at_a_terminal():
    """Makes this process look as if somebody sat in front of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, closed=False))
        before = signal.getsignal(signal.SIGURG)
        yield patch
        signal.signal(signal.SIGURG, before)


@pytest.fixture(scope="module")
def rc(at_a_terminal, cluster):
    """A client that was made at a terminal."""
    with cluster.connect_client_sync() as client:
        client.wait_for_engines(4, timeout=30)
        yield client


@pytest.fixture
def types(monkeypatch, at_a_terminal):
    """A function that types these lines (it calls those that are callable) and returns the list of prompts so far."""
    lines, prompts = [], []

    def typed(prompt=""):
        prompts.append(prompt)
        line = lines.pop(0)
        return line() if callable(line) else line

    monkeypatch.setattr(builtins, "input", typed)

    def type_lines(*more):
        lines.extend(more)
        return prompts

    yield type_lines
    assert lines == [], "lines that nobody asked for"


def end_of_input():
    raise EOFError


def test_a_task_stops_and_goes_on(rc, types, capsys):
    prompts = types("p total", "!total = 40", "continue")
    assert rc[1].apply_sync(double, 3) == 41
    assert prompts == ["(Pdb 1) "] * 3
    shown = capsys.readouterr().out
    assert "test_debugger.py(" in shown
    assert "-> total += 1" in shown
    assert "\n6\n" in shown
    assert rc[:].apply_sync(traced) == [False] * 4


ROUTES = {
    "balanced apply": lambda client: client.load_balanced_view().apply_sync(double, 3),
    "balanced map": lambda client: client.load_balanced_view().map_sync(double, [3])[0],
    "imap": lambda client: next(client.load_balanced_view().imap(double, iter([3]))),
    "remote function": lambda client: client.load_balanced_view().remote(block=True)(double)(3),
    "executor": lambda client: client.executor().submit(double, 3).result(),
    "executor map": lambda client: next(iter(client.executor().map(double, [3]))),
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_task_stops_by_whichever_route_it_came(rc, types, route):
    prompts = types("!total = 40", "continue")
    assert ROUTES[route](rc) == 41
    assert len(prompts) == 2


def test_stepping_ends_with_the_task(rc, types, capsys):
    types("next", "next", "next")
    assert rc[0].apply_sync(double, 3) == 7
    assert "--Return--" in capsys.readouterr().out
    assert not rc[0].apply_sync(traced)


def test_a_breakpoint_at_the_end_of_a_function(rc, types):
    types("p number", "next")
    assert rc[0].apply_sync(stop_at_the_end, 3) is None
    assert not rc[0].apply_sync(traced)


@pytest.mark.parametrize("line", ["quit", end_of_input], ids=["quit", "end of input"])
def test_quitting_ends_the_task(rc, types, line):
    types(line)
    with pytest.raises(ipp.RemoteError, match="BdbQuit"):
        rc[0].apply_sync(double, 3)
    assert not rc[0].apply_sync(traced)


def test_each_engine_is_talked_to_in_turn(rc, types):
    prompts = types(*["p number", "continue"] * 4)
    assert rc[:].apply_sync(double, 3) == [7] * 4
    assert sorted(prompts[::2]) == [f"(Pdb {engine}) " for engine in range(4)]
    assert prompts[::2] == prompts[1::2]


def test_in_a_cell(rc, px, types, capsys):
    types(*["p x", "continue"] * 4)
    px.run_cell_magic("px", "", "x = 17\nbreakpoint()\nx += 1\nprint('x is', x)")
    shown = capsys.readouterr().out
    assert shown.count("\n17\n") == 4
    assert shown.count("x is 18") == 4
    assert rc[:]["x"] == [18] * 4


def test_a_breakpoint_of_the_debugger_itself(rc, types, capsys):
    line = double.__code__.co_firstlineno + 4
    types(f"break {__file__}:{line}", "continue", "p total", "continue")
    assert rc[0].apply_sync(double, 3) == 7
    assert "\n7\n" in capsys.readouterr().out
    assert not rc[0].apply_sync(traced)


def test_other_tasks_wait_for_the_one_that_stopped(rc, types):
    behind = []

    def submit_more():
        behind.append(rc[0].apply_async(abs, -1))
        return "continue"

    types(submit_more)
    assert rc[0].apply_sync(double, 3) == 7
    assert behind[0].get(timeout=30) == 1


def test_an_interrupt_ends_a_task_that_stopped(rc, types):
    stopped = []

    def interrupt():
        rc.send_signal("SIGINT", 0)
        assert stopped[0].wait_all_done(30)
        return "continue"

    types(interrupt)
    stopped.append(rc[0].apply_async(double, 3))
    with pytest.raises(ipp.RemoteError, match="KeyboardInterrupt"):
        stopped[0].get()
    assert rc[0].apply_sync(abs, -1) == 1


def test_an_engine_that_dies_in_the_debugger_ends_it(types):
    with ipp.Cluster(n=1) as client:
        types("import os; os._exit(3)")
        with pytest.raises(ipp.EngineError, match="exited with code 3"):
            client[0].apply_sync(double, 3)


@pytest.mark.parametrize("open_it", ["get", "wait", "debug"])
def test_a_task_may_stop_while_nobody_waits(rc, types, open_it):
    result = rc[2].apply_async(double, 3)
    assert until(lambda: rc.debugging().asks(result))
    types("continue")
    getattr(result, open_it)()
    assert result.get() == 7


def test_without_a_terminal_a_breakpoint_is_passed_over(rc, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert rc[1].apply_sync(double, 3) == 7
    assert "engine 1 skips a breakpoint()" in capsys.readouterr().err


def no_input():
    raise OSError("no input here")


def test_a_breakpoint_is_passed_over_where_input_turns_out_to_be_impossible(rc, types, capsys):
    """As in a notebook that a program executes."""
    types(no_input, no_input)
    assert rc[:2].apply_sync(double, 3) == [7, 7]
    shown = capsys.readouterr().err
    assert "engine 0 skips a breakpoint()" in shown
    assert "engine 1 skips a breakpoint()" in shown


def test_only_the_task_s_own_frames_are_shown(rc, px, types, capsys):
    types("where", "up", "where", "continue")
    assert rc[1].map_sync(double, [3]) == [7]
    shown = capsys.readouterr().out
    assert "fork_server.py" not in shown
    assert shown.count("test_debugger.py(") == 3
    rc[:].push({"double": double}, block=True)
    types("where", "continue")
    px.run_cell_magic("px", "--targets 2", "double(3)")
    shown, told = capsys.readouterr()
    assert "-> double(3)" in shown, told
    assert "IPython" not in shown
    assert "broadleaf/engine" not in shown


@pytest.fixture
def typed_function():
    """A function of a cell of this session, whose source engines do not have."""
    name, text = "<a cell>", "def typed(number):\n    breakpoint()\n    return number + 1  # typed\n"
    names = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    yield names["typed"]
    del linecache.cache[name]


def test_code_of_the_session_is_shown_with_its_source(rc, types, capsys, typed_function):
    types("list", "continue")
    assert rc[3].apply_sync(typed_function, 1) == 2
    shown = capsys.readouterr().out
    assert "-> return number + 1  # typed" in shown
    assert "  1  \tdef typed(number):" in shown


def test_engines_are_given_sources_of_the_session_only(typed_function, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a secret\n")
    linecache.getlines(str(secret))
    assert debugger._sources(["<a cell>", __file__, str(secret), "nowhere"]).keys() == {"<a cell>", __file__}


def test_in_another_thread_a_breakpoint_is_passed_over(rc):
    result = rc[0].apply_async(stop_in_a_thread)
    assert result.get(timeout=30) == "went on"
    assert "it is not the task's own thread" in result.stderr


def test_a_failed_task_can_be_looked_at(types, capsys):
    with ipp.Cluster(n=2, keep_failed_frames=2) as client:
        result = client[:].apply_async(fail, 3)
        result.wait()
        types("p number, divisor", "up", "quit")
        result.debug(engine=1)
        shown = capsys.readouterr().out
        assert "ZeroDivisionError" in shown
        assert "-> return number / divisor" in shown
        assert "(3, 0)" in shown
        for _ in range(2):
            client[:].apply_async(fail, 4).wait()
        with pytest.raises(ipp.RemoteError, match="the frames of this failure are gone"):
            result.debug(engine=1)
        assert client[:].apply_sync(abs, -1) == [1, 1]


def test_there_is_nothing_to_debug(rc):
    result = rc[0].apply_async(fail, 3)
    result.wait()
    with pytest.raises(LookupError, match="keep_failed_frames"):
        result.debug()
    with pytest.raises(LookupError, match="on engine 3"):
        result.debug(engine=3)
    with pytest.raises(LookupError, match="no task of this result has failed"):
        done = rc[0].apply_async(abs, 1)
        done.wait()
        done.debug()
