"""What a remote error looks like."""

import linecache
import logging
import pickle
import traceback

import broadleaf as ipp
import pytest
from broadleaf.client.failures import death_certificate
from broadleaf.errors import composite
from broadleaf.serialize.chunks import MapChunk, report
from broadleaf.serialize.errors import dump_error, load_error, traceback_text, with_source


def divide(x):
    return 10 / x


def remote(engine_id=0, function=divide, *args):
    error = raised(function, *(args or (0,)))
    told = report(error, args)
    return load_error(dump_error(told.error, engine_id, "u", item=told.item))


def raised(function, *args):
    """The exception that the function raises, with its traceback as an engine's native loop has it."""
    try:
        function(*args)
    except Exception as error:
        return error.with_traceback(error.__traceback__.tb_next)
    raise AssertionError


def shown(error):
    return "".join(traceback.format_exception(error))


def test_a_traceback_shows_the_remote_one_once():
    error = remote(3)
    text = shown(error)
    assert text.count("Remote traceback, engine 3:\n  Traceback (most recent call last):") == 1
    assert text.count("in divide") == 1
    assert "      return 10 / x\n" in text
    assert "~~~^~~" in text
    assert str(error) == "[3:apply] ZeroDivisionError: division by zero"
    assert "Remote traceback" in shown(pickle.loads(pickle.dumps(error)))
    assert shown(error.as_original()).count("in divide") == 1


def test_logging_shows_it(caplog):
    try:
        raise remote(3)
    except ValueError:
        raise
    except ArithmeticError:
        logging.getLogger("broadleaf.test").exception("failed")
    assert "return 10 / x" in caplog.text


def test_failures_alike_are_shown_once():
    several = composite([remote(engine) for engine in range(12)], "f")
    assert str(several).splitlines() == [
        "one or more exceptions raised in: f",
        "[0:apply] ZeroDivisionError: division by zero, and 11 more on engines 1-11",
    ]
    assert shown(several).count("Remote traceback, engine 0, and 11 more on engines 1-11:") == 1
    assert shown(several).count("in divide") == 1
    assert "and 11 more on engines 1-11" in several.render_traceback()
    assert "in divide" in "\n".join(several.render_traceback(7))


def test_a_cell_that_fails_again_is_another_cell():
    failures = [remote(engine) for engine in (0, 1, 0, 1)]
    for failure in failures:
        failure.engine_info["method"] = "execute"
    text = str(composite(failures, "execute"))
    assert text.count("division by zero, and 1 more on engine 1") == 2


def test_different_failures_are_shown_each_up_to_a_limit():
    def fail(text):
        raise ValueError(text)

    several = composite([remote(engine, fail, str(engine // 2)) for engine in range(20)], "f")
    assert [line for line in shown(several).splitlines() if "Remote traceback" in line] == [
        f"Remote traceback, engine {2 * k}, and 1 more on engine {2 * k + 1}:" for k in range(4)
    ]
    assert str(several).splitlines()[-1] == ".... 12 more exceptions ..."
    assert several.render_traceback()[-1] == "... 12 more exceptions ..."


def test_engines_are_named_as_ranges():
    several = composite([remote(engine) for engine in (5, 0, 1, 2, 9, 7, 8, 8)], "f")
    assert str(several).endswith("and 7 more on engines 0-2, 7-9")
    assert str(composite([ipp.RemoteError("A", "a")] * 3, "f")).endswith("[Engine Exception] A: a, and 2 more")


def test_the_item_of_a_chunk():
    error = remote(0, MapChunk(divide), [3, 2, 1, 0])
    assert (error.item_index, error.item_repr) == (3, "0")
    assert str(error) == "[0:apply] ZeroDivisionError: division by zero (item 3 = 0)"
    assert "Remote traceback, engine 0, item 3 = 0:" in shown(error)
    assert "functions.py" not in error.traceback
    error = remote(0, MapChunk(lambda a, b: a / b), range(5), [1, 1, 0, 1, 1])
    assert (error.item_index, error.item_repr) == (2, "(2, 0)")


def test_a_sequence_that_raises_has_no_item():
    class Bad(list):
        def __iter__(self):
            yield 1
            raise ValueError("the sequence itself")

        def __getitem__(self, index):
            raise SystemExit

    error = remote(0, MapChunk(divide), Bad([1, 2]))
    assert (error.item_index, error.item_repr) == (None, "")


def test_own_frames_are_left_out_but_not_the_users():
    import asyncio

    async def inner():
        return divide(0)

    class Caller:
        def __call__(self):
            return asyncio.run(inner())

    text = remote(0, MapChunk(lambda x: Caller()()), [1]).traceback
    assert "functions.py" not in text
    assert text.splitlines()[1].endswith("in <lambda>")
    # The user's own call stays.
    assert "asyncio" in text
    assert "in inner" in text


def test_a_traceback_is_bounded():
    def fail(_):
        raise ValueError("x" * 10**7 + "\n" * 10**5)

    error = remote(0, fail)
    assert len(error.traceback) < 100_000
    assert "left out" in error.traceback


def test_causes_groups_and_notes_of_the_remote_error_are_shown():
    def chained():
        try:
            divide(0)
        except ZeroDivisionError as first:
            first.add_note("a note")
            raise ExceptionGroup("both", [KeyError("k"), first]) from first

    text = remote(0, lambda _: chained()).traceback
    assert text.count("a note") >= 1
    assert "direct cause" in text
    assert "ExceptionGroup: both" in text
    assert "KeyError: 'k'" in text


CELL = "def cell(x):\n    y = x\n    return 10 / y + 1\n"


def define(name, source=CELL):
    namespace = {}
    exec(compile(source, name, "exec"), namespace)
    return namespace["cell"]


def test_the_client_fills_in_source_that_the_engine_lacks(monkeypatch):
    function = define("<cell 7>")
    record = dump_error(raised(function, 0))
    assert "return 10 / y" not in load_error(record).traceback
    monkeypatch.setitem(linecache.cache, "<cell 7>", (len(CELL), None, CELL.splitlines(True), "<cell 7>"))
    with_source.cache_clear()
    text = load_error(record).traceback
    assert '  File "<cell 7>", line 3, in cell\n    return 10 / y + 1\n           ~~~^~~\n' in text
    with_source.cache_clear()


def test_source_of_frames_in_groups(monkeypatch):
    def grouped():
        raise ExceptionGroup("g", [raised(define("<cell 8>"), 0)])

    text, missing = traceback_text(raised(grouped))
    assert "return 10 / y" not in text
    monkeypatch.setitem(linecache.cache, "<cell 8>", (len(CELL), None, CELL.splitlines(True), "<cell 8>"))
    lines = with_source(text, missing).splitlines()
    at = next(i for i, line in enumerate(lines) if 'File "<cell 8>"' in line)
    assert lines[at + 1] == "    |     return 10 / y + 1"
    assert lines[at + 2] == "    |            ~~~^~~"


def test_nothing_is_filled_in_twice():
    text, missing = traceback_text(raised(divide, 0))
    assert missing == ()
    assert text.count("return 10 / x") == 1


@pytest.mark.parametrize(
    ("retries", "started", "expected"),
    [
        (None, True, "cluster.restart_engines_sync() restarts it."),
        (0, True, "Set retries=1 on the view"),
        (0, False, "cluster.restart_engines_sync()"),
        (1, True, "The task was tried 2 times, as retries=1 allows."),
    ],
)
def test_the_advice_after_a_death_fits(retries, started, expected):
    certificate = death_certificate({"engine": 2, "cause": {"Exit": 3}, "task_started": started})
    text = str(ipp.EngineError("", {}, certificate, retries))
    assert expected in text
    assert ("Set retries" in text) == (retries == 0 and started)
    assert "last output" not in text
    assert "restart_engines()" not in text


@pytest.mark.parametrize("why", ["", "job 30: it was preempted (PREEMPTED)"])
def test_nobody_is_told_to_restart_an_engine_whose_host_is_gone(why):
    certificate = death_certificate({"engine": 2, "cause": "HostGone", "host": "n1:slurm-30", "task_started": True})
    text = str(ipp.EngineError("", {}, certificate._replace(block_end=why), None))
    assert "restart_engines" not in text
    assert "cluster.scale_sync(n) or `broadleaf scale N` replaces lost hosts" in text
    assert (why or "the relay there ended, or the connection to it was lost") in text


def test_output_is_shown_where_there_is_some():
    certificate = death_certificate({"engine": 2, "cause": {"Exit": 3}, "last_output": "the end\n"})
    assert "Its last output:\n  | the end\n" in str(ipp.EngineError("", {}, certificate))
