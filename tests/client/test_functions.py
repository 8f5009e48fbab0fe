"""Functions and values as bytes: by reference, as code in a namespace, with captured values."""

import functools
import json
import math
import threading

import broadleaf as ipp
import pytest
from broadleaf.serialize import namespace, snapshot
from broadleaf.serialize.chunks import ItemsFailed, MapChunk
from broadleaf.serialize.errors import Failed, dump_error, load_error
from broadleaf.serialize.functions import function_name, load_function, resolve_function
from broadleaf.serialize.snapshot import is_importable
from broadleaf.serialize.values import PrePickled, dump_args, dump_value, dumps, dumps_in_band, load_args, loads


@pytest.fixture
def names():
    """The namespace of a pretended engine."""
    names = {"__builtins__": __builtins__}
    namespace.set_namespace(names)
    yield names
    namespace.set_namespace(None)
    snapshot.forget_kept()


def interactive(source, name="f", **known):
    """A function as if typed into `__main__`, whose globals are `known`."""
    known["__name__"] = "__main__"
    exec(source, known)
    return known[name]


def test_importable_functions_go_by_reference(names):
    for function in (math.sqrt, json.dumps, len, functools.reduce, json.JSONDecoder):
        body, cacheable, _ = resolve_function(function)
        assert cacheable
        assert len(body) < 100
        assert load_function(body) is function


def test_a_function_sees_the_namespace_as_its_globals(names):
    function = load_function(resolve_function(interactive("def f(): return a"))[0])
    with pytest.raises(NameError):
        function()
    names["a"] = 5
    assert function() == 5
    assert function.__globals__ is names
    assert function.__module__ == "__main__"


def test_a_pure_function_is_cacheable_for_good(names):
    body, cacheable, _ = resolve_function(interactive("def f(x, y=2): return x * y"))
    assert cacheable
    assert load_function(body)(4) == 8


def test_missing_globals_are_filled_and_the_users_own_are_kept(names):
    f = interactive("def f(): return a + g()\ndef g(): return b", a=1, b=10)
    body, cacheable, _ = resolve_function(f)
    assert not cacheable
    function = load_function(body)
    assert function() == 11
    names["b"] = 100
    assert function() == 101
    # A later fill replaces an earlier one, not the user's value.
    f.__globals__.update(a=2, b=20)
    body, _, _ = resolve_function(f)
    assert load_function(body)() == 102
    # The first function, called again, sees its own values again.
    assert function() == 101
    del names["a"]
    assert function() == 101


def test_an_unchanged_body_is_not_pickled_again(names):
    f = interactive("def f(): return a + len([])", a=1)
    first, _, _ = resolve_function(f)
    assert resolve_function(f)[0] is first
    f.__globals__["a"] = 2
    second, _, _ = resolve_function(f)
    assert second != first
    assert load_function(second)() == 2
    f.__globals__["len"] = lambda _: 40
    assert load_function(resolve_function(f)[0])() == 42


def test_a_mutable_global_is_looked_at_each_time(names):
    f = interactive("def f(): return sum(a)", a=[1, 2])
    assert load_function(resolve_function(f)[0])() == 3
    f.__globals__["a"].append(4)
    assert load_function(resolve_function(f)[0])() == 7


SEEN = "def f(x, seen=[]):\n    seen.append(x)\n    return seen"


def test_a_call_finds_what_the_last_one_left(names):
    f = interactive(SEEN)
    body, cacheable, _ = resolve_function(f)
    assert not cacheable
    function = load_function(body)
    assert function(1) == [1]
    assert function(2) == [1, 2]
    # Sent again, also in another form, it is the same; nothing has changed here.
    assert load_function(resolve_function(f)[0])(3) == [1, 2, 3]
    assert load_function(resolve_function(MapChunk(f))[0])([4]) == [[1, 2, 3, 4]]
    assert load_args(*dump_args((f,), {}))[0][0](5) == [1, 2, 3, 4, 5]
    assert f.__defaults__ == ([],)
    # Another function of the same text, and one that was changed here, start with what they bring.
    assert load_function(resolve_function(interactive(SEEN))[0])(1) == [1]
    f.__defaults__[0].append(0)
    assert load_function(resolve_function(f)[0])(1) == [0, 1]
    assert function(6) == [1, 2, 3, 4, 5, 6]


def test_what_a_partial_or_a_method_holds_is_the_calls_own(names):
    def add(seen, x):
        seen.append(x)
        return seen

    for function in (functools.partial(add, []), Counter().add):
        loaded = load_function(resolve_function(function)[0])
        assert [loaded(1), loaded(2)] == [[1], [2]]


class Counter:
    def __init__(self):
        self.seen = []

    def add(self, x):
        self.seen.append(x)
        return self.seen


def test_a_bounded_number_of_functions_is_kept(names, monkeypatch):
    monkeypatch.setattr(snapshot, "_MAX_FUNCTIONS", 3)
    functions = [load_function(resolve_function(interactive(SEEN))[0]) for _ in range(5)]
    assert [function(1) for function in functions] == [[1]] * 5
    assert functions[-1](2) == [1, 2]
    assert functions[0](2) == [2]
    assert len(snapshot.single._entries) == 3
    monkeypatch.setattr(snapshot, "_MAX_FUNCTIONS", 512)
    monkeypatch.setattr(snapshot, "_MAX_BYTES", 10_000)
    for _ in range(10):
        load_function(resolve_function(interactive(f"def f(x, big={bytearray(3000)}): return x"))[0])(1)
    assert snapshot.called._bytes <= 10_000


def test_closures_recursion_and_defaults(names):
    source = """
def make(n):
    def fib(i):
        return i if i < n else fib(i - 1) + fib(i - 2)
    return fib
f = make(2)
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)
def kw(*, a=1, b=(2, 3)): return a, b
"""
    assert load_function(resolve_function(interactive(source))[0])(10) == 55
    assert load_function(resolve_function(interactive(source, "even"))[0])(10) is True
    assert load_function(resolve_function(interactive(source, "kw"))[0])(a=5) == (5, (2, 3))


def test_a_closure_that_is_rebound_is_sent_anew(names):
    functions = []
    for i in range(3):
        functions.append(lambda: i)  # noqa: B023
    assert load_function(resolve_function(functions[0])[0])() == 2
    i = 7
    assert load_function(resolve_function(functions[0])[0])() == 7


def test_globals_that_cannot_be_pickled_are_left_to_the_engine(names):
    f = interactive("def f(): return lock, a", lock=threading.Lock(), a=1)
    names["lock"] = "the engine's"
    assert load_function(resolve_function(f)[0])() == ("the engine's", 1)


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def with_closure():
        return lock

    with pytest.raises(ipp.SerializationError, match=r"'with_closure'.*variable 'lock'"):
        resolve_function(with_closure)
    with pytest.raises(ipp.SerializationError, match="default"):
        resolve_function(interactive("def f(x=lock): pass", lock=lock))
    with pytest.raises(ipp.SerializationError, match="method of"):
        resolve_function(lock.acquire)


def test_functions_of_main_in_arguments_go_by_value(names):
    f = interactive("def f(x): return x + a", a=1)
    (args, kwargs) = load_args(*dump_args((f, [f]), {"k": f}))
    assert args[0](1) == args[1][0](1) == kwargs["k"](1) == 2
    assert names["a"] == 1


def test_classes_of_main_go_by_value(names):
    kind = interactive(
        "class C:\n    def __init__(self, x): self.x = x\n    def get(self): return self.x + a", "C", a=1
    )
    assert load_function(resolve_function(kind)[0])(4).get() == 5
    assert loads(*dumps(kind(7))).get() == 8


def test_a_function_from_an_engine_does_not_touch_this_process(names):
    body, buffers = dump_value(interactive("def f(): return helper()\ndef helper(): return 3"))
    namespace.set_namespace(None)
    function = loads(body, buffers)
    assert function() == 3
    import __main__

    assert not hasattr(__main__, "helper")


def test_chunks(names):
    assert load_function(resolve_function(MapChunk(math.sqrt))[0])([1, 4]) == [1.0, 2.0]
    f = interactive("def f(x, y): return x / y * a", a=1)
    chunk = load_function(resolve_function(MapChunk(f))[0])
    assert chunk([1, 2], [1, 2]) == [1.0, 1.0]
    with pytest.raises(ItemsFailed) as caught:
        chunk([1, 2, 4], [1, 0, 2])
    assert isinstance(caught.value.first.error, ZeroDivisionError)
    good, bad, last = loads(*caught.value.dump_outcomes())
    assert (good, last) == (1.0, 2.0)
    assert isinstance(bad, Failed)
    assert isinstance(bad.exception({"engine_id": 3}).__cause__, ZeroDivisionError)
    assert bad.exception({"engine_id": 3}).engine_info["engine_id"] == 3


def test_references(names):
    names["g"] = [10, 20]
    (args, _) = load_args(*dump_args((ipp.Reference("g[1]"), [ipp.Reference("g")]), {}))
    assert args == (20, [[10, 20]])
    function = load_function(resolve_function(ipp.Reference("g.append"))[0])
    function(5)
    assert names["g"] == [10, 20, 5]
    with pytest.raises(NameError):
        load_args(*dump_args((ipp.Reference("nothing"),), {}))
    # A reference held by a callable is resolved at each call.
    partial = load_function(resolve_function(functools.partial(max, ipp.Reference("g[0]")))[0])
    names["g"] = [99]
    assert partial(1) == 99


def test_interactive_marks():
    @ipp.interactive
    def f(x, *, k=2):
        """Doc."""
        return x * k

    assert f.__module__ == "__main__"
    assert not is_importable(f)
    assert f(2) == 4
    assert f.__doc__ == "Doc."


def test_buffers_travel_out_of_band():
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(10_000.0)
    data, buffers = dumps({"a": array, "small": numpy.arange(3)})
    assert len(buffers) == 1
    assert len(data) < 1000
    back = loads(data, [bytearray(b.raw()) for b in buffers])
    assert (back["a"] == array).all()
    # Also if plain pickle gives up half-way.
    data, buffers = dumps([array, lambda: 1])
    assert len(buffers) == 1


@pytest.mark.parametrize("n_items", [5, 5000])
def test_arrays_of_a_pre_pickled_object_can_be_written_to(n_items):
    numpy = pytest.importorskip("numpy")
    value = PrePickled([numpy.zeros(n_items)])
    data, buffers = dumps(value)
    sent = loads(data, [bytearray(b.raw()) for b in buffers])
    for made in (value.load(), sent, loads(dumps_in_band(value))):
        made[0][:] = 1
    # What is done to one copy is not seen in the next.
    assert value.load()[0].sum() == 0


def test_prepickled():
    numpy = pytest.importorskip("numpy")
    value = PrePickled({"x": numpy.arange(5000), "f": lambda: 3})
    data, buffers = dumps([value, 1])
    (back, one) = loads(data, [bytearray(b.raw()) for b in buffers])
    assert back["x"].sum() == sum(range(5000))
    assert back["f"]() == 3
    assert one == 1


def test_error_records():
    try:
        {}["key"]
    except KeyError as error:
        remote = load_error(dump_error(error, 3, "u"))
    assert (remote.ename, remote.evalue) == ("KeyError", "'key'")
    assert remote.engine_info == {"engine_id": 3, "engine_uuid": "u", "method": "apply"}
    assert isinstance(remote.__cause__, KeyError)
    assert "test_error_records" in remote.traceback

    class Bad(Exception):
        def __str__(self):
            raise RuntimeError

        def __reduce__(self):
            raise RuntimeError

    remote = load_error(dump_error(Bad()))
    assert remote.ename == "Bad"
    assert type(remote.__cause__) is Bad
    assert load_error(b"junk").ename == "UnreadableError"


def test_names():
    assert function_name(math.sqrt) == "sqrt"
    assert function_name(functools.partial(math.sqrt, 1)) == "sqrt"
    assert function_name(MapChunk(math.sqrt)) == "sqrt"
    assert function_name(ipp.Reference("f")) == "f"
