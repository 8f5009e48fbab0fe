"""Functions on their way to engines: the body that is sent once, and the callable made of it there.

A body is the pickle of a callable. Importable functions are pickled by reference, others by value (see `by_value`). A
body that holds anything that a call could change in place is unpacked again for each call. Large values that a function
captured are no part of its body: they travel with each call, as arguments do.
"""

from __future__ import annotations

import functools
import os
import pickle
from _thread import allocate_lock  # not `threading`: a rank that starts does not need it
from collections import OrderedDict
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

from broadleaf.errors import SerializationError
from broadleaf.serialize import PROTOCOL, asked_for
from broadleaf.serialize.buffers import INBAND_BUFFER_BYTES
from broadleaf.serialize.functions import namespace as _namespace
from broadleaf.serialize.functions.callables import check_callable
from broadleaf.serialize.functions.chunks import MapChunk
from broadleaf.serialize.functions.namespace import Namespace, collecting_fills, current_namespace, fill, set_namespace
from broadleaf.serialize.functions.snapshot import Snapshot, is_importable
from broadleaf.serialize.reference import Reference
from broadleaf.serialize.unfindable import modules_not_by_name, shipped_modules

Function = Callable[..., Any]

# How many functions' bodies are kept here, by the controller and by engines, and how many bytes one may have: longer
# ones travel with each call. Most bodies are a few hundred bytes.
_CACHE_ENTRIES = 512
MAX_KEPT_BODY_BYTES = 64 * 1024
# Maximum size of a body on the wire.
MAX_BODY_BYTES = 64 * 1024 * 1024
# A function with more buffers keeps them in its pickle: each costs a mapping, and every call names each of them.
_MAX_CAPTURED_BUFFERS = 256
_bodies: OrderedDict[tuple[Any, ...], tuple[Snapshot, bytes]] = OrderedDict()
_bodies_lock = allocate_lock()


class CallReference:
    """Calls whatever a reference refers to at the time of the call."""

    __slots__ = ("reference",)

    def __init__(self, reference: Reference) -> None:
        self.reference: Reference = reference

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return callable_of(_namespace.evaluate(self.reference.name))(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _call_reference, (self.reference.name,)


def _call_reference(name: str) -> CallReference:
    return CallReference(Reference(name))


class Fresh:
    """A callable that is unpacked for each call, because a call may change what it holds."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return callable_of(pickle.loads(self._data))(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Fresh, (self._data,)


class Template:
    """A callable whose captured values come with each call and from which it is rebuilt each time.

    `data` is its pickle without its buffers; None if that comes with the call, too, as the first of them.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes | None) -> None:
        self._data = data

    def bind(self, buffers: list[Any]) -> Function:
        """The callable that a call brought along."""
        if self._data is not None:
            return callable_of(pickle.loads(self._data, buffers=buffers))
        return callable_of(pickle.loads(buffers[0], buffers=buffers[1:]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Template, (self._data,)


class Constant:
    """A large callable that no call can change. It comes with each call, and is unpacked once for consecutive calls."""

    __slots__ = ()

    # The callable of the last call, and the name that its submission gave it. Only one, because it may have any size.
    _last: tuple[bytes, Function] | None = None

    def bind(self, buffers: list[Any]) -> Function:
        """The callable that a call brought along, given as a name and the pickle of a callable."""
        name = bytes(buffers[0])
        last = Constant._last
        if last is not None and last[0] == name:
            return last[1]
        Constant._last = None
        function = unpacked(buffers[1])
        Constant._last = (name, function)
        return function

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, ()


class Filled:
    """A function of the namespace whose fills are updated at each call."""

    __slots__ = ("_fills", "_function", "_namespace")

    def __init__(self, function: Function, namespace: Namespace, fills: dict[str, Any]) -> None:
        self._function = function
        self._namespace = namespace
        self._fills = fills

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fill(self._namespace, self._fills)
        return self._function(*args, **kwargs)


def function_name(function: Any) -> str:
    """A display name for any callable."""
    if isinstance(function, Reference):
        return function.name
    if isinstance(function, MapChunk):
        return function_name(function.function)
    name = getattr(function, "__name__", None)
    if isinstance(name, str):
        return name
    if isinstance(function, functools.partial):
        return function_name(function.func)
    return type(function).__name__


def resolve_function(function: Any, out_of_band: bool = True) -> tuple[bytes, bool, list[pickle.PickleBuffer]]:
    """The body of `function`, whether this object will always have this body, and the buffers that travel with each
    call.

    The buffers hold its large captured values, unless `out_of_band` is False. Raises `SerializationError`, which says
    which part of the function cannot be sent.
    """
    if isinstance(function, Reference):
        return pickle.dumps(CallReference(function), PROTOCOL), False, []
    if isinstance(function, MapChunk):
        if isinstance(function.function, Reference):
            inner = CallReference(function.function)
            return pickle.dumps(MapChunk(inner), PROTOCOL), False, []
        return _resolve(function, function.function, out_of_band)
    return _resolve(function, function, out_of_band)


def _resolve(whole: Function, function: Function, out_of_band: bool) -> tuple[bytes, bool, list[pickle.PickleBuffer]]:
    """`whole` is `function`, or a `MapChunk` of it."""
    check_callable(function)
    if isinstance(function, FunctionType | BuiltinFunctionType | type) and is_importable(function):
        return pickle.dumps(whole, PROTOCOL), True, []
    if not isinstance(function, FunctionType):
        return _made_anew(whole, function, *_dump(whole, function, None, out_of_band))
    others = modules_not_by_name()
    key = (function, isinstance(whole, MapChunk), asked_for.brings_globals(), others, others and shipped_modules())
    known = _bodies.get(key)
    if known is not None and known[0].holds():
        return known[1], False, []
    snapshot = Snapshot()
    data, buffers = _dump(whole, function, snapshot, out_of_band)
    if not snapshot.complete or (buffers is None and len(data) > MAX_BODY_BYTES):
        return _made_anew(whole, function, data, buffers)
    if buffers is not None and len(data) > MAX_KEPT_BODY_BYTES:
        name = pickle.PickleBuffer(os.urandom(16))
        return pickle.dumps(Constant(), PROTOCOL), False, [name, pickle.PickleBuffer(data)]
    if snapshot.fixed:
        return data, True, []
    with _bodies_lock:
        _bodies[key] = (snapshot, data)
        _bodies.move_to_end(key)
        if len(_bodies) > _CACHE_ENTRIES:
            _bodies.popitem(last=False)
    return data, False, []


def _dump(
    whole: Function, function: Function, snapshot: Snapshot | None, out_of_band: bool
) -> tuple[bytes, list[pickle.PickleBuffer] | None]:
    """The pickle of `whole`, and its buffers, which are None where they are in band."""
    from broadleaf.serialize.functions.by_value import dumps_by_value

    buffers: list[pickle.PickleBuffer] | None = [] if out_of_band else None
    try:
        data = dumps_by_value(whole, buffers, snapshot)
        if buffers and len(buffers) > _MAX_CAPTURED_BUFFERS:
            data, buffers = dumps_by_value(whole, None, snapshot), []
    except Exception as error:
        from broadleaf.serialize.functions.captured import reason_of_failure

        what = f"the function {function_name(function)!r}"
        raise SerializationError(what, reason_of_failure(function, error)) from error
    return data, buffers


def _made_anew(
    whole: Function, function: Function, data: bytes, buffers: list[pickle.PickleBuffer] | None
) -> tuple[bytes, bool, list[pickle.PickleBuffer]]:
    """The result of `resolve_function` for a function that each call unpacks from `data`."""
    if buffers is None:
        if len(data) > MAX_BODY_BYTES:
            from broadleaf.serialize.functions.captured import function_too_large

            raise function_too_large(function, function_name(function), len(data), MAX_BODY_BYTES)
        return pickle.dumps(Fresh(data), PROTOCOL), False, []
    if len(data) > INBAND_BUFFER_BYTES:
        return pickle.dumps(Template(None), PROTOCOL), False, [pickle.PickleBuffer(data), *buffers]
    if buffers:
        return pickle.dumps(Template(data), PROTOCOL), False, buffers
    return pickle.dumps(Fresh(data), PROTOCOL), False, []


def callable_of(obj: Any) -> Function:
    """`obj` made ready to call: with the dependency check of a function that has one, even inside a map or partial."""
    function: Any = obj
    while not hasattr(function, "check_dependency"):
        if isinstance(function, MapChunk):
            function = function.function
        elif isinstance(function, functools.partial):
            function = function.func
        else:
            return obj  # type: ignore[no-any-return]
    return Conditional(obj, function.check_dependency)


class Conditional:
    """Checks a condition on this engine, then makes a call."""

    __slots__ = ("_call", "_check")

    def __init__(self, call: Function, check: Callable[[], None]) -> None:
        self._call = call
        self._check = check

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._check()
        return self._call(*args, **kwargs)


def load_function(body: bytes, namespace: Namespace | None = None) -> Function:
    """The callable of a body, to keep and call many times.

    `namespace` becomes the namespace of this process if it is not already (see `set_namespace`).
    """
    if namespace is not None and namespace is not current_namespace():
        set_namespace(namespace)
    return unpacked(body)


def unpacked(data: Any) -> Function:
    """The callable of a pickle, which can be called many times."""
    with collecting_fills() as fills:
        function = callable_of(pickle.loads(data))
    known = current_namespace()
    if fills and known is not None:
        return Filled(function, known, fills)
    return function
