"""Arrays of NumPy as bytes: the same array arrives, whatever its form, and plain ones take the short way."""

import copyreg
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from broadleaf.serialize.picklers import COMPACT_FROM_BYTES, reduce_array
from broadleaf.serialize.values import dumps, dumps_in_band, loads

NAMED = np.dtype("f8", metadata={"unit": "m"})


def two_d(order, dtype="f8"):
    return np.arange(12, dtype=dtype).reshape(3, 4, order=order)


PLAIN = {
    **{dtype: np.ones(5, dtype) for dtype in ("?", "i1", "u2", "i8", "f2", "f4", "g", "c16", ">f8", ">i4")},
    "bytes": np.array([b"a", b"bcd"]),
    "text": np.array(["x", "gr\u00fcn"]),
    "zero-dimensional": np.array(3.5),
    "empty": np.empty((0, 3), "i4"),
    "one of everything": np.ones((1, 1, 1)),
    "Fortran order": two_d("F"),
    "C order": two_d("C"),
    "large": np.arange(10_000.0),
    "large, Fortran order": np.asfortranarray(np.arange(10_000.0).reshape(100, 100)),
}
OTHERS = {
    "objects": np.array([1, "two", None], dtype=object),
    "structured": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "dates": np.array(["2026-01-01"], dtype="M8[D]"),
    "times": np.array([7], dtype="m8[ns]"),
    "void": np.zeros(2, "V3"),
    "text of no length": np.zeros(2, np.dtype("U0")),
    "with gaps": np.arange(10.0)[::2],
    "reversed": two_d("C")[::-1],
    "a named dtype": np.ones(3, NAMED),
    "records": np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "masked": np.ma.masked_array([1, 2], [True, False]),
}


def arrived(value):
    data, buffers = dumps(value)
    return loads(data, [bytearray(memoryview(b).cast("B")) for b in buffers]), data, buffers


@pytest.mark.parametrize("array", [*PLAIN.values(), *OTHERS.values()], ids=[*PLAIN, *OTHERS])
def test_the_same_array_arrives(array):
    there = arrived(array)[0]
    assert type(there) is type(array)
    assert there.dtype == array.dtype
    assert there.shape == array.shape
    assert (there == array).all() or array.dtype.kind == "V"
    assert there.tobytes() == array.tobytes() or array.dtype.hasobject
    assert there.flags.writeable
    if array.flags.c_contiguous or array.flags.f_contiguous:
        assert there.flags.c_contiguous == array.flags.c_contiguous
        assert there.flags.f_contiguous == array.flags.f_contiguous


@pytest.mark.parametrize("array", PLAIN.values(), ids=PLAIN)
def test_plain_arrays_name_nothing_but_their_class(array):
    _, data, buffers = arrived(array)
    assert b"_frombuffer" not in data
    assert b"_reconstruct" not in data
    assert len(buffers) == (array.nbytes >= 4096)


def test_a_dtype_keeps_its_metadata():
    assert arrived(OTHERS["a named dtype"])[0].dtype.metadata == NAMED.metadata


def test_a_user_defined_dtype_is_left_to_numpy():
    # As `float8_e5m2` of ml_dtypes: it calls itself a float, and NumPy does not know its string.
    dtype = SimpleNamespace(kind="f", isbuiltin=2, itemsize=1, metadata=None, hasobject=False, str="<f1")
    array = SimpleNamespace(dtype=dtype, flags=np.ones(2).flags, __reduce_ex__=lambda protocol: ("NumPy's", protocol))
    assert reduce_array(array) == ("NumPy's", 5)


class OfMain:
    """Pickled by value, as what `__main__` defines."""

    def __init__(self, array):
        self.array = array


OfMain.__module__ = "__main__"


@pytest.mark.parametrize("pickled", [dumps, lambda value: (dumps_in_band(value), [])], ids=["out of band", "in band"])
@pytest.mark.parametrize("array", [*PLAIN.values(), *OTHERS.values()], ids=[*PLAIN, *OTHERS])
def test_an_array_that_cannot_be_written_to_arrives_as_one_that_can(array, pickled):
    array = array.copy("K")
    array.flags.writeable = False
    filling = bytes(300_000)  # with which pickles of subclasses are made compact
    for sent in ([array], OfMain(array), [array, filling]):
        data, buffers = pickled(sent)
        found = loads(data, [bytearray(memoryview(b).cast("B")) for b in buffers])
        there = found.array if isinstance(sent, OfMain) else found[0]
        assert there.flags.writeable
        assert there.dtype == array.dtype
        assert there.flags.f_contiguous == array.flags.f_contiguous


def test_one_array_twice_arrives_as_one():
    array = np.arange(5)
    first, (second, other) = arrived([array, (array, array.copy())])[0]
    assert first is second
    assert other is not first


class Registered:
    """Pickled as `copyreg` says, for as long as it says so."""


def test_what_is_registered_later_holds_here_too(monkeypatch):
    dumps(np.ones(2))
    monkeypatch.setitem(copyreg.dispatch_table, Registered, lambda _: (str, ("registered",)))
    assert arrived([Registered(), np.ones(2)])[0][0] == "registered"


def test_nothing_changes_for_the_users_own_pickles():
    dumps(np.ones(2))
    assert np.ndarray not in copyreg.dispatch_table
    assert b"_frombuffer" in pickle.dumps(np.ones(2), 5)


class Counted:
    """Says how often it was pickled."""

    times = 0

    def __reduce__(self):
        Counted.times += 1
        return str, (f"{Counted.times:0100}",)


@pytest.mark.parametrize("shape", [(10_000,), (100, 100)])
def test_objects_of_a_large_array_are_pickled_once(shape, monkeypatch):
    monkeypatch.setattr(Counted, "times", 0)
    array = np.array([Counted() for _ in range(10_000)], object).reshape(shape)
    data, buffers = dumps({"array": array})
    assert len(data) >= COMPACT_FROM_BYTES
    assert Counted.times == array.size
    found = loads(data, buffers)["array"]
    assert (found.dtype, found.shape) == (array.dtype, shape)
    assert [int(text) for text in found.ravel()] == list(range(1, array.size + 1))


def test_other_large_arrays_are_still_sent_out_of_band_beside_objects():
    value = [np.array(["x", None] * 50_000, object), np.arange(100_000).astype("M8[s]")]
    data, buffers = dumps(value)
    assert sum(memoryview(b).nbytes for b in buffers) == value[1].nbytes
    found = loads(data, buffers)
    assert all((a == b).all() for a, b in zip(found, value, strict=True))
