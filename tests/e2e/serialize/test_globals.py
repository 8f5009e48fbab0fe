"""Globals of a script, whatever their names are."""

import pytest
from script_routes import ROUTES, script

SOURCE = '''"""What the script does."""
import attrs

__version__ = "3.1"
__all__ = ["about"]
__secret = 7
__file__ = "/where/the/script/is.py"


def about(_):
    return __version__, __all__, __file__, __doc__, __name__


def private(x):
    return __secret + x


def positive(instance, attribute, value):
    if value <= 0:
        raise ValueError(f"{attribute.name} is {value}")


@attrs.define
class Checked:
    x: int = attrs.field(validator=positive)
    items: list = attrs.field(factory=list)


@attrs.frozen
class Doubled:
    x: int = attrs.field(converter=lambda x: 2 * x)


def make(x):
    made = Checked(x), Doubled(x)
    try:
        Checked(-x)
    except ValueError as error:
        return made, str(error)
    return made, "not checked"
'''


@pytest.mark.parametrize("route", ROUTES)
def test_names_with_underscores_are_globals_like_others(rc, route):
    names = script(SOURCE)
    call = ROUTES[route]
    assert call(rc, names["about"], 0) == ("3.1", ["about"], names["__file__"], "What the script does.", "__main__")
    assert call(rc, names["private"], 1) == 8
    made, error = call(rc, names["make"], 3)
    assert (made, error) == ((names["Checked"](3), names["Doubled"](3)), "x is -3")


def test_the_engines_own_come_first(rc):
    names = script("__version__ = 1\ndef version(): return __version__\n")
    rc[0].execute("__version__ = 2", block=True)
    assert rc[0].apply_sync(names["version"]) == 2
    rc[0].clear(block=True)
    assert rc[0].apply_sync(names["version"]) == 1
    assert rc[0].apply_sync(eval, "__import__('__main__').__doc__") is None
