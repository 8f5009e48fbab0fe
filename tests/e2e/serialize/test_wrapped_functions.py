"""What the standard library makes of a script's functions gets to engines on every route, and works there."""

import pytest
from script_routes import ROUTES, script

SOURCE = """
import contextvars, functools

@functools.lru_cache
def cached(x):
    return x + 1

@functools.lru_cache(maxsize=None, typed=True)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

def calls_cached(x):
    return cached(x), fib(x), fib.cache_parameters(), fib.__name__

class Kind:
    def base(self, a, b):
        return a, b

    part = functools.partialmethod(base, "part")

    @functools.cached_property
    def once(self):
        self.made = getattr(self, "made", 0) + 1
        return self.made

    @functools.lru_cache
    def remembered(self, x):
        return x * 2

    @functools.singledispatchmethod
    def of(self, x):
        return "any"

    @of.register
    def _(self, x: int):
        return "int"

def methods(x):
    kind = Kind()
    return kind.part(x), kind.once, kind.once, kind.remembered(x), kind.of(x), kind.of("")

@functools.singledispatch
def generic(x):
    "Doc."
    return "any"

@generic.register(int)
def _(x):
    return "int"

@generic.register(list)
def _(x):
    return ["list", *map(generic, x)]

generic.tag = "t"

def calls_generic(x):
    return generic(x), generic([x, ""]), generic.tag, generic.__doc__

variable = contextvars.ContextVar("variable", default=[5])
bare = contextvars.ContextVar("bare")

def variables(x):
    before = bare.get("none")
    token = bare.set(x)
    try:
        return variable.get(), before, bare.get(), variable.name
    finally:
        bare.reset(token)
"""
PARAMETERS = {"maxsize": None, "typed": True}


@pytest.mark.parametrize("route", ROUTES)
def test_wrapped_functions_on_every_route(rc, route):
    names = script(SOURCE)

    def called(name, x):
        return ROUTES[route](rc, names[name], x)

    assert called("cached", 1) == 2
    assert called("fib", 30) == 832040
    assert called("calls_cached", 10) == (11, 55, PARAMETERS, "fib")
    assert called("methods", 3) == (("part", 3), 1, 1, 6, "int", "any")
    assert called("generic", 1) == "int"
    assert called("calls_generic", 2) == ("int", ["list", "int", "any"], "t", "Doc.")
    assert called("variables", 7) == ([5], "none", 7, "variable")


def test_an_implementation_that_is_registered_later_is_sent(rc):
    names = script(SOURCE)
    assert rc[0].apply_sync(names["generic"], 1.5) == "any"
    names["generic"].register(float, lambda x: "float")
    assert rc[0].apply_sync(names["generic"], 1.5) == "float"


def test_they_come_back_as_results(rc):
    names = script(SOURCE)
    assert rc[0].apply_sync(lambda: names["fib"])(20) == 6765
    assert rc[0].apply_sync(lambda: names["generic"])([1]) == ["list", "int"]
    assert rc[0].apply_sync(lambda: names["variable"]) is names["variable"]
    rc[0].push({"pushed": names["variable"]}, block=True)
    assert rc[0]["pushed"] is names["variable"]


def test_two_context_variables_of_one_name_stay_two(rc):
    names = script(
        "import contextvars\n"
        "one, other = (contextvars.ContextVar('v', default=i) for i in range(2))\n"
        "def both(_): return one.get(), other.get()\n"
    )
    assert rc[0].apply_sync(names["both"], 0) == (0, 1)


def test_a_context_variable_of_a_module_is_the_modules(rc):
    names = script(
        "from broadleaf.client.interactive import _leaves_magics as leaves_magics\n"
        "def same(_):\n"
        "    from broadleaf.client import interactive\n"
        "    return interactive._leaves_magics is leaves_magics\n"
    )
    assert rc[0].apply_sync(names["same"], 0)


@pytest.mark.parametrize("route", ROUTES)
def test_a_function_whose_parts_are_replaced_is_sent_anew(rc, route):
    names = script("def f(x, y=1): return x, y\ndef g(x): return f(x)\ndef other(x, y=1): return -x, y\n")
    called = [names["f"], names["g"]]
    call = ROUTES[route]
    assert [call(rc, function, 5) for function in called] == [(5, 1)] * 2
    names["f"].__code__ = names["other"].__code__
    assert [call(rc, function, 5) for function in called] == [(-5, 1)] * 2
    names["f"].__defaults__ = (3,)
    assert [call(rc, function, 5) for function in called] == [(-5, 3)] * 2
