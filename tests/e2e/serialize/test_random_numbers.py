"""Random numbers of tasks: which differ between engines, and which do not depend on how many there are."""

from __future__ import annotations

import functools
import random
import re
import warnings

import broadleaf as ipp
import joblib
import numpy as np
import pytest
from broadleaf import text
from script_routes import ROUTES, script

FUNCTIONS = {
    "normal": (np.random.normal, (0.0,)),
    "rand": (np.random.rand, (1,)),
    "random": (random.uniform, (0.0, 1.0)),
    "randint": (random.randint, (0, 10**12)),
}


def number(value):
    return float(np.ravel(value)[0])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_functions_of_the_modules_draw_from_the_engine_s_generator(name, start):
    function, arguments = FUNCTIONS[name]
    # There is a state that could be sent.
    function(*arguments)
    with ipp.Cluster(n=2, engine_start=start) as rc, warnings.catch_warnings():
        warnings.simplefilter("error")
        view = rc.load_balanced_view()
        drawn = list(map(number, view.map_sync(function, *([a] * 12 for a in arguments), chunksize=1)))
        drawn += map(number, view.map_sync(function, *([a] * 12 for a in arguments), chunksize=4))
        drawn += [number(view.apply_sync(function, *arguments)) for _ in range(4)]
        drawn += map(number, rc[:].apply_sync(function, *arguments))
        drawn += map(number, rc[:].apply_sync(functools.partial(function, *arguments)))
        drawn += map(number, rc[:].apply_sync(lambda f: f(*arguments), function))
        drawn += [number(future.result(20)) for future in [rc.executor().submit(function, *arguments)]]
        view.register_joblib_backend("broadleaf-random")
        calls = (joblib.delayed(function)(*arguments) for _ in range(8))
        drawn += map(number, joblib.Parallel(backend="broadleaf-random")(calls))
        assert len(set(drawn)) == len(drawn)


GENERATORS = {
    "Generator": "numpy.random.default_rng(5)",
    "RandomState": "numpy.random.RandomState(5)",
    "PCG64": "numpy.random.PCG64(5)",
    "Random": "random.Random(5)",
}
PLACES = {
    "the global 'rng' it refers to": "def f(x): return rng.__class__.__name__",
    "the default of 'r'": "def f(x, r=rng): return r.__class__.__name__",
    "its variable 'r'": "def make(r):\n    return lambda x: r.__class__.__name__\nf = make(rng)",
    "argument 1 of the partial": "import functools\nf = functools.partial(lambda r, x: r.__class__.__name__, rng)",
    "attribute 'rng' of the object it is a method of": (
        "class C:\n    def draw(self, x): return self.rng.__class__.__name__\nc = C()\nc.rng = rng\nf = c.draw"
    ),
    "the global 'rng' it refers to, in the global 'g' it refers to": (
        "def g(): return rng.__class__.__name__\ndef f(x): return g()"
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_that_is_taken_along_is_named_once(rc, kind, place, monkeypatch):
    names = script(f"import numpy, random\nrng = {GENERATORS[kind]}\n{PLACES[place]}\nf.__dict__\n")
    # Each is said once in a process.
    monkeypatch.setattr(text, "_said", set())
    with pytest.warns(UserWarning, match=re.escape(f"carries a random generator ({place}).")) as said:
        assert rc.load_balanced_view().map_sync(names["f"], range(2)) == [kind] * 2
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rc.load_balanced_view().map_sync(names["f"], range(2)) == [kind] * 2


def draw(item, rng):
    return item, rng.random()


@pytest.mark.parametrize("kind", GENERATORS)
def test_the_advice_works(rc, kind, monkeypatch):
    names = script(f"import numpy, random\nrng = {GENERATORS[kind]}\ndef f(x): return rng.random()\n")
    monkeypatch.setattr(text, "_said", set())
    with pytest.warns(UserWarning, match="carries a random generator") as said:
        rc[0].apply_async(names["f"], 0).wait(20)
    [advice] = re.findall(r"view\.map\(f.*", str(said[0].message))
    scope = {
        "view": rc.load_balanced_view(), "f": draw, "items": range(8), "rng": names["rng"], "seed": 5, "random": random,
        "numpy": np,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = eval(advice, scope).get(20)
    assert [item for item, _ in drawn] == list(range(8))
    assert len({value for _, value in drawn}) == 8


def simulate(n, rng):
    return float(rng.standard_normal(n).sum())


def simulate_seeded(item):
    return float(np.random.default_rng([2026, item]).standard_normal(10).sum())


def test_a_generator_or_a_seed_for_each_item_does_not_depend_on_engines_or_chunks():
    results = []
    for n_engines in (1, 3):
        with ipp.Cluster(n=n_engines) as rc:
            for chunksize in (1, 4):
                view, direct = rc.load_balanced_view(), rc[:]
                results.append(
                    (
                        view.map_sync(simulate, [10] * 8, np.random.default_rng(1).spawn(8), chunksize=chunksize),
                        view.map_sync(simulate_seeded, range(8), chunksize=chunksize),
                    )
                )
                results.append(
                    (
                        direct.map_sync(simulate, [10] * 8, np.random.default_rng(1).spawn(8)),
                        direct.map_sync(simulate_seeded, range(8)),
                    )
                )
    assert all(result == results[0] for result in results)
    assert len({*results[0][0], *results[0][1]}) == 16


@pytest.mark.parametrize("route", [route for route in ROUTES if route != "partial"])
def test_a_generator_as_an_argument_is_sent_as_it_is(rc, route):
    rng = np.random.default_rng(3)
    expected = np.random.default_rng(3).random()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ROUTES[route](rc, script("def f(rng): return rng.random()")["f"], rng) == expected


def unseeded(_):
    return float(np.random.rand()), random.random()


def seeded_by_task(item):
    np.random.seed(item)
    random.seed(item)
    return unseeded(item)


def taken_along():
    rng = np.random.default_rng(7)
    return lambda _: rng.random()


def seed_engines(rc, base):
    def seed(base, number):
        np.random.seed(base + number)
        random.seed(base + number)

    for number, engine in enumerate(rc.ids):
        rc[engine].apply_sync(seed, base, number)


def test_the_table_of_the_page():
    drawn = {}
    for n_engines in (2, 3):
        with ipp.Cluster(n=n_engines) as rc, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for time in (1, 2):
                seed_engines(rc, 40)
                drawn["once on each engine", n_engines, time] = rc[:].map_sync(unseeded, range(12))
                for name, function in (("seeded by task", seeded_by_task), ("taken along", taken_along())):
                    drawn[name, n_engines, time] = rc.load_balanced_view().map_sync(function, range(12), chunksize=1)
            rc[:].apply_sync(np.random.seed)
            rc[:].apply_sync(random.seed)
            for time in (1, 2):
                drawn["unseeded", n_engines, time] = rc.load_balanced_view().map_sync(unseeded, range(12))
            rc[:].clear(block=True)
            # Each engine of this call draws the same.
            assert len(set(rc[:].apply_sync(taken_along(), 0))) == 1

    def of(name, n_engines, time=1):
        return drawn[name, n_engines, time]

    assert of("seeded by task", 2) == of("seeded by task", 3) == of("seeded by task", 2, 2)
    for n_engines in (2, 3):
        assert of("once on each engine", n_engines) == of("once on each engine", n_engines, 2)
        assert len(set(of("once on each engine", n_engines))) == 12
        assert len({*of("unseeded", n_engines), *of("unseeded", n_engines, 2)}) == 24
    assert of("once on each engine", 2) != of("once on each engine", 3)
