"""An exception whose text would fill the memory, although what it holds is small: its engine lives, and tells of it."""

from __future__ import annotations

import resource

import broadleaf as ipp
import pytest

# Its text has 250 MB.
LEVELS = 26


def raising(way):
    value: list = []
    for _ in range(LEVELS):
        value = [value, value]
    if way == "arguments":
        raise ValueError("too much", {"value": value})
    if way == "key":
        raise KeyError((value,))
    try:
        raise ValueError(value)
    except ValueError as error:
        if way == "cause":
            raise RuntimeError("failed") from error
        raise RuntimeError("failed")  # noqa: B904 (the context is what is tested)


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


ROUTES = {
    "apply": lambda rc, way: rc[0].apply_sync(raising, way),
    "map": lambda rc, way: rc[[0]].map_sync(raising, [way]),
    "balanced map": lambda rc, way: rc.load_balanced_view(targets=[0]).map_sync(raising, [way]),
    "broadcast": lambda rc, way: rc.broadcast_view(targets=[0]).apply_sync(raising, way),
}


@pytest.mark.parametrize("way", ["arguments", "key", "cause", "context"])
@pytest.mark.parametrize("route", ROUTES)
def test_it_is_told_in_short(rc, route, way):
    before = rc[0].apply_sync(peak_bytes)
    with pytest.raises((ipp.RemoteError, ipp.CompositeError)) as caught:
        ROUTES[route](rc, way)
    error = caught.value.exceptions[0] if isinstance(caught.value, ipp.CompositeError) else caught.value
    kind = {"arguments": "ValueError", "key": "KeyError"}.get(way, "RuntimeError")
    assert error.ename == kind
    assert "[...]" in error.traceback
    assert "(shortened)" in error.traceback
    assert "in raising" in error.traceback
    assert len(error.evalue) < 300
    assert error.evalue == "failed" or error.evalue.endswith("(shortened)")
    assert rc[0].apply_sync(peak_bytes) - before < 50e6


def test_others_are_told_in_full(rc):
    cyclic: list = [1]
    cyclic.append(cyclic)

    def full(value):
        raise ValueError("a", value, "b" * 5_000)

    for value in (cyclic, {"a": [1] * 1_000}, ("x",) * 1_000):
        with pytest.raises(ipp.RemoteError) as caught:
            rc[0].apply_sync(full, value)
        assert caught.value.evalue == str(ValueError("a", value, "b" * 5_000))
