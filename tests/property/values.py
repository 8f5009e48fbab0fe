"""Random values of all kinds that programs send."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import functools
import io
import ipaddress
import math
import operator
import pathlib
import random
import re
import struct
import sys
import threading
import types
import uuid
import weakref
import zoneinfo
from collections.abc import Callable
from typing import Any

import numpy as np

Make = Callable[["Values"], Any]

#: Sizes in bytes at which something changes on the way, and some others.
LIMITS = (0, 1, 64, 4096, 16_384, 65_536, 262_144, 1 << 20, 4 << 20)
_CHARACTERS = "abc\0\n\"'\\é\xff\u0394\u20ac\ud800\udfff\U0001f600"
_SCALAR_TYPES = ["?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d", "g", "F", "D", "G"]
_DTYPES = [
    *_SCALAR_TYPES,
    ">i4",
    ">f8",
    "<u2",
    ">c16",
    "S1",
    "S7",
    "U1",
    "U5",
    ">U3",
    "M8[ns]",
    "M8[D]",
    "m8[s]",
    "m8",
    ">M8[us]",
    "V3",
    "O",
    "S0",
    "U0",
]


class Tagged(np.ndarray):
    """An array with an attribute, which its pickle has, too."""

    tag: Any = None

    def __array_finalize__(self, other: Any) -> None:
        self.tag = getattr(other, "tag", None)

    def __reduce__(self) -> Any:
        return _tagged, (np.asarray(self), self.tag)


def _tagged(data: Any, tag: Any) -> Any:
    made = data.view(Tagged)
    made.tag = tag
    return made


class Untold(np.ndarray):
    """A subclass that says nothing of pickling."""


class Values:
    """Makes values with a generator of random numbers; `kinds` are the modules of `kinds.py` whose classes are used."""

    def __init__(self, rng: random.Random, kinds: list[Any]) -> None:
        self.rng = rng
        self._kinds = kinds

    @property
    def kinds(self) -> Any:
        """One of the modules."""
        return self.rng.choice(self._kinds)

    def any(self, depth: int = 3) -> Any:
        """A value of any kind."""
        groups = _GROUPS if depth > 0 else _FLAT_GROUPS
        make = self.rng.choice(self.rng.choice(groups))
        self.depth = depth - 1
        return make(self)

    def inner(self) -> Any:
        """A value inside the one that is being made."""
        depth = self.depth
        try:
            return self.any(depth)
        finally:
            self.depth = depth

    def unsendable(self) -> Any:
        """A value that can be sent nowhere, or has one inside."""
        made = self.rng.choice(
            (
                threading.Lock,
                lambda: (i for i in ()),
                lambda: sys._getframe(),
                lambda: weakref.ref(Values),
                lambda: self.kinds.OtherArguments(1, 2),
                lambda: self.kinds.Plain(a=[threading.Lock()]),
            )
        )()
        return self.rng.choice((lambda: made, lambda: [made], lambda: {"a": (made,)}))()

    def hashable(self) -> Any:
        """A value that can be a key."""
        for _ in range(20):
            value = self.inner()
            try:
                hash(value)
                # Some are equal to others by items, and cannot be compared.
                assert isinstance(value == value, bool)
            except Exception:
                continue
            return value
        return self.rng.random()

    def size(self) -> int:
        """A number of bytes: near a limit, or small."""
        if self.rng.random() < 0.75:
            return self.rng.choice((0, 1, 2, 3, 10, 100, 1000))
        limit = self.rng.choice(LIMITS[:-1]) if self.rng.random() < 0.97 else LIMITS[-1]
        return max(0, limit + self.rng.choice((-40, -1, 0, 1, 7)))

    def count(self) -> int:
        """A number of items."""
        return self.rng.choice((0, 1, 1, 2, 2, 3, 4, 7, 20)) if self.rng.random() < 0.98 else 300

    def text(self) -> str:
        n = self.size()
        piece = "".join(self.rng.choices(_CHARACTERS, k=min(n, 17)))
        return (piece * (n // max(1, len(piece)) + 1))[:n]

    def shape(self, dimensions: int | None = None) -> tuple[int, ...]:
        if dimensions is None:
            dimensions = self.rng.choice((0, 1, 1, 1, 2, 2, 3))
        return tuple(self.rng.choice((0, 1, 2, 3, 5)) for _ in range(dimensions))

    def filled(self, dtype: Any, shape: tuple[int, ...]) -> Any:
        """An array of this type, of random bytes where they mean something."""
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            made = np.empty(shape, dtype)
            if dtype.names is None:
                for index in np.ndindex(*shape):
                    made[index] = self.inner()
            return made
        n = int(np.prod(shape)) if shape else 1
        if dtype.kind == "U":
            return np.array(["".join(self.rng.choices("ab\u0394", k=3)) for _ in range(n)], dtype).reshape(shape)
        if dtype.kind == "b":
            return (np.frombuffer(self.rng.randbytes(n), "u1") % 2).astype(bool).reshape(shape)
        if dtype.char in "gG":
            return np.frombuffer(self.rng.randbytes(n), "u1").astype(dtype).reshape(shape)
        data = self.rng.randbytes(n * dtype.itemsize)
        return np.frombuffer(data, dtype, n).reshape(shape).copy() if dtype.itemsize else np.zeros(shape, dtype)


def _number(v: Values) -> int:
    bits = v.rng.choice((1, 7, 8, 15, 16, 31, 32, 33, 53, 62, 63, 64, 65, 127, 128, 2000, 2040, 100_000))
    return v.rng.choice((1, -1)) * ((1 << bits) + v.rng.choice((-2, -1, 0, 1)))


def _float(v: Values) -> float:
    special = (0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 5e-324, 1.7976931348623157e308)
    return v.rng.choice((*special, v.rng.random(), struct.unpack("d", v.rng.randbytes(8))[0]))


def _shared(v: Values) -> Any:
    value = v.inner()
    return [value, v.inner(), value, {"again": value}]


def _many_same(v: Values) -> Any:
    return [v.inner()] * v.rng.choice((2, 3, 100) if v.depth <= 0 else (2, 3))


def _recursive_list(v: Values) -> Any:
    made: list[Any] = [v.inner()]
    made.append(made)
    return made


def _recursive_dict(v: Values) -> Any:
    made: dict[Any, Any] = {"a": v.inner()}
    made["self"] = [made]
    return made


def _recursive_object(v: Values) -> Any:
    made = v.kinds.Plain(a=v.inner())
    made.me, made.tuple = made, (made,)
    return made


def _recursive_tuple(v: Values) -> Any:
    inner: list[Any] = []
    made = (inner, v.inner())
    inner.append(made)
    return made


def _deep(v: Values) -> Any:
    made: Any = v.inner()
    for _ in range(v.rng.choice((5, 20, 60))):
        made = v.rng.choice((lambda x: [x], lambda x: (x,), lambda x: {"a": x}))(made)
    return made


def _dict(v: Values) -> Any:
    made: dict[Any, Any] = {}
    for _ in range(v.count()):
        made[v.hashable()] = v.inner()
    return made


def _records(v: Values) -> Any:
    """Dictionaries with the same keys, as of a table."""
    names = [v.text()[:10] for _ in range(3)]
    return [
        {name: v.rng.choice((i, float(i), str(i), None)) for name in names} for i in range(v.rng.choice((2, 50, 400)))
    ]


def _json(v: Values) -> Any:
    """What JSON could say, in which some parts occur several times."""
    whole = v.rng.choice((7, 1 << 40, -(1 << 63)))
    parts: list[Any] = [None, True, whole, _float(v), v.text()[:20], v.rng.randbytes(3)]
    # A text of it, as an exception has one of its arguments, writes out parts of parts of parts, and fills the memory.
    n_texts = [1] * len(parts)
    for _ in range(v.rng.choice((3, 10, 40))):
        chosen = v.rng.choices(range(len(parts)), k=v.rng.choice((0, 1, 3, 300)))
        while sum(n_texts[i] for i in chosen) > 100_000:
            chosen = chosen[: len(chosen) // 2]
        n_texts.append(1 + sum(n_texts[i] for i in chosen))
        some = [parts[i] for i in chosen]
        names = v.rng.choice((("a", "b", "c"), ("a", "c", "b"), (1, "x", (2, "y"))))
        parts.append(v.rng.choice((some, tuple(some), dict(zip(names, some, strict=False)))))
    return parts[6:]


def _counter(v: Values) -> Any:
    return collections.Counter(v.text()[:30])


def _default_dict(v: Values) -> Any:
    made: Any = collections.defaultdict(v.rng.choice((list, int, None)))
    made["a"] = v.inner()
    return made


def _ordered_dict(v: Values) -> Any:
    made = collections.OrderedDict((i, v.inner()) for i in range(3))
    made.move_to_end(0)
    return made


def _time_zone(v: Values) -> Any:
    return v.rng.choice(
        (
            None,
            datetime.UTC,
            datetime.timezone(datetime.timedelta(hours=-3, minutes=7), "odd"),
            zoneinfo.ZoneInfo("UTC"),
        )
    )


def _time(v: Values) -> Any:
    moment = datetime.datetime(
        v.rng.randint(1, 9999),
        v.rng.randint(1, 12),
        v.rng.randint(1, 28),
        23,
        59,
        58,
        v.rng.randrange(10**6),
        _time_zone(v),
        fold=v.rng.randint(0, 1),
    )
    difference = datetime.timedelta(v.rng.randint(-9999, 9999), 5, 7)
    return v.rng.choice((moment, moment.date(), moment.time(), moment.timetz(), difference))


def _decimal(v: Values) -> Any:
    return decimal.Decimal(v.rng.choice(("0", "-0", "1.10", "NaN", "sNaN", "-Infinity", "1E+400", "3." + "14" * 50)))


def _instance(v: Values) -> Any:
    kinds = v.kinds
    make = v.rng.choice(
        (
            lambda: kinds.Plain(a=v.inner(), b=v.inner()),
            lambda: kinds.Plain(),
            lambda: kinds.Slots(v.inner()),
            lambda: kinds.SlotsAndDict(v.inner()),
            lambda: kinds.State(v.inner()),
            lambda: kinds.NewArguments(v.inner(), b=v.inner()),
            lambda: kinds.Data(v.inner(), [v.inner()]),
            lambda: kinds.FrozenData(v.inner(), v.inner()),
            lambda: kinds.SlotsData(v.inner()),
            lambda: kinds.FrozenSlotsData(v.inner(), v.inner()),
            lambda: kinds.Generic(v.inner()),
            lambda: kinds.Pair(v.inner(), v.inner()),
            lambda: kinds.TypedPair(v.inner()),
            lambda: kinds.PairWithMethod(v.inner(), v.inner()),
        )
    )
    return make()


def _reduced(v: Values) -> Any:
    made = v.kinds.Reduced(v.inner())
    made.append(v.inner())
    made["key"] = v.inner()
    return made


def _of_builtin(v: Values) -> Any:
    kinds = v.kinds
    kind, value = v.rng.choice(
        (
            (kinds.MyInt, 5),
            (kinds.MyInt, 1 << 70),
            (kinds.MyFloat, 2.5),
            (kinds.MyStr, "text"),
            (kinds.MyBytes, b"bytes"),
            (kinds.MyBytearray, b"ba"),
            (kinds.MyTuple, (1, [2])),
            (kinds.MyList, [1, [2]]),
            (kinds.MyDict, {"a": [1]}),
            (kinds.MySet, {1, 2}),
            (kinds.MyFrozenset, {1, "2"}),
        )
    )
    made = kind(value)
    if v.rng.random() < 0.5:
        made.tag = v.inner()
    return made


def _enum(v: Values) -> Any:
    kinds = v.kinds
    return v.rng.choice(
        (
            *kinds.Colour,
            *kinds.Number,
            kinds.Flags.A | kinds.Flags.B,
            kinds.Flags(0),
            kinds.Word.YES,
            re.IGNORECASE,
            kinds.Colour,
        )
    )


def _class_or_function(v: Values) -> Any:
    kinds = v.kinds
    return v.rng.choice(
        (
            kinds.Plain,
            kinds.Slots,
            kinds.Data,
            kinds.Pair,
            kinds.Colour,
            kinds.OwnError,
            kinds.plus,
            kinds.Plain.method,
            kinds.Plain.static,
            kinds.Plain.of_class,
            int,
            list,
            type,
            len,
            math.sqrt,
            str.join,
            [].append,
            type(None),
            types.FunctionType,
            np.add,
            np.float64,
            np.dtype,
            np.zeros,
            datetime.datetime.now,
            list[int],
            dict[str, int] | None,
        )
    )


def _callable(v: Values) -> Any:
    kinds, n = v.kinds, v.inner()
    return v.rng.choice(
        (
            lambda: lambda x: (x, n),
            lambda: functools.partial(kinds.plus, n),
            lambda: functools.partial(kinds.twice),
            lambda: kinds.Plain(a=n).method,
            lambda: operator.itemgetter(0, "a"),
            lambda: operator.attrgetter("a.b", "c"),
            lambda: operator.methodcaller("index", 1, x=2),
        )
    )()


def _standard(v: Values) -> Any:
    return v.rng.choice(
        (
            lambda: range(v.rng.randint(-5, 5), 10**30, 3),
            lambda: slice(v.rng.randint(-5, 5), None, None),
            lambda: fractions.Fraction(_number(v), 7),
            lambda: uuid.UUID(int=v.rng.randrange(1 << 128)),
            lambda: pathlib.PurePosixPath("/a/b"),
            lambda: pathlib.Path("a"),
            lambda: re.compile("a(.)", re.DOTALL),
            lambda: re.compile(b"[ab]"),
            lambda: ipaddress.ip_address("10.0.0.1"),
            lambda: ipaddress.ip_network("fe80::/64"),
            lambda: array.array("d", [1.0, math.nan]),
            lambda: array.array("q", range(v.size() // 8)),
            lambda: collections.deque([v.inner(), 2], v.rng.choice((None, 2, 5))),
            lambda: collections.ChainMap({"a": v.inner()}, {"b": 1}),
            lambda: types.SimpleNamespace(a=v.inner()),
            lambda: types.MappingProxyType({"a": v.inner()}),
            lambda: zoneinfo.ZoneInfo("UTC"),
            lambda: memoryview(v.rng.randbytes(v.size())),
            lambda: io.BytesIO(b"abc"),
            lambda: io.StringIO("abc"),
            lambda: iter([1, 2, 3]),
            lambda: random.Random(v.rng.randrange(100)),
            lambda: {"a": 1}.keys(),
            lambda: Ellipsis,
            lambda: NotImplemented,
        )
    )()


def _error(v: Values) -> Any:
    kinds = v.kinds
    error = error_of(v, kinds)
    if v.rng.random() < 0.3:
        error.add_note("a note")
    return error


def error_of(v: Values, kinds: Any) -> BaseException:
    """An exception of any kind."""
    n = v.inner()
    makes: tuple[Callable[[], BaseException], ...] = (
        lambda: ValueError(n),
        lambda: ValueError(),
        lambda: KeyError(n),
        lambda: IndexError("a", n),
        lambda: RuntimeError(v.text()),
        lambda: OSError(2, "none", "file"),
        lambda: OSError(13, "no", "a", None, "b"),
        lambda: FileNotFoundError("just text"),
        lambda: UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "bad"),
        lambda: UnicodeEncodeError("ascii", "é", 0, 1, "bad"),
        lambda: ImportError("no", name="nosuch", path="/nowhere"),
        lambda: ModuleNotFoundError("no", name="nosuch"),
        lambda: AttributeError("no attribute", name="nosuch", obj=None),
        lambda: NameError("no name", name="nosuch"),
        lambda: SyntaxError("bad", ("file.py", 1, 2, "x = (", 1, 3)),
        lambda: StopIteration(n),
        lambda: ZeroDivisionError("division by zero"),
        lambda: TimeoutError("late"),
        lambda: AssertionError(n),
        lambda: UserWarning("careful"),
        lambda: kinds.OwnError(n, v.inner()),
        lambda: kinds.OwnError(),
        lambda: kinds.OtherArguments(n, "reason"),
        lambda: kinds.KeywordError("text", code=n),
        lambda: kinds.SlotsError(n),
        lambda: kinds.ReducedError(n, 2),
        lambda: kinds.FileError(2, "none", "file", n),
        lambda: kinds.NoText(n),
        lambda: kinds.StateError(n),
        lambda: ExceptionGroup("several", [error_of(v, kinds), kinds.OwnError(n)]),
        lambda: kinds.OwnGroup("own", [ExceptionGroup("inner", [error_of(v, kinds)]), TypeError("t")]),
        lambda: np.linalg.LinAlgError("singular"),
        lambda: decimal.InvalidOperation([decimal.DivisionByZero]),
    )
    error = v.rng.choice(makes)()
    if v.rng.random() < 0.3 and not isinstance(error, BaseExceptionGroup):
        error.attribute = v.inner()  # type: ignore[attr-defined]
    return error


# NumPy ------------------------------------------------------------------------------------------


def _array(v: Values) -> Any:
    dtype = v.rng.choice(_DTYPES)
    return _laid_out(v, v.filled(dtype, v.shape()))


def _laid_out(v: Values, made: Any) -> Any:
    """The array in some order of memory."""
    way = v.rng.randrange(8)
    if way == 0:
        return np.asfortranarray(made)
    if way == 1:
        return made.T
    if way == 2 and made.ndim:
        return np.concatenate([made, made])[::2]
    if way == 3 and made.ndim:
        return made[::-1]
    if way == 4:
        made.flags.writeable = False
        return made
    if way == 5 and made.ndim:
        return np.broadcast_to(made, (3, *made.shape))
    if way == 6 and made.ndim >= 2:
        return made.swapaxes(0, -1)[..., :1]
    return made


def _sized_array(v: Values) -> Any:
    n = v.size()
    dtype = np.dtype(v.rng.choice(("u1", "f8", "i4", "M8[s]", "c16", "S3", ">i8", "f2", "?")))
    count = n // dtype.itemsize
    made = v.filled(dtype, (count,))
    if v.rng.random() < 0.3 and count % 4 == 0:
        made = made.reshape(4, -1)
    return _laid_out(v, made)


def _structured(v: Values) -> Any:
    dtype = v.rng.choice(
        (
            np.dtype([("a", "i4"), ("b", "f8", (2,)), ("c", "S3")]),
            np.dtype([("a", "i1"), ("b", "f8")], align=True),
            np.dtype({"names": ["x", "y"], "formats": ["i2", "f4"], "offsets": [8, 0], "itemsize": 24}),
            np.dtype([(("title", "name"), "u2"), ("inner", [("p", "i1"), ("q", ">i4")])]),
            np.dtype([("o", "O"), ("i", "i4")]),
            np.dtype("i4", metadata={"unit": "m"}),
            np.dtype([("e", "i4", (0,)), ("d", "M8[s]")]),
        )
    )
    if v.rng.random() < 0.2:
        return dtype
    made = _laid_out(v, v.filled(dtype, v.shape()))
    if dtype.names and v.rng.random() < 0.3 and made.ndim:
        return v.rng.choice((lambda: made.view(np.recarray), lambda: made[[dtype.names[0]]], lambda: made[:1]))()
    if dtype.names and made.size and v.rng.random() < 0.3:
        return made.reshape(-1)[0]
    return made


def _masked(v: Values) -> Any:
    data = v.filled(v.rng.choice(("f8", "i4", "M8[D]", "?", "U3")), v.shape())
    mask = v.rng.choice((False, np.ma.nomask, v.filled("?", data.shape)))
    made = np.ma.array(data, mask=mask, hard_mask=v.rng.random() < 0.3)
    return v.rng.choice(
        (lambda: made, lambda: made[::2] if made.ndim else made, lambda: np.ma.masked, lambda: made.T)
    )()


def _subclass(v: Values) -> Any:
    n = v.size() // 8
    data = v.filled("f8", (n,))

    def tagged() -> Any:
        made = data.view(Tagged)
        made.tag = v.inner()
        return made

    return v.rng.choice(
        (
            tagged,
            lambda: data.view(Untold),
            lambda: np.matrix(v.filled("i4", (2, 3))),
            lambda: np.char.array(["a", "bb"]),
            lambda: data[::2].view(Untold),
        )
    )()


def _scalar(v: Values) -> Any:
    dtype = np.dtype(v.rng.choice([d for d in _DTYPES if d not in ("O", "S0", "U0", "m8", "V3")]))
    return v.filled(dtype, (1,))[0]


def _numpy_other(v: Values) -> Any:
    return v.rng.choice(
        (
            lambda: np.dtype(v.rng.choice(_DTYPES)),
            lambda: np.datetime64("NaT"),
            lambda: np.timedelta64(5, "h"),
            lambda: np.random.default_rng(v.rng.randrange(100)).bit_generator.state,
            lambda: np.random.RandomState(1).get_state(),
            lambda: np.poly1d([1, 2, 3]),
            lambda: np.void(b"abc"),
            lambda: np.array(["a", "long text"], np.dtypes.StringDType()),
            lambda: np.array([None, "a"], object),
            lambda: np.array(5, object),
        )
    )()


def _many_arrays(v: Values) -> Any:
    if v.rng.random() < 0.9:
        return [v.filled("f8", (v.rng.choice((1, 600, 2500)),)) for _ in range(v.rng.choice((2, 5, 70)))]
    return [v.filled("u1", (v.rng.choice((8, 5000)),)) for _ in range(v.rng.choice((300, 1000, 2000)))]


def _same_array(v: Values) -> Any:
    made = v.filled("f8", (v.size() // 8,))
    return {"a": made, "b": made, "view": made[1:], "list": [made]}


# SciPy and pandas -------------------------------------------------------------------------------


def _sparse(v: Values) -> Any:
    from scipy import sparse

    rows, columns = v.rng.choice((1, 3, 40)), v.rng.choice((1, 4, 500))
    dense = np.where(v.filled("u1", (rows, columns)) < 80, v.filled("u2", (rows, columns)), 0).astype(
        v.rng.choice(("f8", "i4"))
    )
    kind = v.rng.choice(
        (
            sparse.csr_matrix,
            sparse.csc_matrix,
            sparse.coo_matrix,
            sparse.lil_matrix,
            sparse.dok_matrix,
            sparse.dia_matrix,
            sparse.csr_array,
            sparse.coo_array,
            sparse.csc_array,
        )
    )
    return kind(dense)


def _index(v: Values, n: int) -> Any:
    import pandas as pd

    return v.rng.choice(
        (
            lambda: pd.RangeIndex(n, name="r"),
            lambda: pd.Index([f"k{i}" for i in range(n)]),
            lambda: pd.date_range("2020-01-01", periods=n, freq="h", tz=v.rng.choice((None, "UTC"))),
            lambda: pd.MultiIndex.from_arrays([["a"] * n, range(n)], names=["l", None]),
            lambda: pd.CategoricalIndex(["x"] * n, categories=["y", "x"], ordered=True),
            lambda: pd.interval_range(0, n),
            lambda: pd.Index(range(n), dtype="float64"),
        )
    )()


def _series(v: Values, n: int, index: Any) -> Any:
    import pandas as pd

    return v.rng.choice(
        (
            lambda: pd.Series(v.filled("f8", (n,)), index, name="s"),
            lambda: pd.Series(range(n), index, dtype="Int64"),
            lambda: pd.Series(["a", None, "b", "c"] * n, dtype="category")[:n].set_axis(index),
            lambda: pd.Series([f"text {i}" for i in range(n)], index),
            lambda: pd.Series([[i] for i in range(n)], index, dtype=object),
            lambda: pd.Series(pd.date_range("2020", periods=n, tz="UTC"), index),
            lambda: pd.Series([None, True, False, None] * n, dtype="boolean")[:n].set_axis(index),
            lambda: pd.Series(pd.arrays.SparseArray([0, 0, 1, 2] * n))[:n].set_axis(index),
            lambda: pd.Series(pd.timedelta_range("1h", periods=n), index),
        )
    )()


def _pandas(v: Values) -> Any:
    import pandas as pd

    n = v.rng.choice((0, 1, 3, 4, 50, 600))
    index = _index(v, n)

    def frame() -> Any:
        made = pd.DataFrame({f"c{i}": _series(v, n, index) for i in range(v.rng.choice((1, 2, 5)))}, index=index)
        made.attrs["unit"] = "m"
        if v.rng.random() < 0.2:
            return made[::2]
        if v.rng.random() < 0.2:
            return made.copy().set_axis(pd.MultiIndex.from_product([["top"], made.columns]), axis=1)
        return made

    return v.rng.choice(
        (
            frame,
            frame,
            lambda: _series(v, n, index),
            lambda: index,
            lambda: pd.Timestamp("2020-01-01", tz="UTC"),
            lambda: pd.NaT,
            lambda: pd.NA,
            lambda: pd.Categorical(["a", "b", None]),
            lambda: pd.Interval(0, 1),
            lambda: pd.Timedelta(5, "s"),
            lambda: pd.Period("2020-01", "M"),
            lambda: pd.DataFrame(v.filled("f4", (v.size() // 16, 4))),
        )
    )()


_BASIC: list[Make] = [
    lambda v: None,
    lambda v: v.rng.random() < 0.5,
    _number,
    lambda v: v.rng.randint(-300, 300),
    _float,
    lambda v: complex(_float(v), _float(v)),
    Values.text,
    lambda v: v.rng.randbytes(v.size()),
    lambda v: bytearray(v.rng.randbytes(v.size())),
]
_CONTAINERS: list[Make] = [
    lambda v: [v.inner() for _ in range(v.count())],
    lambda v: tuple(v.inner() for _ in range(v.count())),
    _dict,
    lambda v: {v.hashable() for _ in range(v.count())},
    lambda v: frozenset(v.hashable() for _ in range(v.count())),
    lambda v: [v.rng.choice((1, 2.5, "a", None, True))] * min(v.size(), 17_000),
    lambda v: list(range(min(v.size(), 17_000))),
    _records,
    _json,
    _json,
    _counter,
    _default_dict,
    _ordered_dict,
]
_RELATED: list[Make] = [
    _shared,
    _many_same,
    _recursive_list,
    _recursive_dict,
    _recursive_object,
    _recursive_tuple,
    _deep,
]
_STANDARD: list[Make] = [_standard, _standard, _time, _decimal]
_OBJECTS: list[Make] = [_instance, _instance, _reduced, _of_builtin, _enum, _class_or_function, _callable, _error]
_NUMPY: list[Make] = [
    _array,
    _array,
    _sized_array,
    _structured,
    _masked,
    _subclass,
    _scalar,
    _numpy_other,
    _many_arrays,
    _same_array,
]
_TABLES: list[Make] = [_sparse, _pandas, _pandas]
_GROUPS: list[list[Make]] = [_BASIC, _CONTAINERS, _RELATED, _STANDARD, _OBJECTS, _NUMPY, _TABLES]
_FLAT_GROUPS: list[list[Make]] = [_BASIC, _BASIC, _STANDARD, [_enum, _of_builtin], [_scalar, _sized_array]]
