"""Classes and functions as programs define them. They are here twice: in this module, and in the `__main__` of the
program `random_cases.py`, which executes the same source.
"""

from __future__ import annotations

import builtins
import collections
import copy
import dataclasses
import enum
import functools
import typing
from typing import Any


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def method(self, x: Any) -> Any:
        return [self, x]

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return [cls.__name__, x]

    @staticmethod
    def static(x: Any) -> Any:
        return (x,)

    def __call__(self, x: Any) -> Any:
        return {"called": x}


class Slots:
    __slots__ = ("__hidden", "a", "unset")

    def __init__(self, a: Any) -> None:
        self.a, self.__hidden = a, "hidden"


class SlotsAndDict(Slots):
    def __init__(self, a: Any) -> None:
        super().__init__(a)
        self.more = [a]


class State:
    """With a state of its own."""

    def __init__(self, a: Any) -> None:
        self.a, self.cache = a, object

    def __getstate__(self) -> Any:
        return ("state", self.a)

    def __setstate__(self, state: Any) -> None:
        self.a, self.cache = state[1], None


class Reduced:
    """Made by a call, with state, items and pairs."""

    def __init__(self, a: Any) -> None:
        self.a = a
        self.items: list[Any] = []
        self.pairs: dict[Any, Any] = {}

    def append(self, item: Any) -> None:
        self.items.append(item)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pairs[key] = value

    def __reduce__(self) -> Any:
        return type(self), (self.a,), {"set": True}, iter(self.items), iter(self.pairs.items())


class NewArguments:
    def __new__(cls, a: Any, *, b: Any) -> Any:
        made = super().__new__(cls)
        made.made_of = (a, b)
        return made

    def __getnewargs_ex__(self) -> Any:
        return (self.made_of[0],), {"b": self.made_of[1]}


@dataclasses.dataclass
class Data:
    x: Any
    y: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class FrozenData:
    x: Any
    y: Any = None


@dataclasses.dataclass(slots=True)
class SlotsData:
    x: Any
    y: Any = None


@dataclasses.dataclass(slots=True, frozen=True)
class FrozenSlotsData:
    x: Any
    y: Any = None


class Generic(typing.Generic[typing.TypeVar("T")]):
    def __init__(self, x: Any) -> None:
        self.x = x


class Colour(enum.Enum):
    RED = "red"
    BLUE = ("blue", 2)


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Flags(enum.Flag):
    A = 1
    B = 2


class Word(enum.StrEnum):
    YES = "yes"


Pair = collections.namedtuple("Pair", "first second")


class TypedPair(typing.NamedTuple):
    first: Any
    second: Any = "default"


class PairWithMethod(collections.namedtuple("PairWithMethod", "first second")):
    __slots__ = ()

    def both(self) -> list[Any]:
        return [*self]


class MyInt(int):
    pass


class MyFloat(float):
    pass


class MyStr(str):
    pass


class MyBytes(bytes):
    pass


class MyBytearray(bytearray):
    pass


class MyTuple(tuple):
    pass


class MyList(list):
    pass


class MyDict(dict):
    pass


class MySet(set):
    pass


class MyFrozenset(frozenset):
    pass


class OwnError(Exception):
    """Passes on all its arguments."""


class OtherArguments(Exception):
    """Made of other arguments than it passes on."""

    def __init__(self, code: Any, reason: Any) -> None:
        super().__init__(f"failed with {type(code).__name__}")
        self.code, self.reason = code, reason


class KeywordError(ValueError):
    def __init__(self, text: str, *, code: Any) -> None:
        super().__init__(text)
        self.code = code


class SlotsError(Exception):
    __slots__ = ("code",)

    def __init__(self, code: Any) -> None:
        super().__init__("slots")
        self.code = code


class ReducedError(Exception):
    def __init__(self, a: Any, b: Any) -> None:
        super().__init__(a, b)
        self.a, self.b = a, b

    def __reduce__(self) -> Any:
        return type(self), (self.a, self.b)


class FileError(OSError):
    def __init__(self, number: int, text: str, name: str, more: Any) -> None:
        super().__init__(number, text, name)
        self.more = more


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class OwnGroup(ExceptionGroup):
    def derive(self, exceptions: Any) -> Any:
        return OwnGroup(self.message, exceptions)


class StateError(Exception):
    def __init__(self, a: Any) -> None:
        super().__init__("state")
        self.a = a

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.loaded = True


def plus(x: Any) -> Any:
    """Something else of most kinds."""
    if isinstance(x, bool) or x is None:
        return not x
    if isinstance(x, int | float | complex):
        return x * 2
    if isinstance(x, str | bytes | bytearray | tuple | list):
        return x + x[:3]
    if isinstance(x, dict):
        return {**x, "added": len(x)}
    return [x]


def changed(x: Any) -> Any:
    """`x`, changed in place where that is possible."""
    if isinstance(x, list):
        x.append("added")
    elif isinstance(x, bytearray):
        x.extend(b"added")
    elif isinstance(x, dict):
        x["added"] = 1
    elif isinstance(x, set):
        x.add("added")
    elif type(x).__name__ in ("ndarray", "memmap", "recarray", "Tagged") and x.ndim and x.size:
        x[...] = x.reshape(-1)[0]
    elif type(x) in (Plain, Data, SlotsAndDict):
        x.__dict__["added"] = 1
    return x


def viewed(x: Any) -> Any:
    """A part or another view of an array or sequence, else `x` itself."""
    kind = type(x).__name__
    if kind in ("ndarray", "memmap", "recarray", "Tagged", "MaskedArray", "matrix"):
        if x.ndim == 0:
            return x[()]
        return [x[::-1], x.T, x[1:], x[..., :1], x[::2]]
    if isinstance(x, str | bytes | tuple | list):
        return [x[::-1], x[1:]]
    return x


def kind_of(x: Any) -> Any:
    """The type of `x`, or its name if it is one that cannot be found by it, as that of an iterator."""
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" and not hasattr(builtins, kind.__name__) else kind


def twice(x: Any) -> Any:
    return [x, x]


def copied(x: Any) -> Any:
    return copy.copy(x)


def counted(function: Any) -> Any:
    """A decorator."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return {"result": function(*args, **kwargs), "name": call.__name__}

    return call
