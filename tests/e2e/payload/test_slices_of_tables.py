"""A part of a table, and an array that repeats its memory: by every way to an engine and back they take only what they
show along."""

from __future__ import annotations

import broadleaf as ipp
import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from broadleaf.interop.backends import offer_backends

N = 1_000_000
# What a part of a thousand rows may take, there and back and with all messages around it; the whole has 8 MB and more.
PART_BYTES = 250_000


def whole(kind):
    numbers = np.arange(N)
    if kind == "arrow":
        return pa.table({"k": numbers, "s": pa.array(numbers.astype(str))})
    if kind == "pandas":
        return pd.DataFrame({"k": pd.array(numbers, dtype="int64[pyarrow]")})
    if kind == "polars":
        return pl.DataFrame({"k": numbers})
    return numbers


def part(of):
    rows = slice(5000, 6000)
    if isinstance(of, pa.Table):
        return of.slice(rows.start, rows.stop - rows.start)
    return of.iloc[rows] if isinstance(of, pd.DataFrame) else of[rows]


def same(a, b):
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a.equals(b)


def moved_bytes(rc, do):
    """The bytes that were sent to engines, received from them, and copied into shared memory."""
    before = rc.counters()
    value = do()
    after = rc.counters()
    names = ("bytes_in", "bytes_out", "copied_bytes")
    return value, sum(after.get(name, 0) - before.get(name, 0) for name in names)


@pytest.fixture(scope="module", params=["arrow", "pandas", "polars", "numpy"])
def table(request):
    return whole(request.param)


def echo(x):
    return x


def by_joblib(rc, x):
    offer_backends()
    rc.load_balanced_view().register_joblib_backend()
    with joblib.parallel_config("broadleaf", n_jobs=1):
        return joblib.Parallel()(joblib.delayed(echo)(y) for y in [x])[0]


def pushed(rc, x):
    rc[0].push({"x": x}, block=True)
    return rc[0].pull("x", block=True)


def captured(rc, x):
    return rc[0].apply_sync(lambda: x)


WAYS = {
    "direct": lambda rc, x: rc[0].apply_sync(echo, x),
    "balanced": lambda rc, x: rc.load_balanced_view().apply_sync(echo, x),
    "broadcast": lambda rc, x: rc.broadcast_view([0]).apply_sync(echo, x)[0],
    "map": lambda rc, x: rc.load_balanced_view().map_sync(echo, [x])[0],
    "direct map": lambda rc, x: rc[0].map_sync(echo, [x])[0],
    "executor": lambda rc, x: rc.executor().submit(echo, x).result(20),
    "beside a lambda": lambda rc, x: rc[0].apply_sync(lambda pair: pair[0], [x, lambda: None]),
    "joblib": by_joblib,
    "push and pull": pushed,
    "captured": captured,
}


@pytest.mark.parametrize("way", WAYS)
def test_there_and_back(rc, table, way):
    shown = part(table)
    there, n_bytes = moved_bytes(rc, lambda: WAYS[way](rc, shown))
    assert same(there, shown)
    assert n_bytes < PART_BYTES


@pytest.mark.parametrize("way", WAYS)
def test_an_array_that_repeats_its_memory(rc, way):
    shown = np.broadcast_to(np.arange(1000.0), (2000, 1000))
    there, n_bytes = moved_bytes(rc, lambda: WAYS[way](rc, shown))
    assert there.strides == shown.strides
    assert np.array_equal(there, shown)
    assert n_bytes < PART_BYTES


def test_a_part_as_a_result(rc, table):
    rc[0].push({"table": table}, block=True)
    there, n_bytes = moved_bytes(rc, lambda: rc[0].apply_sync(part, ipp.Reference("table")))
    assert same(there, part(table))
    assert n_bytes < PART_BYTES


def test_scattered_parts(rc, table):
    n_whole = sum(len(memoryview(buffer)) for buffer in buffers_of(table))
    n_bytes = moved_bytes(rc, lambda: rc[:].scatter("rows", table, block=True))[1]
    assert n_bytes < 1.1 * n_whole
    assert sum(rc[:].apply_sync(len, ipp.Reference("rows"))) == N


def buffers_of(value):
    from broadleaf.serialize.values import dumps

    return [memoryview(buffer).cast("B") for buffer in dumps(value)[1]]
