"""What a client may ask of an engine's namespace."""

import sys
import traceback

import pytest
from broadleaf.engine import namespace, operations, output
from broadleaf.serialize.namespace import evaluate


@pytest.fixture
def names(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "displayhook", output.DisplayHook())
    engine = (lambda destination, source: False, lambda: None)
    monkeypatch.setattr(operations, "_session", operations._Session({}, *engine))
    created = namespace.create(3, "c")
    operations.install(created, *engine)
    yield created
    operations.close()
    namespace.set_namespace(None)


def test_execute_shows_the_last_expression(names):
    reply = operations.execute("a = 5\na + 1")
    assert reply["execute_result"] == {"data": {"text/plain": "6"}, "metadata": {}}
    assert reply["execution_count"] == 1
    assert reply["engine_id"] == 3
    assert names["a"] == 5
    assert names["_"] == 6


@pytest.mark.parametrize("code", ["", "x = 1", "1;", "None", "# nothing"])
def test_execute_shows_nothing(names, code):
    assert operations.execute(code)["execute_result"] is None


def test_silent_neither_shows_nor_counts(names):
    assert operations.execute("41 + 1", silent=True)["execute_result"] is None
    assert operations.execute("1")["execution_count"] == 1


def test_a_value_shown_before_is_not_shown_again(names):
    operations.execute("7")
    assert operations.execute("b = 1")["execute_result"] is None


def test_tracebacks_show_the_line(names):
    operations.execute("def f(x):\n    return 1 / x  # the line")
    with pytest.raises(ZeroDivisionError) as caught:
        operations.execute("f(0)")
    text = "".join(traceback.format_exception(caught.value))
    assert "return 1 / x  # the line" in text
    assert 'File "<broadleaf-' in text


def test_source_of_executed_functions_is_found_and_bounded(names, monkeypatch):
    import inspect
    import linecache

    monkeypatch.setattr(operations, "KEPT_SOURCES", 2)
    operations.execute("def f():\n    return 'source'\n")
    assert "return 'source'" in inspect.getsource(names["f"])
    file_name = names["f"].__code__.co_filename
    operations.execute("1")
    assert file_name in linecache.cache
    operations.execute("2")
    assert file_name not in linecache.cache


def test_syntax_errors_show_the_line(names):
    with pytest.raises(SyntaxError) as caught:
        operations.execute("a = = 1")
    assert "a = = 1" in "".join(traceback.format_exception(caught.value))


def test_top_level_await(names):
    reply = operations.execute("import asyncio\nx = await asyncio.sleep(0, 4)\nawait asyncio.sleep(0, x + 1)")
    assert reply["execute_result"]["data"]["text/plain"] == "5"
    assert names["x"] == 4


def test_executed_classes_belong_to_main(names):
    import pickle

    operations.execute("class C: pass")
    assert type(pickle.loads(pickle.dumps(names["C"]()))) is names["C"]


def test_push_and_pull(names):
    operations.push({"a": 1, "b": [2]})
    assert operations.pull("a") == 1
    assert operations.pull(["a", "b"]) == [1, [2]]


def test_dotted_names(names):
    operations.execute("from types import SimpleNamespace\nobj = SimpleNamespace(inner=SimpleNamespace(x=1))")
    assert operations.pull("obj.inner.x") == 1
    operations.push({"obj.inner.y": 2})
    assert names["obj"].inner.y == 2
    with pytest.raises(AttributeError):
        operations.pull("obj.missing")


def test_pull_of_a_missing_name(names):
    with pytest.raises(NameError, match="name 'nothing' is not defined"):
        operations.pull("nothing")


def test_clear_removes_what_the_user_set(names):
    import weakref

    operations.execute("class C: pass\nc = C()\nc")
    kept = weakref.ref(names["c"])
    operations.clear()
    assert kept() is None
    assert "c" not in names
    assert (names["engine_id"], names["cluster_id"], names["__name__"]) == (3, "c", "__main__")
    assert evaluate("len([1])") == 1
    assert sys.modules["__main__"].__dict__ is names


def test_ipython_formats_if_it_is_loaded(names):
    pytest.importorskip("IPython")
    operations.execute("class H:\n    def _repr_html_(self): return '<b>'\n    def __repr__(self): return 'H'")
    bundle = operations.execute("H()")["execute_result"]
    assert bundle["data"] == {"text/plain": "H", "text/html": "<b>"}


def test_awaiting_keeps_one_loop_and_leaves_none(names):
    operations.execute("import asyncio\nfirst = await asyncio.sleep(0, asyncio.get_running_loop())")
    operations.execute("second = await asyncio.sleep(0, asyncio.get_running_loop())")
    assert names["first"] is names["second"]
    operations.execute("left = asyncio.ensure_future(asyncio.sleep(1000))\nawait asyncio.sleep(0)")
    operations.close()
    assert names["left"].cancelled()
    assert names["first"].is_closed()


def test_interrupted_code_does_not_go_on(names):
    operations.execute("import asyncio\ndef interrupt(): raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        operations.execute(
            "task = asyncio.current_task()\n"
            "asyncio.get_running_loop().call_soon(interrupt)\n"
            "await asyncio.Event().wait()"
        )
    operations.execute("await asyncio.wait([task])")
    assert names["task"].cancelled()


def test_the_same_cell_has_the_same_file_name_whatever_ran_before(names):
    operations.execute("def f():\n    pass")
    first = names["f"].__code__.co_filename
    operations.execute("1")
    operations.execute("def f():\n    pass")
    assert names["f"].__code__.co_filename == first


def test_a_cell_run_again_is_kept_as_the_newest(names, monkeypatch):
    import linecache

    monkeypatch.setattr(operations, "KEPT_SOURCES", 2)
    operations.execute("def f(): pass")
    file_name = names["f"].__code__.co_filename
    operations.execute("1")
    operations.execute("def f(): pass")
    operations.execute("2")
    assert file_name in linecache.cache
