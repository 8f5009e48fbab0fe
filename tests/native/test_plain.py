"""The compact encoding gives back what pickle would, and refuses what it is not meant for."""

import math
import pickle
import struct
from collections import OrderedDict, namedtuple
from enum import IntEnum
from typing import Any

import pytest
from broadleaf import _native
from hypothesis import given
from hypothesis import strategies as st

int_64 = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(allow_nan=False)
numbers = st.one_of([st.lists(kind, max_size=20) for kind in (st.none(), st.booleans(), finite)]) | st.sampled_from(
    [8, 16, 32, 64]
).flatmap(lambda bits: st.lists(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), max_size=20))
ranges = st.builds(range, int_64, int_64, int_64.filter(bool))
plain = st.recursive(
    st.none() | st.booleans() | int_64 | finite | st.text() | st.binary() | numbers | ranges,
    lambda inner: st.lists(inner, max_size=5).map(tuple) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def depth(value: Any) -> int:
    """How deep tuples and dicts are nested in it."""
    if not isinstance(value, tuple | dict):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0)


def same(a: Any, b: Any) -> bool:
    """Equal in value and in the exact type of every part."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values()))
    if isinstance(a, range):
        return (a.start, a.stop, a.step) == (b.start, b.stop, b.step)
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return bool(a == b)


@given(plain)
def test_round_trip_equals_pickle(value: Any) -> None:
    data = _native.encode_plain(value)
    if data is None:  # nested deeper than the encoding goes
        assert depth(value) > 8
        return
    assert same(_native.decode_plain(data), pickle.loads(pickle.dumps(value)))


def test_not_a_number_keeps_its_kind() -> None:
    data = _native.encode_plain(math.nan)
    assert data is not None
    assert math.isnan(_native.decode_plain(data))


class Colour(IntEnum):
    RED = 1


class Text(str):
    pass


Point = namedtuple("Point", "x y")
twice = {"x": 1}
twice_listed = [1, 2]
endless: dict[str, Any] = {}
endless["x"] = endless


@pytest.mark.parametrize(
    "value",
    [
        ["x"],
        [1, 2.0],
        [1, True],
        [True, 1],
        [None, 0],
        [1.5, None],
        [2**63],
        [1, -(2**63) - 1],
        [Colour.RED],
        [[1]],
        [0] * (64 * 1024 + 1),
        (twice_listed, twice_listed),
        range(2**63),
        {1: 2},
        {Text("x"): 1},
        OrderedDict(x=1),
        {"x": [()]},
        (twice, twice),
        tuple({} for _ in range(33)),
        endless,
        tuple(["x" * 16_000] * 100),
        {str(n): "x" * 16_000 for n in range(100)},
        bytearray(b"x"),
        Colour.RED,
        Text("x"),
        Point(1, 2),
        2**63,
        -(2**63) - 1,
        "\ud800",
        1j,
        object(),
        ("a", [b"x"]),
        memoryview(b"x"),
        "x" * 20_000,
    ],
)
def test_what_it_is_not_meant_for_is_refused(value: Any) -> None:
    assert _native.encode_plain(value) is None


@given(st.binary(max_size=64))
def test_random_bytes_never_harm(data: bytes) -> None:
    try:
        value = _native.decode_plain(data)
    except ValueError:
        return
    assert _native.decode_plain(_native.encode_plain(value)) == value or value != value


@given(plain, st.data())
def test_a_cut_encoding_is_refused(value: Any, data: st.DataObject) -> None:
    encoded = _native.encode_plain(value)
    if encoded is None:
        return
    end = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ValueError, match="malformed"):
        _native.decode_plain(encoded[:end])
