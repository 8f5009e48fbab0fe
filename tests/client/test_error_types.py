"""An error from an engine is also an instance of the type that was raised there."""

import abc
import concurrent.futures
import copy
import errno
import pickle
import sys
import threading
from types import SimpleNamespace

import broadleaf as ipp
import pytest
from broadleaf import error
from broadleaf.errors import composite, fresh
from broadleaf.errors import types as error_types
from broadleaf.errors.display import render_in_ipython
from broadleaf.serialize.errors import FailedItem, dump_error, load_error


class OddArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.a, self.b = a, b


class KeywordOnly(Exception):
    def __init__(self, *, code):
        super().__init__("code")
        self.code = code


class OddNew(Exception):
    def __new__(cls, a, b):
        return super().__new__(cls, a)

    def __init__(self, a, b):
        self.b = b


class Slotted(ValueError):
    __slots__ = ("x",)

    def __init__(self, x):
        super().__init__("slots")
        self.x = x


class Frozen(Exception):
    def __setattr__(self, name, value):
        raise TypeError("frozen")


class Registering(Exception):
    def __init_subclass__(cls, *, code):
        cls.code = code


class Abstract(Exception, metaclass=abc.ABCMeta):
    @abc.abstractmethod
    def say(self): ...


class Concrete(Abstract):
    def say(self): ...


class WithLock(Exception):
    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()
        self.n = 3


class Unprintable(Exception):
    def __str__(self):
        raise SystemExit(3)


class Final(Exception):
    def __reduce__(self):
        raise SystemExit(3)

    def __getattribute__(self, name):
        if name == "__dict__":
            raise SystemExit(3)
        return super().__getattribute__(name)


class Unpicklable(Exception):
    def __reduce__(self):
        raise SystemExit(3)


class Interrupting(Exception):
    def __str__(self):
        raise KeyboardInterrupt


class ClaimsOurNames(Exception):
    ename = property(lambda self: "mine")


def sent(exception, engine_id=0, item=None):
    """The exception that a client makes from one that an engine raised."""
    try:
        raise exception
    except BaseException as raised:
        return load_error(dump_error(raised, engine_id, "u", item=item))


PLAIN = [
    KeyError("k"), ValueError(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ImportError("no", name="m"),
    FileNotFoundError(errno.ENOENT, "none", "/f"), MemoryError(), RecursionError(), OddArguments(1, 2),
    KeywordOnly(code=5), OddNew(1, 2), Slotted(4), Frozen(), Concrete(), WithLock(), Registering("r"),
    ExceptionGroup("several", [ValueError(1), KeyError(2)]), Unpicklable(),
    ipp.SerializationError("argument 1", "no"), ipp.InPlaceMismatch("shape"),
]  # fmt: skip


@pytest.mark.parametrize("exception", PLAIN, ids=lambda exception: type(exception).__name__)
def test_it_is_of_both_types(exception):
    remote = sent(exception)
    assert isinstance(remote, ipp.RemoteError)
    assert isinstance(remote, type(exception))
    assert remote.ename == type(exception).__name__
    assert remote.args == exception.args or isinstance(exception, ExceptionGroup)
    assert type(remote.__cause__) is type(exception)
    for again in (copy.copy(remote), pickle.loads(pickle.dumps(remote)), fresh(remote)):
        assert type(again) is type(remote)
        assert str(again) == str(remote)
        assert again.render_traceback() == remote.render_traceback()
        assert type(again.__cause__) is type(exception)
    for kind in (type(exception), ipp.RemoteError):
        with pytest.raises(kind):
            raise fresh(remote)
    original = remote.as_original()
    assert type(original) is type(exception)
    assert type(original.__cause__) is error.RemoteTraceback
    assert "Remote traceback, engine 0" in str(original.__cause__)
    assert original is not remote.as_original()


def test_attributes_of_the_original_are_there():
    assert sent(FileNotFoundError(errno.ENOENT, "none", "/f")).errno == errno.ENOENT
    assert sent(FileNotFoundError(errno.ENOENT, "none", "/f")).filename == "/f"
    assert sent(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")).object == b"\xff"
    assert sent(ImportError("no", name="m")).name == "m"
    assert sent(KeyError("k")).args == ("k",)
    assert str(sent(KeyError("k"))) == "[0:apply] KeyError: 'k'"
    assert sent(OddArguments(1, 2)).b == 2
    assert sent(Slotted(4)).x == 4
    assert sent(WithLock()).n == 3
    assert not hasattr(sent(WithLock()), "lock")
    assert sent(ExceptionGroup("several", [ValueError(1)])).exceptions[0].args == (1,)
    for exception in (TimeoutError("mine"), OSError("mine"), FileNotFoundError(errno.ENOENT, "none", "/f")):
        assert str(sent(exception).as_original()) == str(exception)
    copied = fresh(sent(FileNotFoundError(errno.ENOENT, "none", "/f")))
    assert (copied.errno, copied.filename) == (errno.ENOENT, "/f")


@pytest.mark.parametrize(
    ("exception", "raised_as"),
    [
        (SystemExit(4), ipp.RemoteError),
        (KeyboardInterrupt(), ipp.RemoteError),
        (GeneratorExit(), ipp.RemoteError),
        (StopIteration(3), ipp.RemoteError),
        (StopAsyncIteration(), ipp.RemoteError),
        (concurrent.futures.CancelledError(), ipp.RemoteError),
        (TimeoutError("mine"), TimeoutError),
        (SyntaxError("bad"), SyntaxError),
        (ipp.TaskAborted("inner"), ipp.RemoteError),
        (ipp.LinkLost("inner"), ipp.LinkLost),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_would_mislead_is_a_remote_error_alone(exception, raised_as):
    remote = sent(exception)
    assert type(remote) is ipp.RemoteError
    assert type(remote.__cause__) is type(exception)
    assert isinstance(remote.as_original(), raised_as)
    assert isinstance(remote.as_original(), Exception)


def test_a_group_keeps_its_members_whatever_one_of_them_is():
    class Own(ExceptionGroup):
        def __new__(cls, members, code):
            made = super().__new__(cls, "own", members)
            made.code = code
            return made

        def __init__(self, members, code):
            super().__init__(members, code)

        def derive(self, members):
            return Own(members, self.code)

    odd = [WithLock(), Unprintable(), Final("final"), Concrete()]
    inner = ExceptionGroup("inner", [KeyError(2), *odd])
    for group in (ExceptionGroup("g", [ValueError(1), inner, *odd]), Own([ValueError(1), inner, *odd], 7)):
        remote = sent(group)
        for error_here in (remote, remote.as_original(), fresh(remote), pickle.loads(pickle.dumps(remote))):
            assert isinstance(error_here, type(group))
            assert error_here.message == group.message
            assert getattr(error_here, "code", None) == getattr(group, "code", None)
            value_error, within, lock, unprintable, final, concrete = error_here.exceptions
            assert (type(value_error), value_error.args) == (ValueError, (1,))
            assert [type(one) for one in within.exceptions[:3]] == [KeyError, WithLock, Unprintable]
            assert [type(one) for one in (lock, unprintable, concrete)] == [WithLock, Unprintable, Concrete]
            assert (type(final), final.ename, final.evalue) == (ipp.RemoteError, "Final", "final")
        caught = []
        try:
            raise fresh(remote)
        except* ValueError as part:
            caught.append(part.exceptions[0].args)
        except* KeyError as part:
            caught.append(part.exceptions[0].exceptions[0].args)
        except* Exception as part:
            caught.append(len(part.exceptions))
        assert caught == [(1,), (2,), 5]


class ParseError(SyntaxError):
    position = None


class SlowModel(TimeoutError):
    pass


def test_only_what_misleads_is_left_out_not_what_is_made_of_it():
    parse_error = ParseError("unclosed token")
    parse_error.position = (1, 0)
    remote = sent(parse_error)
    assert (remote.msg, remote.position) == ("unclosed token", (1, 0))
    for exception in (parse_error, SlowModel("slow")):
        assert isinstance(sent(exception), type(exception))
        assert isinstance(sent(exception), ipp.RemoteError)
    for exception in (IndentationError("bad"), TabError("bad")):
        assert type(sent(exception)) is ipp.RemoteError


def test_a_generator_is_not_ended_by_a_remote_stop_iteration():
    def values():
        yield 1
        raise sent(StopIteration(3))

    with pytest.raises(ipp.RemoteError):
        list(values())


def test_types_that_cannot_be_both_are_remote_errors():
    class Final(type):
        def __new__(mcs, name, bases, body):
            if any(isinstance(base, Final) for base in bases):
                raise TypeError("final")
            return super().__new__(mcs, name, bases, body)

    kind = Final("FinalError", (ValueError,), {})
    assert error_types.joint_type(ipp.RemoteError, kind) is ipp.RemoteError
    assert type(sent(ClaimsOurNames())) is ipp.RemoteError
    assert sent(ClaimsOurNames()).ename == "ClaimsOurNames"


def test_what_can_neither_be_printed_nor_sent_is_still_a_record():
    for exception in (Unprintable(), Interrupting()):
        remote = sent(exception)
        assert remote.ename == type(exception).__name__
        assert "its text is not available" in remote.evalue
    assert isinstance(sent(Unprintable()), Unprintable)


def test_a_large_exception_keeps_its_type():
    remote = sent(ValueError("y" * 3_000_000, 5))
    assert isinstance(remote, ValueError)
    assert remote.args[1] == 5
    assert len(pickle.dumps(remote)) < 200_000


def test_types_are_made_once_and_not_kept_for_ever():
    assert type(sent(KeyError(1))) is type(sent(KeyError(2)))
    for i in range(2 * error_types._KEPT_TYPES):
        error_types.joint_type(ipp.RemoteError, type(f"Error{i}", (Exception,), {}))
    assert error_types.joint_type.cache_info().currsize <= error_types._KEPT_TYPES
    with pytest.raises(KeyError):
        raise sent(KeyError(1))


def test_notes_are_added_and_copies_have_their_own():
    remote = sent(KeyError("k"))
    remote.add_note("added")
    assert remote.__notes__[0].startswith("Remote traceback, engine 0:\n  Traceback")
    assert remote.__notes__[1] == "added"
    assert len(fresh(remote).__notes__) == 1


def test_a_composite_error_is_of_the_common_type():
    missing, refused = FileNotFoundError(errno.ENOENT, "none", "/f"), PermissionError(errno.EPERM, "no", "/g")
    both = composite([sent(missing), sent(refused)], "f")
    assert isinstance(both, OSError)
    assert not isinstance(both, FileNotFoundError)
    assert both.errno == errno.ENOENT
    again = pickle.loads(pickle.dumps(both))
    assert isinstance(again, OSError)
    assert str(again) == str(both)
    assert [type(one) for one in again.exceptions] == [type(one) for one in both.exceptions]
    assert type(composite([sent(KeyError("k")), sent(missing)], "f")) is ipp.CompositeError
    assert isinstance(composite([sent(KeyError("k")), sent(IndexError("i"))], "f"), LookupError)
    assert type(composite([sent(KeyError("k")), ipp.TaskAborted()], "f")) is ipp.CompositeError
    assert type(composite([sent(ValueError(1)), sent(ClaimsOurNames())], "f")) is ipp.CompositeError
    no_module = composite([sent(ImportError("no", name="m")), sent(ModuleNotFoundError("none"))], "f")
    assert isinstance(no_module, ImportError)
    assert no_module.msg == "one or more exceptions raised in: f"
    groups = composite([sent(ExceptionGroup("g", [ValueError(1)]))], "f")
    assert isinstance(groups, ipp.CompositeError)
    assert isinstance(groups.exceptions[0], ExceptionGroup)
    assert isinstance(composite([sent(KeyError("k"))], "f").as_original(), KeyError)


def test_an_error_of_an_inner_cluster_is_of_the_inner_type():
    inner = sent(KeyError("k"), 7)
    outer = sent(inner, 3)
    assert isinstance(outer, KeyError)
    assert outer.engine_info["engine_id"] == 3
    assert isinstance(outer.__cause__, KeyError)
    assert outer.__cause__.engine_info["engine_id"] == 7


def test_items():
    class Breaks:
        def __repr__(self):
            raise SystemExit

    assert sent(ValueError(), item=FailedItem(2, ("x",))).item_repr == "'x'"
    assert sent(ValueError(), item=FailedItem(2, (1, [2]))).item_repr == "(1, [2])"
    for value in ("x" * 10**7, b"x" * 10**7, bytearray(10**7), list(range(10**6)), {"k": "v" * 10**6}, 10**5000):
        assert len(sent(ValueError(), item=FailedItem(2, (value,))).item_repr) <= 100
    assert sent(ValueError(), item=FailedItem(2, (Breaks(),))).item_repr == "<no text: SystemExit>"


def test_what_ipython_shows_of_an_error_is_not_sent_with_it(monkeypatch):
    # A task that waits for another one raises its error on, from an engine with IPython's shell.
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    error = OddArguments(1, 2)
    render_in_ipython(error)
    assert "_render_traceback_" in vars(error)
    monkeypatch.delitem(sys.modules, "IPython")
    assert vars(load_error(dump_error(error)).__cause__) == {"a": 1, "b": 2}


def test_a_traceback_method_of_the_users_own_is_sent(monkeypatch):
    error = OddArguments(1, 2)
    error._render_traceback_ = len
    assert vars(load_error(dump_error(error)).__cause__) == {"a": 1, "b": 2, "_render_traceback_": len}
