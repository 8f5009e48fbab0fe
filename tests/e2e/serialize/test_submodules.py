"""Submodules that a script has imported, and that its functions reach through the name of their package."""

import itertools
import sys

import pytest
from script_routes import ROUTES, script

_numbers = itertools.count()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The name of a package that no engine has imported, with the module `inner.leaf`."""
    name = f"package_{next(_numbers)}"
    inner = tmp_path / name / "inner"
    inner.mkdir(parents=True)
    (tmp_path / name / "__init__.py").write_text("")
    (inner / "__init__.py").write_text("")
    (inner / "leaf.py").write_text("value = 7\n")
    (inner / "broken.py").write_text("import sys\nif sys.argv[0] != 'here': raise RuntimeError('not on an engine')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


SOURCES = {
    "function": """
import PACKAGE.inner.leaf
def f(x): return PACKAGE.inner.leaf.value + x
""",
    "helper": """
import PACKAGE.inner.leaf
def helper(): return PACKAGE.inner.leaf.value
def f(x): return helper() + x
""",
    "nested": """
import PACKAGE.inner.leaf
def f(x): return [(lambda: PACKAGE.inner.leaf.value + x)() for _ in range(1)][0]
""",
    "method": """
import PACKAGE.inner.leaf
class Thing:
    def get(self): return PACKAGE.inner.leaf.value
def f(x): return Thing().get() + x
""",
    "closure": """
def make():
    import PACKAGE.inner.leaf
    def f(x): return PACKAGE.inner.leaf.value + x
    return f
f = make()
""",
    "default": """
import PACKAGE.inner.leaf
def f(x, package=PACKAGE): return package.inner.leaf.value + x
""",
    "another name": """
import PACKAGE.inner.leaf
import PACKAGE as short
def f(x): return short.inner.leaf.value + x
""",
}


@pytest.mark.parametrize("source", SOURCES)
def test_they_are_imported_where_the_function_runs(rc, package, source):
    names = script(SOURCES[source].replace("PACKAGE", package))
    assert rc[0].apply_sync(names["f"], 1) == 8


@pytest.mark.parametrize("route", ROUTES)
def test_on_every_route(rc, package, route):
    names = script(SOURCES["function"].replace("PACKAGE", package))
    assert ROUTES[route](rc, names["f"], 1) == 8


def test_one_that_is_imported_later(rc, package):
    """The function was sent before, and is the same: what it can reach has changed."""
    names = script(f"import {package}\ndef f(): return {package}.inner.leaf.value\n")
    with pytest.raises(AttributeError, match="inner"):
        rc[0].apply_sync(names["f"])
    exec(f"import {package}.inner.leaf", names)
    assert rc[0].apply_sync(names["f"]) == 7


def test_one_that_engines_cannot_import(rc, package, monkeypatch):
    """The name may mean something else: only what uses it fails."""
    monkeypatch.setattr(sys, "argv", ["here"])
    names = script(f"import {package}.inner.broken\ndef f(x): return {package}.inner.broken if x else 5\n")
    assert rc[0].apply_sync(names["f"], 0) == 5
    with pytest.raises(AttributeError, match="broken"):
        rc[0].apply_sync(names["f"], 1)


def test_a_program_that_reports_an_error_of_urllib(rc):
    names = script(
        "import urllib.error\n"
        "def f(): raise urllib.error.HTTPError('address', code=1, msg='text', hdrs=None, fp=None)\n"
    )
    with pytest.raises(names["urllib"].error.HTTPError, match="text") as raised:
        rc.executor().submit(names["f"]).result(30)
    assert raised.value.code == 1
