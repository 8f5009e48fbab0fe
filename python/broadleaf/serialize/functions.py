"""Functions on their way to engines: the body that is sent once, and the callable made of it there.

A body is the pickle of a callable. What can be imported goes by reference; the rest by value (see `by_value`). A body
that holds anything that a call could change in place is unpacked anew for each call.
"""

from __future__ import annotations

import functools
import pickle
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from types import BuiltinFunctionType, FunctionType
from typing import Any

from broadleaf.errors import SerializationError
from broadleaf.serialize import PROTOCOL
from broadleaf.serialize import namespace as _namespace
from broadleaf.serialize.errors import Failed
from broadleaf.serialize.namespace import Namespace, collecting_fills, current_namespace, fill, set_namespace
from broadleaf.serialize.reference import Reference
from broadleaf.serialize.snapshot import Snapshot, is_importable

Function = Callable[..., Any]

# Functions whose body is kept; each is a few hundred bytes.
_CACHE_ENTRIES = 512
_bodies: OrderedDict[tuple[Any, ...], tuple[Snapshot, bytes]] = OrderedDict()
_bodies_lock = Lock()


class MapChunk:
    """Calls a function on each item of a chunk: `chunk(items)` or `chunk(items1, items2, ...)`."""

    __slots__ = ("__weakref__", "catch", "function")

    def __init__(self, function: Any, catch: bool = False) -> None:
        self.function = function
        self.catch = catch
        """Whether an item that raises becomes a `Failed` in the result, in place of the chunk raising."""

    def __call__(self, *sequences: Any) -> list[Any]:
        if not self.catch:
            return list(map(self.function, *sequences))
        results: list[Any] = []
        for arguments in zip(*sequences, strict=False):
            try:
                results.append(self.function(*arguments))
            except Exception as error:
                results.append(Failed.of(error))
        return results

    def __reduce__(self) -> tuple[Any, ...]:
        return MapChunk, (self.function, self.catch)

    @property
    def __name__(self) -> str:
        return function_name(self.function)


class CallReference:
    """Calls whatever a reference stands for at the time of the call."""

    __slots__ = ("reference",)

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _namespace.evaluate(self.reference.name)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _call_reference, (self.reference.name,)


def _call_reference(name: str) -> CallReference:
    return CallReference(Reference(name))


class Fresh:
    """A callable that is unpacked for each call, since a call may change what it holds."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return callable_of(pickle.loads(self._data))(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Fresh, (self._data,)


class Filled:
    """A function of the namespace whose fills are looked after at each call."""

    __slots__ = ("_fills", "_function", "_namespace")

    def __init__(self, function: Function, namespace: Namespace, fills: dict[str, Any]) -> None:
        self._function = function
        self._namespace = namespace
        self._fills = fills

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fill(self._namespace, self._fills)
        return self._function(*args, **kwargs)


def function_name(function: Any) -> str:
    """A name to show for any callable."""
    if isinstance(function, Reference):
        return function.name
    name = getattr(function, "__name__", None)
    if isinstance(name, str):
        return name
    if isinstance(function, functools.partial):
        return function_name(function.func)
    return type(function).__name__


def resolve_function(function: Any) -> tuple[bytes, bool]:
    """The body of `function`, and whether this very object will always have this body.

    Raises `SerializationError`, which says what about the function cannot be sent.
    """
    if isinstance(function, Reference):
        return pickle.dumps(CallReference(function), PROTOCOL), False
    if isinstance(function, MapChunk):
        if isinstance(function.function, Reference):
            inner = CallReference(function.function)
            return pickle.dumps(MapChunk(inner, function.catch), PROTOCOL), False
        return _resolve(function, function.function)
    return _resolve(function, function)


def _resolve(whole: Function, function: Function) -> tuple[bytes, bool]:
    """`whole` is `function`, or a `MapChunk` of it."""
    if isinstance(function, FunctionType | BuiltinFunctionType | type) and is_importable(function):
        return pickle.dumps(whole, PROTOCOL), True
    if not isinstance(function, FunctionType):
        return _dump(whole, None), False
    key = (function, whole.catch if isinstance(whole, MapChunk) else None)
    known = _bodies.get(key)
    if known is not None and known[0].holds():
        return known[1], False
    snapshot = Snapshot()
    body = _dump(whole, snapshot)
    if snapshot.fixed:
        return body, True
    if snapshot.complete:
        with _bodies_lock:
            _bodies[key] = (snapshot, body)
            _bodies.move_to_end(key)
            if len(_bodies) > _CACHE_ENTRIES:
                _bodies.popitem(last=False)
    return body, False


def _dump(function: Function, snapshot: Snapshot | None) -> bytes:
    from broadleaf.serialize.by_value import dumps_by_value

    try:
        data = dumps_by_value(function, snapshot=snapshot)
    except Exception as error:
        inner = function.function if isinstance(function, MapChunk) else function
        raise SerializationError(f"the function {function_name(inner)!r}", _blame(inner, error)) from error
    if snapshot is None or not snapshot.complete:
        return pickle.dumps(Fresh(data), PROTOCOL)
    return data


def _blame(function: Function, error: Exception) -> str:
    """Which captured object of `function` cannot be pickled, and why."""
    from broadleaf.serialize.pickle import unpicklable_reason

    candidates: list[tuple[str, Any]] = []
    if isinstance(function, FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            candidates.append((f"its variable {name!r}", getattr(cell, "cell_contents", None)))
        candidates += [(f"its default {value!r}", value) for value in function.__defaults__ or ()]
        candidates += [
            (f"the global {name!r} it refers to", function.__globals__[name])
            for name in function.__code__.co_names
            if name in function.__globals__
        ]
    elif (owner := getattr(function, "__self__", None)) is not None:
        candidates.append(("the object it is a method of", owner))
    for what, value in candidates:
        if value is function:
            continue
        reason = unpicklable_reason(value)
        if reason is not None:
            return f"{what} cannot be pickled: {reason}"
    return f"{type(error).__name__}: {error}"


def callable_of(obj: Any) -> Function:
    """`obj` made ready to call: a dependency check before a function that has one."""
    if hasattr(obj, "check_dependency"):
        return Dependent(obj)
    return obj  # type: ignore[no-any-return]


class Dependent:
    """Checks a `dependent`'s condition on this engine, then calls it."""

    __slots__ = ("_dependent",)

    def __init__(self, dependent: Any) -> None:
        self._dependent = dependent

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._dependent.check_dependency()
        return self._dependent(*args, **kwargs)


def load_function(body: bytes, namespace: Namespace | None = None) -> Function:
    """The callable of a body, to be kept and called many times.

    `namespace` becomes the namespace of this process if it is not yet (see `set_namespace`).
    """
    if namespace is not None and namespace is not current_namespace():
        set_namespace(namespace)
    with collecting_fills() as fills:
        function = callable_of(pickle.loads(body))
    known = current_namespace()
    if fills and known is not None:
        return Filled(function, known, fills)
    return function
