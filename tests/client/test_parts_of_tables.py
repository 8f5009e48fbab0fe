"""What shows a part of some memory, or the same memory several times: it takes no more along than it shows."""

import decimal
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from broadleaf.serialize.functions import resolve_function
from broadleaf.serialize.values import PrePickled, dumps, dumps_in_band, loads
from numpy.lib.stride_tricks import as_strided, sliding_window_view

N = 100_000
PART = slice(N // 2 + 3, N // 2 + 1003)
# Names of types, offsets and the like.
BESIDE_BYTES = 4096


class Celsius(pa.ExtensionType):
    """A type of the user's own."""

    def __init__(self):
        super().__init__(pa.float64(), "tests.celsius")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


WHOLES = {
    "integers": pa.array(range(N)),
    "with nulls": pa.array([None if i % 3 else i for i in range(N)]),
    "booleans": pa.array([i % 7 == 0 for i in range(N)]),
    "text": pa.array([f"{i:030d}" for i in range(N)]),
    "large text": pa.array([f"{i:030d}" for i in range(N)], pa.large_string()),
    "views of text": pa.array([f"{i:030d}" for i in range(N)], pa.string_view()),
    "views of bytes": pa.array([b"%030d" % i for i in range(N)], pa.binary_view()),
    "bytes of one length": pa.array([b"%016d" % i for i in range(N)], pa.binary(16)),
    "decimals": pa.array([decimal.Decimal(i) for i in range(N)]),
    "times": pa.array(range(N), pa.timestamp("us", "UTC")),
    "lists": pa.array([[i, 2, 3] for i in range(N)]),
    "views of lists": pa.array([[i, 2, 3] for i in range(N)], pa.list_view(pa.int64())),
    "maps": pa.array([[("k", i)] for i in range(N)], pa.map_(pa.string(), pa.int64())),
    "records": pa.array([{"a": i, "b": "x"} for i in range(N)]),
    "a dictionary": pa.array(["a", "bc"] * (N // 2)).dictionary_encode(),
    "a union": pa.UnionArray.from_sparse(
        pa.array([0, 1] * (N // 2), pa.int8()), [pa.array(range(N)), pa.array(["x"] * N)]
    ),
    "an extension": pa.ExtensionArray.from_storage(Celsius(), pa.array(np.arange(float(N)))),
    "nulls alone": pa.nulls(N),
}


@pytest.fixture(autouse=True, scope="module")
def known():
    pa.register_extension_type(Celsius())
    yield
    pa.unregister_extension_type("tests.celsius")


def sent(value):
    """What arrives, and the number of bytes that were sent."""
    data, buffers = dumps(value)
    n_bytes = len(data) + sum(memoryview(buffer).nbytes for buffer in buffers)
    return loads(data, [bytes(memoryview(buffer).cast("B")) for buffer in buffers]), n_bytes


def containers(array):
    """What holds an array, or several parts of one."""
    table = pa.table({"a": array, "b": array})
    chunks = pa.chunked_array([array.slice(0, N // 3), array.slice(N // 3)])
    yield array
    yield chunks
    yield table
    yield pa.table({"a": chunks})
    yield pa.RecordBatch.from_arrays([array], names=["a"])


@pytest.mark.parametrize("name", WHOLES)
def test_a_part_of_an_arrow_table_takes_only_itself_along(name):
    whole = WHOLES[name]
    for holder in containers(whole):
        part = holder.slice(PART.start, PART.stop - PART.start)
        there, n_bytes = sent(part)
        assert type(there) is type(part)
        assert there.equals(part)
        # Of text that is shared between rows, Arrow does not know how much a part shows: 48 bytes a row here.
        columns = part.num_columns if hasattr(part, "num_columns") else 1
        assert n_bytes < 60 * 1000 * columns + BESIDE_BYTES, (
            f"{type(part).__name__}: {n_bytes} bytes for {len(part)} rows"
        )
        wholly, n_bytes = sent(holder)
        assert wholly.equals(holder)
        assert n_bytes <= holder.nbytes + 2 * BESIDE_BYTES


def test_a_whole_array_is_not_copied():
    buffers = dumps(WHOLES["integers"])[1]
    assert memoryview(buffers[0]).nbytes == 8 * N
    assert np.shares_memory(np.frombuffer(buffers[0], "i8"), WHOLES["integers"].to_numpy())


def test_frames():
    numbers, texts = np.arange(N), [f"{i:030d}" for i in range(N)]
    frames = [
        pd.DataFrame({"k": numbers, "s": texts}),
        pd.DataFrame({"k": pd.array(numbers, dtype="int64[pyarrow]"), "s": pd.array(texts, dtype="string[pyarrow]")}),
        pd.DataFrame({"k": numbers, "s": pd.array(texts, dtype=pd.ArrowDtype(pa.string()))}),
    ]
    for frame in frames:
        for part in (frame.iloc[PART], frame["s"].iloc[PART], frame["k"].iloc[PART]):
            there, n_bytes = sent(part)
            assert there.equals(part)
            assert n_bytes < 60 * 1000 + BESIDE_BYTES
    frame = pl.DataFrame({"k": numbers, "s": texts})
    for part in (frame[PART], frame["s"][PART], frame["k"][PART]):
        there, n_bytes = sent(part)
        assert type(there) is type(part)
        assert there.equals(part)
        assert n_bytes < 60 * 1000 + BESIDE_BYTES
    data, buffers = dumps(frame)
    assert len(data) < BESIDE_BYTES, "its contents are out of band"
    assert loads(data, buffers).equals(frame)


class OfMain:
    """Stands for a class of `__main__`, which is pickled by value."""


OfMain.__module__ = "__main__"


@pytest.mark.parametrize("beside", [None, lambda: None, OfMain()], ids=["by name", "a lambda", "of __main__"])
def test_beside_anything(beside):
    part = pa.table({"a": WHOLES["text"]}).slice(5, 10)
    shown = np.broadcast_to(np.float64(1), (1000, 1000))
    for value in ([part, beside], {"x": (shown, beside)}, [np.zeros(50_000, "M8[s]"), part, shown, beside]):
        assert sent(value)[1] < 50_000 * 8 + 2 * BESIDE_BYTES
    assert len(dumps_in_band([part, shown, beside])) < BESIDE_BYTES
    assert len(pickle.dumps(PrePickled([part, shown, beside]))) < BESIDE_BYTES
    body, _, buffers = resolve_function(lambda: (part, shown, beside))
    assert len(body) + sum(memoryview(buffer).nbytes for buffer in buffers) < 2 * BESIDE_BYTES


REPEATING = {
    "one number": np.broadcast_to(np.float64(3), (300, 1000)),
    "a row": np.broadcast_to(np.arange(1000.0), (300, 1000)),
    "a column": np.broadcast_to(np.arange(300.0)[:, None], (300, 1000)),
    "a column with gaps": np.broadcast_to(np.arange(600.0)[::2, None], (300, 1000)),
    "a column, backwards": np.broadcast_to(np.arange(300.0)[::-1, None], (300, 1000)),
    "part of it": np.broadcast_to(np.arange(1000.0), (300, 1000))[10:200, 5:900],
    "the middle one of three axes": np.broadcast_to(np.arange(500.0).reshape(10, 1, 50), (10, 300, 50)),
    "windows": sliding_window_view(np.arange(5000.0), 50),
    "windows, backwards": sliding_window_view(np.arange(5000.0), 50)[::-1, ::-1],
    "windows with steps": sliding_window_view(np.arange(5000.0), 50)[::7],
    "windows of rows": sliding_window_view(np.arange(5000).reshape(50, 100), (10, 10)),
    "repeated windows": np.broadcast_to(sliding_window_view(np.arange(500), 50), (5, 451, 50)),
    "dates": np.broadcast_to(np.datetime64("2026-01-01"), (300, 1000)),
    "windows of dates": sliding_window_view(np.arange(5000).astype("M8[s]"), 50),
    "records": np.broadcast_to(np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), (3000,)),
    "a field of records": np.broadcast_to(np.zeros(10, dtype=[("a", "i4"), ("b", "f8")])["b"], (1000, 10)),
    "text": np.broadcast_to(np.array(["some text"]), (30_000,)),
    "objects": np.broadcast_to(np.array([{"a": 1}], object), (30_000,)),
    "a field of objects": np.broadcast_to(np.array([(1, None)] * 3, dtype=[("i", "i4"), ("o", "O")])[["o"]], (9999, 3)),
    "that may be written to": as_strided(np.arange(10.0), (300, 10), (0, 8)),
}


@pytest.mark.parametrize("name", REPEATING)
def test_an_array_that_repeats_its_memory(name):
    array = REPEATING[name]
    there, n_bytes = sent(array)
    assert type(there) is np.ndarray
    assert there.dtype == array.dtype
    assert np.array_equal(there, array)
    assert there.nbytes == array.nbytes
    assert [s == 0 for s in there.strides] == [s == 0 for s in array.strides]
    assert not there.flags.writeable or array.flags.writeable
    assert n_bytes < 5000 * 8 + BESIDE_BYTES < array.nbytes or name.startswith(("records", "a field", "that"))
    assert n_bytes < array.nbytes
    again, n_again = sent(there)
    assert np.array_equal(again, array)
    assert n_again <= n_bytes + 64


def test_an_array_with_gaps_takes_its_own_bytes_along():
    whole = np.arange(1_000_000.0).reshape(1000, 1000)
    for part in (whole[::10], whole[:, 5], whole[:, ::3], whole[::-1], whole.T[3:7], whole.astype("M8[s]")[:, 5]):
        there, n_bytes = sent(part)
        assert np.array_equal(there, part)
        assert n_bytes <= part.nbytes + BESIDE_BYTES


def test_a_memoryview_takes_its_own_bytes_along():
    whole = bytes(1_000_000)
    there, n_bytes = sent(memoryview(whole)[5:1005])
    assert there == whole[5:1005]
    assert n_bytes < 1000 + BESIDE_BYTES
