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
from broadleaf.serialize.names_by_value import names_by_value

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
        assert names_by_value(pickle.dumps(value, 5)), value


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
        assert not names_by_value(data), value
