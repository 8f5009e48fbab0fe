"""A value that cannot be loaded where it arrives: the error says that, and not that the task raised it."""

from __future__ import annotations

import asyncio

import broadleaf as ipp
import pytest

REASON = "ValueError: invalid literal for int"


class Unloadable:
    """Pickles well. Who loads it calls `int("x")`."""

    def __reduce__(self):
        return int, ("x",)


def unloadable(_=0):
    return Unloadable()


async def awaited(rc):
    return await rc.load_balanced_view().apply_async(unloadable)


RESULTS = {
    "asyncio": lambda rc: asyncio.run(awaited(rc)),
    "apply": lambda rc: rc[0].apply_sync(unloadable),
    "balanced apply": lambda rc: rc.load_balanced_view().apply_sync(unloadable),
    "executor": lambda rc: rc.executor().submit(unloadable).result(),
    "executor map": lambda rc: list(rc.executor().map(unloadable, [1])),
    "imap": lambda rc: list(rc.load_balanced_view().imap(unloadable, [1])),
    "submit": lambda rc: rc.submit(unloadable).get(),
    "apply to all": lambda rc: rc[:].apply_sync(unloadable),
    "map": lambda rc: rc.load_balanced_view().map_sync(unloadable, range(3)),
    "direct map": lambda rc: rc[:].map_sync(unloadable, range(3)),
    "broadcast": lambda rc: rc.broadcast_view().apply_sync(unloadable),
}


@pytest.mark.parametrize("route", RESULTS)
def test_a_result(rc, route):
    with pytest.raises((ipp.SerializationError, ipp.CompositeError)) as caught:
        RESULTS[route](rc)
    error = caught.value
    if isinstance(error, ipp.CompositeError):
        assert "[client] SerializationError: " in str(error)
        error = error.exceptions[0]
    assert str(error).startswith(f"the result cannot be loaded here: {REASON}")
    assert isinstance(error.__cause__, ValueError)


SENT = {
    "scatter": lambda rc: rc[:].scatter("a", [Unloadable()] * 4, block=True),
    "argument": lambda rc: rc[0].apply_sync(len, [Unloadable()]),
    "keyword": lambda rc: rc.load_balanced_view().apply_sync(lambda a: a, a=Unloadable()),
    "item": lambda rc: rc.load_balanced_view().map_sync(repr, [Unloadable()]),
    "item of imap": lambda rc: list(rc.load_balanced_view().imap(repr, [Unloadable()])),
    "executor": lambda rc: rc.executor().submit(repr, Unloadable()).result(),
    "push": lambda rc: rc[0].push({"a": Unloadable()}, block=True),
    "broadcast": lambda rc: rc.broadcast_view().apply_sync(repr, Unloadable()),
}


@pytest.mark.parametrize("route", SENT)
def test_an_argument(rc, route):
    with pytest.raises((ipp.RemoteError, ipp.CompositeError, ipp.SerializationError)) as caught:
        SENT[route](rc)
    assert f"an argument cannot be loaded: {REASON}" in str(caught.value)


def test_a_captured_value(rc):
    value = Unloadable()
    with pytest.raises(ipp.RemoteError, match=f"SerializationError: the function cannot be loaded: {REASON}"):
        rc[0].apply_sync(lambda: value)


def test_what_a_reference_raises_is_the_tasks_error(rc):
    rc[0].push({"names": ["a"]}, block=True)
    with pytest.raises(ipp.RemoteError, match=r"\[0:apply\] IndexError: list index"):
        rc[0].apply_sync(len, ipp.Reference("names[3]"))
    with pytest.raises(ipp.RemoteError, match=r"\[0:apply\] NameError"):
        rc[0].apply_sync(len, ipp.Reference("nothing_of_that_name"))
