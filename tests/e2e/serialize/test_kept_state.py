"""What a task leaves in globals, classes, functions and caches, the next task on that engine finds."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from pathlib import Path

import broadleaf as ipp
import numpy as np
import pytest
from script_routes import ROUTES, script

SOURCE = """
import functools
import broadleaf as ipp

model = None
CACHE = {}
FILE = None


class Holder:
    model = None


class Registry:
    def __init__(self):
        self.known = {}


registry = Registry()


def load(name):
    with open(FILE, "a") as file:
        file.write(f"{name} {engine_id}\\n")
    return 1


def rebound(x):
    global model
    if model is None:
        model = load("rebound")
    return x + model


def mutable_global(x):
    if "m" not in CACHE:
        CACHE["m"] = load("mutable_global")
    return x + CACHE["m"]


def object_in_global(x):
    if "m" not in registry.known:
        registry.known["m"] = load("object_in_global")
    return x + registry.known["m"]


def class_attribute(x):
    if Holder.model is None:
        Holder.model = load("class_attribute")
    return x + Holder.model


def function_attribute(x):
    if not hasattr(function_attribute, "m"):
        function_attribute.m = load("function_attribute")
    return x + function_attribute.m


def default(x, _c={}):
    if "m" not in _c:
        _c["m"] = load("default")
    return x + _c["m"]


def keyword(x, *, _c=[]):
    if not _c:
        _c.append(load("keyword"))
    return x + _c[0]


@functools.lru_cache
def loaded(name):
    return load(name)


def cached(x):
    return x + loaded("cached")


def engine_cache(x):
    if "m" not in ipp.engine_cache:
        ipp.engine_cache["m"] = load("engine_cache")
    return x + ipp.engine_cache["m"]


def make():
    c = {}

    def closure(x):
        if "m" not in c:
            c["m"] = load("closure")
        return x + c["m"]

    return closure


closure = make()
"""
EVERYWHERE = [
    "rebound", "mutable_global", "object_in_global", "class_attribute", "function_attribute", "default", "keyword",
    "cached", "engine_cache",
]  # fmt: skip
# Functions within other values are values of the call, and so is what they hold.
WITHIN_OTHERS = ("partial", "argument", "joblib")


def loads_on_engines(folder: Path) -> Counter[str]:
    return Counter((folder / "loads").read_text().splitlines())


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_loaded_once_stays(rc, tmp_path: Path, route):
    names = script(SOURCE)
    names["FILE"] = str(tmp_path / "loads")
    kept = [*EVERYWHERE, *([] if route in WITHIN_OTHERS else ["closure"])]
    for _ in range(3):
        for name in kept:
            assert ROUTES[route](rc, names[name], 5) == 6
    loads = loads_on_engines(tmp_path)
    assert set(loads.values()) == {1}, loads
    assert {line.split()[0] for line in loads} == set(kept)


def test_all_routes_share_it(rc, tmp_path: Path):
    names = script(SOURCE)
    names["FILE"] = str(tmp_path / "loads")
    for name in EVERYWHERE:
        for route in ROUTES.values():
            assert route(rc, names[name], 5) == 6
    for route in (route for name, route in ROUTES.items() if name not in WITHIN_OTHERS):
        assert route(rc, names["closure"], 5) == 6
    assert set(loads_on_engines(tmp_path).values()) == {1}


def test_one_function_finds_what_another_left(rc):
    names = script(
        "CACHE = {}\n"
        "class Holder:\n    model = None\n"
        "def start(): CACHE['m'] = Holder.model = 3\n"
        "def use(x): return CACHE['m'] + Holder.model + x\n"
    )
    rc[:].apply_sync(names["start"])
    assert rc.load_balanced_view().map_sync(names["use"], range(3)) == [6, 7, 8]


def test_what_the_program_changes_replaces_it(rc):
    names = script(
        "CACHE = {'n': 0}\n"
        "class Holder:\n    n = 0\n"
        "def default(c={'n': 0}):\n    c['n'] += 1\n    return c['n']\n"
        "def mutable():\n    CACHE['n'] += 1\n    return CACHE['n']\n"
        "def held():\n    Holder.n += 1\n    return Holder.n\n"
        "def make():\n    c = [0]\n    def closure():\n        c[0] += 1\n        return c[0]\n    return closure, c\n"
        "closure, c = make()\n"
    )
    call = rc[0].apply_sync
    functions = [names[name] for name in ("default", "mutable", "held", "closure")]
    for expected in (1, 2, 3):
        assert [call(function) for function in functions] == [expected] * 4
    names["default"].__defaults__[0]["n"] = names["CACHE"]["n"] = names["Holder"].n = names["c"][0] = 10
    assert [call(function) for function in functions] == [11] * 4
    assert [call(function) for function in functions] == [12] * 4
    assert (names["CACHE"], names["Holder"].n, names["c"]) == ({"n": 10}, 10, [10])


def test_a_call_has_the_values_that_there_were_when_it_was_submitted(rc, gate):
    names = script("CONFIG = {'n': 0}\nclass Holder:\n    n = 0\ndef see(x): return CONFIG['n'], Holder.n, x\n")
    view = rc.load_balanced_view(0)
    held = view.apply_async(gate.task())
    results = []
    for n in (1, 2, 1, 3, 1):
        names["CONFIG"]["n"] = names["Holder"].n = n
        results.append(view.apply_async(names["see"], n))
    gate.open()
    held.get(20)
    assert [result.get(20) for result in results] == [(n, n, n) for n in (1, 2, 1, 3, 1)]


@pytest.mark.parametrize(
    "closure",
    [
        "c = [0]\n    def closure():\n        c[0] += 1\n        return c[0]",
        "c = 0\n    def closure():\n        nonlocal c\n        c += 1\n        return c",
        "c = 0\n    def closure():\n        def add():\n            nonlocal c\n            c += 1\n"
        "            return c\n        return add()",
        "def closure():\n        nonlocal c\n        c = c + 1 if c else 1\n        return c\n    c = None",
    ],
)
def test_closures_of_one_function_are_two(rc, closure):
    names = script(f"def make():\n    {closure}\n    return closure\none, other = make(), make()\n")
    assert [rc[0].apply_sync(names[name]) for name in ("one", "one", "other", "one")] == [1, 2, 1, 3]


def test_a_function_with_an_array_is_kept_as_well(rc, tmp_path: Path):
    for n in (10, 10_000, 100_000):
        table = np.arange(float(n))
        seen = []

        def count(x, table=table, seen=seen):
            seen.append(x)
            table[0] += 1
            return len(seen), float(table[0]), float(table[-1])

        results = [rc[0].apply_sync(count, 0), *rc.load_balanced_view(0).map_sync(count, range(2), chunksize=1)]
        assert results == [(i, float(i), n - 1.0) for i in (1, 2, 3)]
        table[-1] = -1
        assert rc[0].apply_sync(count, 0) == (1, 1.0, -1.0)
        assert seen == []


def test_state_of_functions_with_more_is_in_globals_only(rc):
    large = [str(i) for i in range(300_000)]
    names = script(
        "CACHE = {}\n"
        "def count(x, seen=[]):\n"
        "    seen.append(x)\n"
        "    CACHE['n'] = CACHE.get('n', 0) + 1\n"
        "    return len(seen), CACHE['n'], len(large)\n",
        large=large,
    )
    assert [rc[0].apply_sync(names["count"], x)[1:] for x in range(3)] == [(n, 300_000) for n in (1, 2, 3)]


def test_clear_removes_it(rc):
    names = script(
        "import broadleaf as ipp\n"
        "def count(x, c=[0]):\n"
        "    c[0] += 1\n"
        "    ipp.engine_cache['n'] = ipp.engine_cache.get('n', 0) + 1\n"
        "    return c[0], ipp.engine_cache['n']\n"
    )
    assert [rc[0].apply_sync(names["count"], 0) for _ in range(2)] == [(1, 1), (2, 2)]
    rc[0].clear(block=True)
    assert rc[0].apply_sync(names["count"], 0) == (1, 1)


def test_the_engine_cache_is_each_process_s_own(rc):
    from broadleaf import engine_cache

    engine_cache["here"] = 1
    names = script(
        "def put(x):\n    engine_cache['k'] = x\n    return dict(engine_cache)\ndef get(): return dict(engine_cache)\n",
        engine_cache=engine_cache,
    )
    try:
        assert rc[:].apply_sync(names["put"], 5) == [{"k": 5}] * len(rc)
        assert rc[:].apply_sync(names["get"]) == [{"k": 5}] * len(rc)
        # Also as an argument, and as a result.
        assert rc[0].apply_sync(lambda cache: cache["k"], engine_cache) == 5
        assert rc[0].apply_sync(lambda: ipp.engine_cache) is engine_cache
        assert engine_cache == {"here": 1}
    finally:
        engine_cache.clear()


def test_classes_are_freed(rc):
    for i in range(5):
        names = script("class Local:\n    def get(self): return n, __class__\n", n=i)
        assert rc[0].apply_sync(lambda kind: kind().get()[0], names["Local"]) == i

    def living():
        import gc

        gc.collect()
        return sum(isinstance(obj, type) and obj.__name__ == "Local" for obj in gc.get_objects())

    assert rc[0].apply_sync(living) <= 1


def test_a_map_whose_tasks_unpack_much_says_so_once_and_the_advice_works(rc):
    table = {str(i): float(i) for i in range(200_000)}
    names = script("def look_up(x): return table[str(x)]\n", table=table)
    view = rc.load_balanced_view()
    with pytest.warns(UserWarning, match="unpacks [0-9.]+ MB for the function 'look_up': the global 'table'") as said:
        assert view.map_sync(names["look_up"], range(4)) == [0.0, 1.0, 2.0, 3.0]
    assert said[0].filename == __file__
    assert "client[:].push({'name': value})" in str(said[0].message)
    assert "ipp.engine_cache" in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert view.map_sync(names["look_up"], range(4)) == [0.0, 1.0, 2.0, 3.0]
        # The advice.
        rc[:].push({"pushed": table}, block=True)
        by_name = script("def look_up_pushed(x): return pushed[str(x)]\n")["look_up_pushed"]
        assert view.map_sync(by_name, range(4)) == [0.0, 1.0, 2.0, 3.0]
        in_cache = script(
            "def look_up_cached(x):\n"
            "    if 'table' not in ipp.engine_cache:\n"
            "        ipp.engine_cache['table'] = {str(i): float(i) for i in range(200_000)}\n"
            "    return ipp.engine_cache['table'][str(x)]\n",
            ipp=ipp,
        )["look_up_cached"]
        assert view.map_sync(in_cache, range(4)) == [0.0, 1.0, 2.0, 3.0]


def rows_of_the_page() -> list[str]:
    page = Path(__file__).parents[3] / "docs/concepts/state.md"
    return re.findall(r"^\| ([^|]+?) +\|", page.read_text(), re.MULTILINE)[1:]


# For each row of the page's table: a script whose `count` says how often it was called, as far as it knows.
PROGRAMS = {
    "A global that a task sets": "n = 0\ndef count(_):\n    global n\n    n += 1\n    return n\n",
    "A mutable global that a task changes": "c = []\ndef count(_):\n    c.append(1)\n    return len(c)\n",
    "An attribute of a class": "class C:\n    n = 0\ndef count(_):\n    C.n += 1\n    return C.n\n",
    "An attribute of a function": ("def count(_):\n    count.n = getattr(count, 'n', 0) + 1\n    return count.n\n"),
    "A mutable default argument": "def count(_, c=[]):\n    c.append(1)\n    return len(c)\n",
    "The results that `functools.lru_cache` remembers": (
        "import functools\n@functools.lru_cache\ndef kept(): return []\n"
        "def count(_):\n    kept().append(1)\n    return len(kept())\n"
    ),
    "A variable of a closure": (
        "def make():\n    c = []\n    def count(_):\n        c.append(1)\n        return len(c)\n    return count\n"
        "count = make()\n"
    ),
    "What a `partial`, a method's object or an argument holds": (
        "import functools\ndef add(c, _):\n    c.append(1)\n    return len(c)\ncount = functools.partial(add, [])\n"
    ),
    "`ipp.engine_cache`": (
        "from broadleaf import engine_cache as cache\n"
        "def count(_):\n    cache['n'] = cache.get('n', 0) + 1\n    return cache['n']\n"
    ),
    "A variable that was pushed": "def count(_):\n    pushed.append(1)\n    return len(pushed)\n",
    "State of a module that is imported": (
        "import string\n"
        "def count(_):\n    string.n_calls = getattr(string, 'n_calls', 0) + 1\n    return string.n_calls\n"
    ),
    "`sys.stdout` and `sys.stderr`, filters of `warnings`, levels of loggers": (
        "import logging\n"
        "def count(_):\n    logging.root.setLevel(logging.root.level + 1)\n"
        "    return logging.root.level - logging.WARNING\n"
    ),
}


@pytest.mark.parametrize("row", PROGRAMS)
def test_the_table_of_the_page(rc, row):
    count = script(PROGRAMS[row])["count"]
    rc[0].push({"pushed": []}, block=True)
    own = row.startswith(("What a `partial`", "`sys.stdout`"))
    assert [rc[0].apply_sync(count, 0) for _ in range(3)] == ([1, 1, 1] if own else [1, 2, 3])
    view = rc.load_balanced_view(0)
    assert view.map_sync(count, range(3), chunksize=1) == ([1, 1, 1] if own else [4, 5, 6])
    rc[0].clear(block=True)
    rc[0].push({"pushed": []}, block=True)
    after_clear = 7 if row.startswith("State of a module") else 1
    assert rc[0].apply_sync(count, 0) == after_clear


def test_the_page_has_these_rows():
    assert rows_of_the_page() == list(PROGRAMS)
