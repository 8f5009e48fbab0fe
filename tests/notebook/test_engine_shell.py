"""What IPython's users expect of a cell, on engines."""

from __future__ import annotations

import base64

import broadleaf as ipp
import pytest
from broadleaf.serialize.namespace import evaluate

pytest.importorskip("IPython")


@pytest.fixture
def view(rc):
    return rc[:2]


def shown(view, code):
    """The representations of a cell's value, one for each engine."""
    results = view.execute(code, silent=False, block=True).execute_result
    return [None if result is None else result["data"] for result in results]


def test_magics(view):
    view.execute("%cd -q /")
    assert shown(view, "%pwd") == [{"text/plain": "'/'"}] * 2
    assert shown(view, "pwd") == [{"text/plain": "'/'"}] * 2
    view["known"] = 5
    assert all("known" in out and "int" in out for out in view.execute("%whos", block=True).stdout)
    assert shown(view, "%%time\n1 + 1") == [{"text/plain": "2"}] * 2


def test_shell_commands_are_output_in_order(view):
    ar = view.execute("print('first')\n!echo second; echo wrong >&2\nprint('third')", block=True)
    assert ar.stdout == ["first\nsecond\nthird\n"] * 2
    assert ar.stderr == ["wrong\n"] * 2
    view.execute("word = 'hi'\nlines = !echo {word}; echo $word\n!exit 3", block=True)
    assert view["lines"] == [["hi", "hi"]] * 2
    assert view["_exit_code"] == [3] * 2


def test_get_ipython(view):
    assert view.apply_sync(lambda: type(get_ipython()).__name__) == ["EngineShell"] * 2  # noqa: F821
    view.execute("from IPython import get_ipython as ask\nx = ask().user_ns['engine_id']", block=True)
    assert view["x"] == [0, 1]


def test_a_name_that_is_set_is_no_magic(view):
    view["pwd"] = 7
    assert shown(view, "pwd") == [{"text/plain": "7"}] * 2


def test_a_misspelt_name_is_a_name_error(view):
    with pytest.raises(ipp.CompositeError, match="NameError: name 'nobody' is not defined"):
        view.execute("nobody", block=True)


def test_what_is_no_syntax_of_anybody(view):
    with pytest.raises(ipp.CompositeError, match="SyntaxError"):
        view.execute("def f(:", block=True)
    with pytest.raises(ipp.CompositeError, match="SyntaxError"):
        view.execute("%pwd\ndef f(:", block=True)


def test_tracebacks_of_cells_with_magics_show_their_source(rc):
    with pytest.raises(ZeroDivisionError) as caught:
        rc[0].execute("%cd -q /\n\n1 / 0  # here", block=True)
    assert "1 / 0  # here" in caught.value.traceback
    assert "line 3" in caught.value.traceback


def test_rich_values_need_no_import_by_the_user(view):
    view.execute("class Rich:\n    def _repr_html_(self): return '<b>rich</b>'", block=True)
    assert [data["text/html"] for data in shown(view, "Rich()")] == ["<b>rich</b>"] * 2


def test_figures_are_shown_inline(rc):
    pytest.importorskip("matplotlib")
    pytest.importorskip("matplotlib_inline")
    ar = rc[0].execute("import matplotlib.pyplot as plt\nplt.plot([1, 2]);", silent=False, block=True)
    assert base64.b64decode(ar.outputs[0]["data"]["image/png"]).startswith(b"\x89PNG")
    assert ar.execute_result is None
    assert rc[0].execute("1", silent=False, block=True).outputs == [], "a figure is shown once"
    ar = rc[0].execute("plt.plot([1]); 1/0", block=False)
    with pytest.raises(ZeroDivisionError):
        ar.get(20)
    assert len(ar.outputs) == 1, "the figure of a cell that raises is shown, too"


def test_clear_leaves_the_shell_usable(view):
    view.execute("%pwd", block=True)
    view["x"] = 1
    view.clear(block=True)
    assert view.apply_sync(evaluate, "'x' in globals()") == [False] * 2
    view.execute("%cd -q /tmp", block=True)
    assert shown(view, "%pwd") == [{"text/plain": "'/tmp'"}] * 2
