"""What functions see on an engine: its namespace, what is filled in there, references, and a cache of the process."""

from __future__ import annotations

import builtins
import io
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Protocol

from broadleaf.serialize import PROTOCOL

# Whether two values have the same content, told from a short token of each.


_ATOMS = frozenset({type(None), bool, int, str, bytes})
# Larger values have no token: to make it would take longer than to replace them.
_MAX_BYTES = 1 << 20
_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType)


class _TooLargeError(Exception):
    """The value is too large for a token."""


class _Counted(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > _MAX_BYTES:
            raise _TooLargeError
        return super().write(data)


class _ContentPickler(pickle.Pickler):
    """Pickles functions, classes and modules as numbers, and keeps them in `named`."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, PROTOCOL)
        self.named: list[Any] = []

    def reducer_override(self, obj: Any) -> Any:
        """How to pickle an object that is not of a basic type."""
        if obj is int or not isinstance(obj, _NAMED):
            return NotImplemented
        self.named.append(obj)
        return int, (len(self.named),)


def token_of(value: Any) -> Any:
    """A token of a value's content; None if it has none. Values with equal tokens are alike in this process.

    Functions, classes and modules are alike only if they are one object, which the token holds.
    """
    kind = type(value)
    if kind in _ATOMS or isinstance(value, _NAMED):
        return kind, value
    stream = _Counted()
    pickler = _ContentPickler(stream)
    try:
        pickler.dump(value)
    except Exception:
        return None
    data = stream.getvalue()
    return kind, len(data), hash(data), tuple(pickler.named)


# The namespace that functions sent by value see as their globals, and the values filled into it.
#
# An engine sets its namespace once. If none is set (as in a client), a function that was sent by value gets globals
# of its own, so that what it brings never touches the user's variables.


Namespace = dict[str, Any]


class Record(Protocol):
    """Something that functions bring along and that all of them share, such as a class."""

    sent: Any
    """How it was sent last."""

    def apply(self, sent: Any) -> None:
        """Makes it what was sent."""


class Fill:
    """A global that a function brought along, and a token of its content as it was sent; see `token_of`."""

    __slots__ = ("token", "value")

    def __init__(self, value: Any, token: Any) -> None:
        self.value: Any = value
        self.token: Any = token


class Brought:
    """What functions have brought along that other functions may replace."""

    __slots__ = ("_filled", "_namespace", "fills", "records")

    def __init__(self) -> None:
        self.fills: dict[str, Fill] = {}
        self.records: list[tuple[Record, Any]] = []
        self._namespace = _namespace
        self._filled = _filled

    def __bool__(self) -> bool:
        return self._namespace is not None and bool(self.fills or self.records)

    def bring_again(self) -> bool:
        """Puts back what calls of other functions have replaced since. False if the namespace was cleared."""
        namespace, filled = self._namespace, self._filled
        if namespace is None or filled is not _filled:
            return False
        for record, sent in self.records:
            if record.sent is not sent:
                record.apply(sent)
        for name, made in self.fills.items():
            present = namespace.get(name, _MISSING)
            if present is made.value:
                continue
            earlier = filled.get(name)
            if present is _MISSING or (earlier is not None and present is earlier.value):
                namespace[name] = made.value
                filled[name] = made
        return True


_MISSING = object()
_namespace: Namespace | None = None
# name -> what a fill has put there, so that a fill never replaces what the user has set
_filled: dict[str, Fill] = {}
# name -> why the client that has a value for it could not send it
_left_out: dict[str, str] = {}
_MAX_LEFT_OUT = 1000
# what the functions being loaded bring along; a call of a cached function fills again from it
_collecting: Brought | None = None


def set_namespace(namespace: Namespace | None) -> None:
    """Makes `namespace` the globals of functions loaded from now on (an engine: its user's variables)."""
    global _namespace, _filled
    _namespace, _filled = namespace, {}
    _left_out.clear()
    if namespace is not None and namespace.get("__doc__", _MISSING) is None:
        # As every module has it. A program's own replaces it.
        _filled["__doc__"] = Fill(None, None)


def current_namespace() -> Namespace | None:
    """The namespace set for this process, or None."""
    return _namespace


def function_globals() -> Namespace:
    """The globals for a function that is being loaded."""
    if _namespace is not None:
        return _namespace
    return {"__builtins__": builtins, "__name__": "__main__"}


def fill(namespace: Namespace, values: Mapping[str, Any]) -> None:
    """Sets the names that `namespace` lacks, or has only from an earlier fill and unchanged since.

    A value that was sent before with the same content stays what it is now: tasks may have changed it in place.
    """
    if namespace is not _namespace:
        namespace.update(values)
        return
    for name, value in values.items():
        present, earlier = namespace.get(name, _MISSING), _filled.get(name)
        if earlier is not None and present is not earlier.value:
            earlier = None
        if earlier is not None and present is value:
            made = earlier
        else:
            made = Fill(value, token_of(value))
            if earlier is not None and made.token is not None and made.token == earlier.token:
                made = earlier
            elif earlier is not None or present is _MISSING:
                namespace[name] = value
                _filled[name] = made
        if _collecting is not None:
            _collecting.fills[name] = made


def note_brought(record: Record, sent: Any) -> None:
    """Notes what a function that is being loaded has brought along."""
    if _collecting is not None:
        _collecting.records.append((record, sent))


@contextmanager
def collecting() -> Iterator[Brought]:
    """Collects what the functions loaded inside the block bring along."""
    global _collecting
    outer, _collecting = _collecting, Brought()
    try:
        yield _collecting
    finally:
        _collecting = outer


def note_left_out(reasons: Mapping[str, str]) -> None:
    """Records globals that a function could not bring along, and why; only the latest ones."""
    for name, reason in reasons.items():
        _left_out.pop(name, None)
        _left_out[name] = reason
    for name in list(_left_out)[: max(0, len(_left_out) - _MAX_LEFT_OUT)]:
        del _left_out[name]


def explain_name(error: NameError) -> None:
    """Completes the message of an error about a name that a function could not bring along."""
    reason = _left_out.get(error.name) if isinstance(error.name, str) else None
    if reason is not None and len(error.args) == 1 and not isinstance(error, UnboundLocalError):
        error.args = (f"{error}, and your session's value cannot be pickled ({reason})",)


def evaluate(expression: str) -> Any:
    """The value of `expression` in the namespace; raises NameError if there is no namespace."""
    if _namespace is None:
        raise NameError(f"name {expression!r} is a Reference, which only an engine can resolve")
    return eval(expression, _namespace)


def is_from_reference(error: BaseException) -> bool:
    """Whether the expression of a `Reference` raised it."""
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code is evaluate.__code__:
            return True
        place = place.tb_next
    return False


# References: names that stand for an engine's own objects among the arguments of a call.


class Reference:
    """A placeholder for the value of an expression in the namespace of the engine that receives it.

    `view.apply(f, Reference("a"))` calls `f(a)` with each engine's own `a`; the value itself is not sent. If the
    expression raises, so does the task.

    Args:
        name: The expression, such as a variable's name.

    Raises:
        TypeError: `name` is not a str.

    Example:
        >>> _ = rc[:].scatter("part", range(8), block=True)
        >>> rc[:].apply_sync(sum, ipp.Reference("part"))
        [1, 5, 9, 13]
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a Reference takes an expression as a str, not {type(name).__name__}")
        self.name: str = name

    def __repr__(self) -> str:
        return f"<Reference: {self.name!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and other.name == self.name

    def __hash__(self) -> int:
        return hash((Reference, self.name))

    def __reduce__(self) -> tuple[Any, ...]:
        return evaluate, (self.name,)


# A dictionary that every process has, and no pickle copies.


class EngineCache(dict[Any, Any]):
    """A dictionary of the process that a task runs in: later tasks on an engine find what earlier ones have put there.

    Wherever a function refers to it, it means the dictionary of the engine; its contents are never sent. All clients
    share it, like the engine's variables, and `view.clear()` empties it.

    Example:
        >>> def predict(x):
        ...     if "model" not in ipp.engine_cache:
        ...         ipp.engine_cache["model"] = {"weight": 2}
        ...     return ipp.engine_cache["model"]["weight"] * x
        >>> rc.load_balanced_view().map_sync(predict, range(4))
        [0, 2, 4, 6]
    """

    def __reduce__(self) -> str:
        return "engine_cache"


engine_cache: EngineCache = EngineCache()
"""This process's own."""
