"""What cannot be called is refused where it is passed, by name."""

import re

import broadleaf as ipp
import pytest


async def later(x):
    return x


def double(x):
    return 2 * x


CALLS = {
    "apply": lambda view, f: view.apply(f, 1),
    "apply_async": lambda view, f: view.apply_async(f, 1),
    "apply_sync": lambda view, f: view.apply_sync(f, 1),
    "remote": lambda view, f: view.remote()(f),
    "parallel": lambda view, f: view.parallel()(f),
    "submit": lambda view, f: view.executor.submit(f, 1),
    "map": lambda view, f: view.map(f, [1]),
    "map_async": lambda view, f: view.map_async(f, [1]),
    "long map": lambda view, f: view.map_async(f, range(5000)),
    "imap": lambda view, f: view.imap(f, [1]),
    "executor map": lambda view, f: view.executor.map(f, [1]),
    "require": lambda view, f: view.apply_async(ipp.require("json")(f), 1),
    "depend": lambda view, f: ipp.depend(f),
}
MAPS = {
    "map": lambda view, *args: view.map(*args),
    "map_sync": lambda view, *args: view.map_sync(*args),
    "map_async": lambda view, *args: view.map_async(*args),
    "imap": lambda view, *args: view.imap(*args),
    "executor map": lambda view, *args: view.executor.map(*args),
    "parallel map": lambda view, *args: view.parallel()(args[0]).map(args[1]),
}
VIEWS = {
    "balanced": lambda rc: rc.load_balanced_view(),
    "direct": lambda rc: rc[:],
    "one engine": lambda rc: rc[0],
    "broadcast": lambda rc: rc.broadcast_view(),
}


@pytest.fixture(params=VIEWS)
def view(request, rc):
    return VIEWS[request.param](rc)


@pytest.mark.parametrize("call", CALLS)
def test_no_function(view, call):
    submitted = len(view.client.history)
    for wrong, message in (
        (None, "None cannot be called: the function comes first"),
        ([1, 2], re.escape("[1, 2] (list) cannot be called: the function comes first")),
        (double(2), re.escape("4 (int) cannot be called")),
        ("double", "'double' is a str, not a function"),
    ):
        with pytest.raises(TypeError, match=message):
            CALLS[call](view, wrong)
    assert len(view.client.history) == submitted


@pytest.mark.parametrize("call", CALLS)
def test_a_coroutine_in_place_of_its_function(view, call):
    coroutine = later(3)
    with pytest.raises(
        TypeError, match=re.escape("later(...) is a coroutine, which cannot be sent: pass later itself")
    ):
        CALLS[call](view, coroutine)
    coroutine.close()


@pytest.mark.parametrize("call", MAPS)
@pytest.mark.parametrize("sequence", [[1, 2], range(5000)])
def test_a_map_whose_arguments_are_swapped(view, call, sequence):
    message = (
        "cannot be called"
        if call == "parallel map"
        else "was passed before double: the first argument of a map is the function"
    )
    with pytest.raises(TypeError, match=message):
        MAPS[call](view, sequence, double)


def test_a_coroutine_among_the_arguments(view):
    coroutine = later(3)
    for call in (lambda: view.apply_async(double, coroutine), lambda: view.map_async(double, [coroutine])):
        with pytest.raises(ipp.SerializationError, match="await it first and send its value, or send its function"):
            call()
    coroutine.close()


def test_what_the_messages_advise(rc):
    assert rc[0].apply_sync(later, 3) == 3
    rc[0].execute("def double(x): return 2 * x", block=True)
    assert rc[0].apply_sync(ipp.Reference("double"), 4) == 8
    with pytest.raises(TypeError, match="execute takes code as a str, not function; apply calls a function"):
        rc[0].execute(double)
    assert rc[0].apply_sync(ipp.PrePickled(double), 5) == 10


def test_waiting_for_engines_that_are_there_is_done_at_once(rc):
    assert rc.wait_for_engines(4, block=False).done()
    assert rc.wait_for_engines(2, block=False).result(0) is None
    waiting = rc.wait_for_engines(5, timeout=0.1, block=False)
    with pytest.raises(TimeoutError, match="only 4 of 5 engines registered"):
        waiting.result(20)
    with rc.cluster.connect_client_sync() as other:
        pass
    closed = other.wait_for_engines(4, block=False)
    assert isinstance(closed.exception(20), ipp.error.LinkLost)
