"""`multiprocessing` in a task: processes of every start method find what the client's script defines."""

from __future__ import annotations

from pathlib import Path

import pytest

SOURCE = """
import concurrent.futures
import functools
import multiprocessing

FACTOR = 2
state = None


class Own(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code


class Point:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x

    def scaled(self):
        return Point(helper(self.x))


def helper(x):
    return FACTOR * x


@functools.lru_cache
def cached(x):
    return helper(x)


def square(x):
    if x < 0:
        raise Own(x)
    return helper(x) * cached(x)


def start(value):
    global state
    state = value


def started(x):
    return state, x


def scaled(point):
    return point.scaled()


def where(x):
    return __file__, x


def put(queue, x):
    queue.put((square(x), Point(x)))


def pool(method, function, *items):
    with multiprocessing.get_context(method).Pool(2, start, ("ready",)) as pool:
        return pool.map_async(function, items).get(timeout=60)


def executor(method, function, *items):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, context, start, ("ready",)) as pool:
        return list(pool.map(function, items, timeout=60))


def process(method, function, *items):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=function, args=(queue, *items))
    process.start()
    try:
        return queue.get(timeout=60)
    finally:
        process.join(60)
"""


@pytest.fixture
def names(tmp_path: Path):
    # Its module's name is that of a script; the file must not be run in the processes.
    file = tmp_path / "script.py"
    file.write_text(f"open({str(tmp_path / 'was-run')!r}, 'w').close()")
    names = {"__name__": "__main__", "__file__": str(file)}
    exec(SOURCE, names)
    yield names
    assert not (tmp_path / "was-run").exists()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_a_script_defines_is_found(rc, names, method):
    view = rc.load_balanced_view(0)
    for way in (names["pool"], names["executor"]):
        assert view.apply_sync(way, method, names["square"], 1, 3) == [4, 36]
        assert view.apply_sync(way, method, names["started"], 5) == [("ready", 5)]
        assert view.apply_sync(way, method, names["where"], 5) == [(names["__file__"], 5)]
        [point] = view.apply_sync(way, method, names["scaled"], names["Point"](4))
        assert (type(point), point.x) == (names["Point"], 8)
        with pytest.raises(names["Own"]) as caught:
            view.apply_sync(way, method, names["square"], -1)
        assert caught.value.code == -1
    squared, point = view.apply_sync(names["process"], method, names["put"], 3)
    assert (squared, type(point), point.x) == (36, names["Point"], 3)


@pytest.mark.timeout(120)
def test_processes_of_processes(rc, names):
    exec("def nested(method):\n    return pool(method, square, 2)\n", names)
    assert rc[0].apply_sync(names["executor"], "spawn", names["nested"], "spawn") == [[16]]


@pytest.mark.timeout(120)
def test_a_function_that_was_changed_is_sent_as_it_is_now(rc, names):
    view = rc.load_balanced_view(0)
    assert view.apply_sync(names["pool"], "spawn", names["square"], 1) == [4]
    names["FACTOR"] = 3
    assert view.apply_sync(names["pool"], "spawn", names["square"], 1) == [9]
