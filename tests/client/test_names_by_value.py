"""What names `__main__` in a pickle, and what only contains its name as text."""

import collections
import datetime
import functools
import pickle
import re
import sys
import types
import typing

import numpy as np
import pytest
from broadleaf.serialize.picklers import dumps_by_name
from broadleaf.serialize.unfindable import names_by_value
from broadleaf.serialize.values import loads

SOURCE = """
import dataclasses, enum, typing
class Plain: pass
class Kind(enum.Enum): A = 1
@dataclasses.dataclass
class Record: x: int = 1
def function(): pass
class Callable:
    def __call__(self): pass
    def method(self): pass
T = typing.TypeVar("T")
"""


@pytest.fixture
def main(monkeypatch):
    """The module `__main__`, with these definitions."""
    module = sys.modules["__main__"]
    names = {"__name__": "__main__"}
    exec(SOURCE, names)
    for name, value in names.items():
        if not name.startswith("__"):
            monkeypatch.setattr(module, name, value, raising=False)
    return module


def test_what_is_of_main(main):
    values = [main.Plain, main.Plain(), main.Kind.A, main.Record(), main.function, main.Callable().method, main.T]
    values += [[1, {"k": (main.Plain(),)}], functools.partial(main.function), collections.OrderedDict(a=main.Kind.A)]
    values += [("__main__", main.Plain), {"__main__": main.function}, np.array([main.Plain()], object)]
    for value in values:
        data = pickle.dumps(value, 5)
        assert names_by_value(data, data), value


def test_what_only_holds_the_text():
    filters = [
        ("default", None, DeprecationWarning, "__main__", 0),
        ("ignore", re.compile("__main__"), Warning, None, 0),
    ]
    values = [
        "__main__",
        b"__main__",
        filters,
        {"__main__": np.arange(10)},
        [typing.Any, "__main__"],
        (len, "__main__"),
        collections.OrderedDict(a="__main__"),
        collections.defaultdict(list, a=["__main__"]),
        collections.deque(["__main__"], 3),
        collections.Counter(["__main__"]),
        {datetime.timedelta(1): {"__main__"}, frozenset({1}): datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)},
        [functools.partial(int, base=2), np.float64(1.0), np.array(["__main__"], object), "".join, "__main__"],
        LookupError("__main__"),
        types.SimpleNamespace(text="__main__"),
    ]
    for value in values:
        data = pickle.dumps(value, 5)
        assert b"__main__" in data
        assert not names_by_value(data, data), value


def test_names_are_not_sought_in_long_text_and_bytes(main):
    n = 64 * 1024
    long = ["__main__" * n, b"__main__" * n, bytearray(b"__main__" * n), pickle.PickleBuffer(b"__main__" * n)]
    for value, is_named in [
        ([*long, np.zeros(2), {"x": long}], False),
        ([*long, {"x": [main.Plain]}], True),
        # Long bytes that begin like a frame.
        ([b"\x95" + bytes(n), main.Plain(), "x" * 2 * n], True),
    ]:
        # All in band.
        data, names = dumps_by_name(value, lambda buffer: True)
        assert len(names) < len(data) / 2
        assert names_by_value(data, names) == is_named
        assert names_by_value(data, data) == is_named
    assert len(dumps_by_name(long, lambda buffer: True)[1]) < 1000


@pytest.mark.parametrize("n_before", [0, 1, 13_000, 14_000, 30_000, 100_000])
def test_names_are_found_in_each_part_of_a_long_pickle(main, n_before):
    others = list(range(100_000, 100_000 + n_before))
    for value in ([main.Plain(), *others], [*others, main.Plain()], [*others, main.Plain(), bytes(100_000), *others]):
        data, names = dumps_by_name(value)
        assert names_by_value(data, names)
    data, names = dumps_by_name(["__main__", *others])
    assert not names_by_value(data, names)


def test_a_pickle_is_whole_whatever_it_is_written_in():
    n = 64 * 1024
    values = [1, "x" * n, ["x" * n, b"y" * (n - 1), bytearray(b"z" * n), (1, 2)] * 3]
    values += [[{"id": i, "name": f"item {i}"} for i in range(10_000)]]
    for value in values:
        data, _ = dumps_by_name(value, lambda buffer: True)
        assert loads(data) == value
