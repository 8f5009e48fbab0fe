"""Classes of a script, as they are here: with their slots and without what was deleted."""

import threading

import broadleaf as ipp
import pytest
from script_routes import ROUTES, script

SOURCE = """
import collections, dataclasses

class Private:
    __slots__ = ("a", "__hidden")

    def __init__(self):
        self.a, self.__hidden = 1, 2

    def both(self):
        return self.a, self.__hidden

class Documented(Private):
    __slots__ = {"b": "what b is"}

    def __init__(self):
        super().__init__()
        self.b = 3

class Text:
    __slots__ = "only"

class UsedUp:
    __slots__ = (name for name in ("p", "q"))

class WithDict(Private):
    pass

@dataclasses.dataclass(slots=True)
class Data:
    x: int

@dataclasses.dataclass(slots=True, frozen=True, weakref_slot=True)
class Frozen:
    x: int
    y: list = dataclasses.field(default_factory=list)

class Pair(collections.namedtuple("Pair", "a b")):
    __slots__ = ()

class Outer:
    class Inner:
        __slots__ = ("x",)

def make(kind):
    made = globals()[kind]
    if kind in ("Private", "Documented", "WithDict"):
        value = made()
        if kind == "WithDict":
            value.more = 4
    elif kind == "Text":
        value = made()
        value.only = 5
    elif kind == "Pair":
        value = made(1, 2)
    else:
        value = made(6)
    # Names them, so that they are sent.
    Private, Documented, Text, UsedUp, WithDict, Data, Frozen, Pair
    return value

def contents(value):
    names = [n for c in type(value).__mro__ for n in getattr(c, "__slots__", ()) if isinstance(c.__slots__, tuple)]
    both = value.both() if isinstance(value, Private) else None
    parts = [getattr(value, n, None) for n in ("a", "b", "only", "more", "x", "y")]
    try:
        value.nosuch = 1
    except (AttributeError, TypeError):
        parts.append("closed")
    return both, parts, names, type(value).__qualname__, Private, Documented, Text, UsedUp
"""
KINDS = ["Private", "Documented", "Text", "WithDict", "Data", "Frozen", "Pair"]


@pytest.mark.parametrize("kind", KINDS)
def test_objects_with_slots_come_and_go(rc, kind):
    names = script(SOURCE)
    here = names["contents"](names["make"](kind))
    for route in ROUTES.values():
        made = route(rc, names["make"], kind)
        assert type(made) is names[kind]
        # The same parts; where it is closed to other names here, it is there.
        assert route(rc, names["contents"], names["make"](kind))[:4] == here[:4]
        assert names["contents"](made)[:4] == here[:4]
    rc[0].push({"value": names["make"](kind)}, block=True)
    assert type(rc[0]["value"]) is names[kind]
    assert names["contents"](rc[0]["value"])[:4] == here[:4]


def test_a_class_as_the_function(rc):
    names = script(SOURCE)
    assert rc.load_balanced_view().map_sync(names["Data"], range(2)) == [names["Data"](0), names["Data"](1)]
    assert list(rc.executor().map(names["Data"], range(2))) == [names["Data"](0), names["Data"](1)]
    assert rc[0].apply_sync(lambda c: c.__qualname__, names["Outer"].Inner) == "Outer.Inner"


OF_TYPING = """
import typing

class Typed(typing.NamedTuple):
    a: int
    b: str = "default"

    def both(self):
        return [self.a, self.b]

T = typing.TypeVar("T")

class TypedGeneric(Typed, typing.Generic[T]):
    pass

class Options(typing.TypedDict, total=False):
    name: str

class Sized(typing.Protocol):
    size: int

class Impl(Sized):
    size = 3

def see(value):
    copy = Typed(7)
    options: Options = {"name": "n"}
    made = value.both(), value._fields, copy, copy._replace(b="c"), TypedGeneric[int](1)
    return *made, options, Options.__total__, Impl().size
"""


def test_classes_that_typing_makes(rc):
    names = script(OF_TYPING)
    for kind in ("Typed", "TypedGeneric"):
        value = names[kind](1, "two")
        here = names["see"](value)
        for route in ROUTES.values():
            there = route(rc, names["see"], value)
            assert there == here
            assert [type(one) for one in there] == [type(one) for one in here]
        rc[0].push({"value": value}, block=True)
        assert type(rc[0]["value"]) is names[kind]


def test_a_class_that_comes_back_is_unchanged(rc):
    names = script(
        "class C:\n    n = 1\n    def get(self): return a\na = 5\ndef make(_):\n    C.n = 2\n    return C()\n"
    )
    get = names["C"].get
    made = rc[0].apply_sync(names["make"], 0)
    assert type(made) is names["C"]
    assert names["C"].n == 1
    assert names["C"].get is get
    names["a"] = 6
    assert made.get() == 6


def test_changes_of_a_class_are_sent(rc):
    names = script(
        "class C:\n    x, y = 1, 2\n\ndef see(_): return getattr(C, 'x', None), C.y, getattr(C, 'z', None)\n"
    )
    for route in ROUTES.values():
        assert route(rc, names["see"], 0) == (1, 2, None)
        del names["C"].x
        assert route(rc, names["see"], 0) == (None, 2, None)
        names["C"].x, names["C"].z = 7, 8
        assert route(rc, names["see"], 0) == (7, 2, 8)
        names["C"].x = 1
        del names["C"].z
        assert route(rc, names["see"], 0) == (1, 2, None)


@pytest.mark.parametrize("route", ROUTES)
def test_compiled_types_under_other_names_than_their_own(rc, route):
    """Python's own pickle finds no `_thread.lock`, and no copy could be made of it."""
    kinds = [type(threading.Lock()), type(iter([])), type({}.keys()), type(lambda: None)]
    names = script("def f(kinds): return kinds, [kind.__name__ for kind in kinds]")
    returned, there = ROUTES[route](rc, names["f"], kinds)
    assert all(kind is back for kind, back in zip(kinds, returned, strict=True))
    assert there == [kind.__name__ for kind in kinds]


def test_a_compiled_type_that_no_name_leads_to(rc):
    with pytest.raises(ipp.SerializationError, match=r"callable_iterator.*no name leads to"):
        rc[0].apply_sync(abs, type(iter(abs, 1)))
