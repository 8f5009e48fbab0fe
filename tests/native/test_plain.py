"""The compact encoding gives back what pickle would, and refuses what it is not meant for."""

import math
import pickle
import struct
from collections import OrderedDict, namedtuple
from collections.abc import Callable
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
leaves = st.none() | st.booleans() | int_64 | finite | st.text() | st.binary() | numbers | ranges
keys = st.none() | st.booleans() | int_64 | finite | st.text() | st.binary() | st.tuples(st.text(), int_64)
plain = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(keys, inner, max_size=5)
        | st.lists(st.fixed_dictionaries({"id": inner, "name": inner}), max_size=5)
    ),
    max_leaves=20,
)


@st.composite
def related(draw: st.DrawFn) -> Any:
    """Values of which many occur several times, also in themselves."""
    values: list[Any] = [draw(leaves) for _ in range(3)]
    open_ended: list[Any] = []
    for _ in range(draw(st.integers(1, 12))):
        some = [draw(st.sampled_from(values)) for _ in range(draw(st.integers(0, 4)))]
        made = draw(
            st.sampled_from(
                [
                    lambda some=some: list(some),
                    lambda some=some: tuple(some),
                    lambda some=some: dict(zip("abcd", some, strict=False)),
                    lambda some=some: dict(zip("dcba", some, strict=False)),
                    lambda some=some: dict(enumerate(some)),
                ]
            )
        )()
        values.append(made)
        if isinstance(made, list):
            open_ended.append(made)
    for made in open_ended:
        if draw(st.booleans()):
            made.append(draw(st.sampled_from(values)))
    return values


def relations(value: Any) -> list[int]:
    """For each object in a value, in the order of a walk, the number of the first place where it is. Numbers and what
    Python has only once say nothing.
    """
    places: dict[int, int] = {}
    found: list[int] = []
    walk = [value]
    while walk:
        one = walk.pop()
        is_single = isinstance(one, str | bytes) and len(one) < 2
        if one is None or one == () or is_single or isinstance(one, int | float):
            continue
        known = id(one) in places
        found.append(places.setdefault(id(one), len(places)))
        if known:
            continue
        if isinstance(one, list | tuple):
            walk.extend(one)
        elif isinstance(one, dict):
            walk.extend(one)
            walk.extend(one.values())
    return found


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
    assert data is not None
    decoded, expected = _native.decode_plain(data), pickle.loads(pickle.dumps(value))
    assert same(decoded, expected)
    assert relations(decoded) == relations(expected)


@given(related())
def test_what_was_one_object_is_one_again(value: Any) -> None:
    data = _native.encode_plain(value)
    expected = pickle.loads(pickle.dumps(value))
    if data is None:
        # A tuple that contains itself.
        assert any(isinstance(one, tuple) for one in value)
        return
    decoded = _native.decode_plain(data)
    assert relations(decoded) == relations(expected)
    # Equal also where neither contains itself; others cannot be compared.
    try:
        assert decoded == expected
    except RecursionError:
        pass


def test_keys_of_rows_are_written_once() -> None:
    rows = [{"identifier": i, "name": str(i)} for i in range(1000)]
    data = _native.encode_plain(rows)
    assert data is not None
    assert data.count(b"identifier") == 1
    decoded = _native.decode_plain(data)
    assert decoded == rows
    assert len({id(key) for row in decoded for key in row}) == 2


def test_rows_of_several_kinds() -> None:
    kinds: list[Callable[[int], Any]] = [
        lambda i: {"a": i, "b": [i]},
        lambda i: {"b": i, "a": {"x": i}},
        lambda i: {"a": i, "c": i},
        lambda i: {},
    ]
    for rows in ([kinds[i % 4](i) for i in range(600)], [{f"k{i}": i, "same": i} for i in range(3000)]):
        data = _native.encode_plain(rows)
        assert data is not None
        decoded = _native.decode_plain(data)
        assert decoded == rows
        assert [list(row) for row in decoded] == [list(row) for row in rows]


def test_values_nested_as_deep_as_it_goes() -> None:
    value: Any = "x"
    for _ in range(64):
        value = [value]
    data = _native.encode_plain(value)
    assert data is not None
    assert _native.decode_plain(data) == value
    assert _native.encode_plain([value]) is None


def test_a_sample_shows_what_is_left_to_pickle() -> None:
    rows: list[Any] = [{"id": i} for i in range(100_000)]
    for position in (0, 50_000, 99_999):
        odd = list(rows)
        odd[position] = {"id": Text("x")}
        assert _native.encode_plain(odd) is None
        assert _native.encode_plain({str(i): row for i, row in enumerate(odd)}) is None
        assert _native.encode_plain(tuple(odd)) is None


def test_not_a_number_keeps_its_kind() -> None:
    data = _native.encode_plain(math.nan)
    assert data is not None
    assert math.isnan(_native.decode_plain(data))


class Colour(IntEnum):
    RED = 1


class Text(str):
    pass


Point = namedtuple("Point", "x y")
own_tuple: Any = ([],)
own_tuple[0].append(own_tuple)
deep: Any = 1
for _ in range(65):
    deep = (deep,)


@pytest.mark.parametrize(
    "value",
    [
        [2**63],
        [1, -(2**63) - 1],
        [Colour.RED],
        [1, Colour.RED],
        [1, Text("x")],
        range(2**63),
        {Text("x"): 1},
        {Colour.RED: 1},
        {frozenset(): 1},
        OrderedDict(x=1),
        {"x": [object()]},
        own_tuple,
        deep,
        bytearray(b"x"),
        Colour.RED,
        Text("x"),
        Point(1, 2),
        2**63,
        -(2**63) - 1,
        "\ud800",
        {"\ud800": 1},
        1j,
        object(),
        {1},
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
    again = _native.encode_plain(value)
    assert again is not None
    assert _native.decode_plain(again) == value or value != value


@given(plain, st.data())
def test_a_cut_encoding_is_refused(value: Any, data: st.DataObject) -> None:
    encoded = _native.encode_plain(value)
    if encoded is None:
        return
    end = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ValueError, match="malformed"):
        _native.decode_plain(encoded[:end])
