"""Functions on their way to engines: the body that is sent once, and the callable made of it there.

A body is the pickle of a callable. Importable functions are pickled by reference, others by value (see `by_value`). A
function that holds something that a call could change in place is unpacked once, and the next call finds what this one
left (see `snapshot`). Other callables, such as methods and partials, are unpacked for each call: what they hold are
values of the call. Large values that a function captured are no part of its body: they travel with each call, as
arguments do.
"""

from __future__ import annotations

import functools
import os
import pickle
from _thread import _local, allocate_lock  # not `threading`: a rank that starts does not need it
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

from broadleaf.errors import SerializationError
from broadleaf.serialize import PROTOCOL, picklers
from broadleaf.serialize import namespace as _namespace
from broadleaf.serialize.callables import check_callable
from broadleaf.serialize.chunks import MapChunk
from broadleaf.serialize.decorators import dependent
from broadleaf.serialize.namespace import Brought, Namespace, Reference, collecting, current_namespace, set_namespace
from broadleaf.serialize.picklers import INBAND_BUFFER_BYTES
from broadleaf.serialize.snapshot import Snapshot, called, hash_bytes, identity_of, is_importable
from broadleaf.serialize.unfindable import advice_on, modules_not_by_name, shipped_modules
from broadleaf.serialize.values import FAULTS, raise_unloadable
from broadleaf.serialize.wrapped import CachedFunction
from broadleaf.text import warn_once

# What a function carries besides its code, to say which part cannot be sent, and why.


Function = Callable[..., Any]

_LARGE_BYTES = 16 << 20
_MIB = 1 << 20
# What gives each item of a map random numbers of its own, by the kind of generator.
_REMEDIES = {
    "Generator": "view.map(f, items, rng.spawn(len(items)))",
    "RandomState": "view.map(f, items, numpy.random.default_rng(seed).spawn(len(items)))",
    "Random": "view.map(f, items, [random.Random(f'{seed} {i}') for i in range(len(items))])",
}


def captured_values(function: Function) -> list[tuple[str, Any]]:
    """The values that `function` refers to, each with its role in the function."""
    if isinstance(function, FunctionType):
        return _of_plain_function(function)
    if isinstance(function, functools.partial):
        arguments: list[tuple[str, Any]] = [
            (f"argument {i + 1} of the partial", a) for i, a in enumerate(function.args)
        ]
        arguments += [(f"argument {name!r} of the partial", value) for name, value in function.keywords.items()]
        return [*arguments, *captured_values(function.func)]
    owner = getattr(function, "__self__", None)
    if owner is not None:
        what = "the object it is a method of"
        return [*_attributes(what, owner), (what, owner)]
    return _attributes("it", function)


def _of_plain_function(function: FunctionType) -> list[tuple[str, Any]]:
    from broadleaf.serialize.by_value import global_names

    values: list[tuple[str, Any]] = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values.append((f"its variable {name!r}", cell.cell_contents))
        except ValueError:  # not assigned yet
            continue
    code, defaults = function.__code__, function.__defaults__ or ()
    with_default = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    named = [*zip(with_default, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]
    values += [(f"the default of {name!r}", value) for name, value in named]
    known = function.__globals__
    values += [(f"the global {name!r} it refers to", known[name]) for name in global_names(code) if name in known]
    return values


def _attributes(of: str, owner: Any) -> list[tuple[str, Any]]:
    return [(f"attribute {name!r} of {of}", value) for name, value in getattr(owner, "__dict__", {}).items()]


def reason_of_failure(function: Function, error: Exception) -> str:
    """Which value that `function` refers to cannot be pickled, and why."""
    from broadleaf.serialize.values import reason_in, unpicklable_reason

    reason = reason_in(error)
    for what, value in captured_values(function):
        why = None if value is function else unpicklable_reason(value)
        if why is not None:
            reason = f"{what} cannot be pickled: {why}"
            break
    while isinstance(function, functools.partial):
        function = function.func
    advice = advice_on(function)
    return reason if advice in reason else reason + advice


def warn_of_large(function: Function, name: str, n_bytes: int) -> None:
    """Warns, once for a function, that each task of a map unpacks all that it holds."""
    sizes = [(pickled_bytes(value), what) for what, value in captured_values(function) if value is not function]
    value_bytes, what = max(sizes, default=(0, ""))
    whole = "what it holds" if 2 * value_bytes < n_bytes else what
    message = (
        f"Each task of this map unpacks {n_bytes / 1e6:.1f} MB for the function {name!r}: {whole}. Push the data to "
        "the engines once, client[:].push({'name': value}), and use it by that name; or create it there with "
        "ipp.engine_cache"
    )
    warn_once(message, UserWarning, (name, whole))


def function_too_large(function: Function, name: str, n_bytes: int, limit_bytes: int) -> SerializationError:
    """The exception for a function that carries more than can be sent from this host."""
    sizes = [(pickled_bytes(value), what) for what, value in captured_values(function) if value is not function]
    value_bytes, what = max(sizes, default=(0, ""))
    if 2 * value_bytes < n_bytes:
        what, value_bytes = "all it refers to", n_bytes
    return SerializationError(
        f"the function {name!r}",
        f"{what} is {in_mib(value_bytes)}; a function sent from another host can carry at most {in_mib(limit_bytes)}. "
        "Push it to the engines, or pass it as an argument",
    )


def call_too_large(
    function: Function,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    n_bytes: int,
    limit_bytes: int,
    why: str,
) -> SerializationError:
    """The exception for a call that does not fit into a message, which it must because of `why`."""
    named = [*((f"argument {i + 1}", value) for i, value in enumerate(args)), *_named(kwargs)]
    sizes = [(pickled_bytes(value), what, value) for what, value in named]
    value_bytes, what, value = max(sizes, key=lambda entry: entry[0], default=(0, "", None))
    if 2 * value_bytes <= n_bytes and value_bytes < limit_bytes:
        if 2 * sum(size for size, *_ in sizes) < n_bytes:
            return function_too_large(function, name, n_bytes, limit_bytes)
        what, value_bytes, value = f"all arguments of {name!r} together", n_bytes, None
    kind = "" if value is None else f" ({type(value).__name__})"
    return too_large(f"{what}{kind}", value_bytes, limit_bytes, why)


def too_large(what: str, n_bytes: int, limit_bytes: int, why: str) -> SerializationError:
    """The exception for a value that does not fit into a message, which it must because of `why`."""
    return SerializationError(
        what,
        f"{in_mib(n_bytes)} do not fit into one message, which holds {in_mib(limit_bytes)}, and {why}. Send it in "
        "parts, or pass it in a file",
    )


def _named(kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(f"argument {name!r}", value) for name, value in kwargs.items()]


def pickled_bytes(value: Any) -> int:
    """The size of `value` when it is sent; 0 if it cannot be. Approximate if it is large."""
    from broadleaf.serialize.values import dumps

    large_bytes = _large_bytes(value)
    if large_bytes:
        return large_bytes
    try:
        data, buffers = dumps(value)
    except Exception:
        return 0
    return len(data) + sum(memoryview(buffer).nbytes for buffer in buffers)


def _large_bytes(value: Any) -> int:
    """Bytes and text in `value` that are too large to pickle just to count them."""
    items: Any = [value]
    if type(value) in (list, tuple):
        items = value
    elif type(value) is dict:
        items = value.values()
    large = {
        id(item): len(item) for item in items if type(item) in (bytes, bytearray, str) and len(item) >= _LARGE_BYTES
    }
    return sum(large.values())


def in_mib(n_bytes: int) -> str:
    """A size in readable units."""
    return f"{n_bytes / _MIB:,.0f} MiB"


def warn_of_generators(function: Any, name: str, generators: list[Any]) -> None:
    """Warns, once for each, that engines get copies of the generators that a function takes along."""
    from broadleaf.serialize.by_value import kind_of_generator

    # What they draw their bits from.
    within = [getattr(one, "bit_generator", None) or getattr(one, "_bit_generator", None) for one in generators]
    for generator in generators:
        if any(generator is inner for inner in within):
            continue
        where = _place(function, generator, depth=3) or "within what it refers to"
        kind = kind_of_generator(generator) or ""
        warn_once(
            f"The function {name!r} carries a random generator ({where}). Each engine draws the same numbers from "
            f"its copy. Give each item a generator of its own: {_REMEDIES[kind]}",
            UserWarning,
            ("random", name, where),
        )


def _place(function: Any, wanted: Any, depth: int) -> str | None:
    for what, value in captured_values(function):
        if value is wanted:
            return what
        if depth and isinstance(value, FunctionType) and value is not function:
            place = _place(value, wanted, depth - 1)
            if place is not None:
                return f"{place}, in {what}"
    return None


Lasting = bool | tuple[CodeType, tuple[Any, ...] | None]
"""Whether an object will always have the same body, or the code and defaults with which it has it."""

# How many functions' bodies are kept here, by the controller and by engines, and how many bytes one may have: longer
# ones travel with each call. Most bodies are a few hundred bytes.
_CACHE_ENTRIES = 512
MAX_KEPT_BODY_BYTES = 64 * 1024
# Maximum size of all that a function holds for it to be kept between calls. A larger one is unpacked for each.
MAX_KEPT_FUNCTION_BYTES = 1 << 20
# Maximum size of a body on the wire.
MAX_BODY_BYTES = 64 * 1024 * 1024
# A function with more buffers keeps them in its pickle: each costs a mapping, and every call names each of them.
_MAX_CAPTURED_BUFFERS = 256
_bodies: OrderedDict[tuple[Any, ...], tuple[Snapshot, bytes]] = OrderedDict()
_bodies_lock = allocate_lock()
_submitting = _local()


@contextmanager
def for_many_calls() -> Iterator[None]:
    """Around the submission of a function that many tasks call."""
    _submitting.many = True
    try:
        yield
    finally:
        _submitting.many = False


class CallReference:
    """Calls whatever a reference refers to at the time of the call."""

    __slots__ = ("reference",)

    def __init__(self, reference: Reference) -> None:
        self.reference: Reference = reference

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return callable_of(_namespace.evaluate(self.reference.name))(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _call_reference, (self.reference.name,)


def _call_reference(name: str) -> CallReference:
    return CallReference(Reference(name))


class Pickled:
    """Pickles as the callable that `data` is the pickle of."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._data,)


def _loaded(data: Any, buffers: Sequence[Any] = ()) -> Any:
    """A callable, with what it captured. Raises as `load_result` does."""
    try:
        return pickle.loads(data, buffers=buffers)
    except FAULTS as error:
        raise_unloadable(error, "the function")


class Fresh:
    """A callable that is unpacked for each call, because a call may change what it holds. With `chunk` it
    calls it on each item of a chunk.
    """

    __slots__ = ("_chunk", "_data")

    def __init__(self, data: bytes, chunk: bool) -> None:
        self._data = data
        self._chunk = chunk

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return _ready(_loaded(self._data), self._chunk)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Fresh, (self._data, self._chunk)


class Template:
    """A callable whose captured values come with each call and from which it is rebuilt each time.

    `data` is its pickle without its buffers; None if that comes with the call, too, as the first of them. `chunk` is as
    that of `Fresh`.
    """

    __slots__ = ("_chunk", "_data")

    def __init__(self, data: bytes | None, chunk: bool) -> None:
        self._data = data
        self._chunk = chunk

    def bind(self, buffers: list[Any]) -> Function:
        """The callable that a call brought along."""
        if self._data is not None:
            return _ready(_loaded(self._data, buffers), self._chunk)
        return _ready(_loaded(buffers[0], buffers[1:]), self._chunk)

    def __reduce__(self) -> tuple[Any, ...]:
        return Template, (self._data, self._chunk)


class Constant:
    """A large callable that no call can change. It comes with each call, and is unpacked once for consecutive calls.
    `chunk` is as that of `Fresh`.
    """

    __slots__ = ("_chunk",)

    # The callable of the last call, and the name that its submission gave it. Only one, because it may have any size.
    _last: tuple[bytes, Function] | None = None

    def __init__(self, chunk: bool) -> None:
        self._chunk = chunk

    def bind(self, buffers: list[Any]) -> Function:
        """The callable that a call brought along, given as a name and the pickle of a callable."""
        name = bytes(buffers[0])
        last = Constant._last
        if last is not None and last[0] == name:
            return last[1]
        Constant._last = None
        function = unpacked(buffers[1], self._chunk)
        Constant._last = (name, function)
        return function

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, (self._chunk,)


class Kept:
    """A function that stays as its calls leave it, given by its key and its pickle; see `snapshot`. `chunk` is as that
    of `Fresh`.
    """

    __slots__ = ("_chunk", "_data", "_key")

    def __init__(self, key: bytes, data: bytes, chunk: bool) -> None:
        self._key = key
        self._data = data
        self._chunk = chunk

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return _kept(self._key, self._chunk, self._data, ())(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, (self._key, self._data, self._chunk)


class KeptTemplate:
    """A `Kept` whose key, pickle and buffers come with each call."""

    __slots__ = ("_chunk",)

    def __init__(self, chunk: bool) -> None:
        self._chunk = chunk

    def bind(self, buffers: list[Any]) -> Function:
        """The callable that is kept, or else made of what the call brought along."""
        return _kept(bytes(buffers[0]), self._chunk, buffers[1], buffers[2:])

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptTemplate, (self._chunk,)


def _kept(key: bytes, chunk: bool, data: Any, buffers: Sequence[Any]) -> Function:
    entry: tuple[Any, Brought, dict[bool, Function]] | None = called.find(key)
    if entry is None:
        with collecting() as brought:
            # Copies: nothing in shared memory is in use for as long as a function is kept.
            function = _loaded(data, [bytearray(buffer) for buffer in buffers])
        entry = (function, brought, {})
        called.keep(key, entry, len(data) + sum(map(len, buffers)))
    else:
        entry[1].bring_again()
    ready = entry[2].get(chunk)
    if ready is None:
        ready = entry[2][chunk] = _ready(entry[0], chunk)
    return ready


class Filled:
    """A function of the namespace, for which what it brought is put back at each call. `data` and `chunk` are what it
    is unpacked from again after the namespace was cleared.
    """

    __slots__ = ("_brought", "_chunk", "_data", "_function")

    def __init__(self, function: Function, brought: Brought, data: Any, chunk: bool) -> None:
        self._function = function
        self._brought = brought
        self._data = data
        self._chunk = chunk

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if not self._brought.bring_again():
            self._function, self._brought = _unpack(self._data, self._chunk)
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


def resolve_function(function: Any, out_of_band: bool = True) -> tuple[bytes, Lasting, list[pickle.PickleBuffer]]:
    """The body of `function`, whether this object will always have this body or with which code and defaults, and the
    buffers that travel with each call.

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


def _resolve(
    whole: Function, function: Function, out_of_band: bool
) -> tuple[bytes, Lasting, list[pickle.PickleBuffer]]:
    """`whole` is `function`, or a `MapChunk` of it."""
    check_callable(function)
    if isinstance(function, FunctionType | BuiltinFunctionType | type) and is_importable(function):
        return pickle.dumps(whole, PROTOCOL), True, []
    chunk = isinstance(whole, MapChunk)
    if not isinstance(function, FunctionType):
        data, buffers = _dump(function, None, out_of_band)
        if isinstance(function, dependent | CachedFunction):
            return _kept_body(function, chunk, data, buffers, identity_of(function))
        return _made_anew(function, chunk, data, buffers)
    others = modules_not_by_name()
    key = (function, chunk, picklers.brings_globals(), others, others and shipped_modules())
    known = _bodies.get(key)
    if known is not None and known[0].holds():
        return known[1], False, []
    snapshot = Snapshot()
    data, buffers = _dump(function, snapshot, out_of_band)
    if not snapshot.complete or (buffers is None and len(data) > MAX_BODY_BYTES):
        return _kept_body(function, chunk, data, buffers, identity_of(function) if snapshot.holds_state else b"")
    if buffers is not None and len(data) > MAX_KEPT_BODY_BYTES:
        name = pickle.PickleBuffer(os.urandom(16))
        return pickle.dumps(Constant(chunk), PROTOCOL), False, [name, pickle.PickleBuffer(data)]
    if chunk:
        data = pickle.dumps(MapChunk(Pickled(data)), PROTOCOL)
    elif snapshot.fixed:
        return data, (function.__code__, function.__defaults__), []
    with _bodies_lock:
        _bodies[key] = (snapshot, data)
        _bodies.move_to_end(key)
        if len(_bodies) > _CACHE_ENTRIES:
            _bodies.popitem(last=False)
    return data, False, []


def _dump(
    function: Function, snapshot: Snapshot | None, out_of_band: bool
) -> tuple[bytes, list[pickle.PickleBuffer] | None]:
    """The pickle of `function`, and its buffers, which are None where they are in band."""
    from broadleaf.serialize.by_value import dumps_by_value

    buffers: list[pickle.PickleBuffer] | None = [] if out_of_band else None
    generators: list[Any] = []
    try:
        data = dumps_by_value(function, buffers, snapshot, generators=generators)
        if buffers and len(buffers) > _MAX_CAPTURED_BUFFERS:
            data, buffers = dumps_by_value(function, None, snapshot), []
    except Exception as error:
        what = f"the function {function_name(function)!r}"
        raise SerializationError(what, reason_of_failure(function, error)) from error
    if generators:
        warn_of_generators(function, function_name(function), generators)
    return data, buffers


def _kept_body(
    function: Function, chunk: bool, data: bytes, buffers: list[pickle.PickleBuffer] | None, identity: bytes
) -> tuple[bytes, Lasting, list[pickle.PickleBuffer]]:
    """The result of `resolve_function` for a function that engines keep as its calls leave it, unless it is large."""
    views = [memoryview(buffer).cast("B") for buffer in buffers or ()]
    if len(data) + sum(map(len, views)) > MAX_KEPT_FUNCTION_BYTES:
        return _made_anew(function, chunk, data, buffers)
    key = identity + hash_bytes(data, *map(bytes, views)) + len(data).to_bytes(4, "little")
    if buffers is None or (not buffers and len(data) <= INBAND_BUFFER_BYTES):
        return pickle.dumps(Kept(key, data, chunk), PROTOCOL), False, []
    return pickle.dumps(KeptTemplate(chunk), PROTOCOL), False, [*map(pickle.PickleBuffer, (key, data)), *buffers]


def _made_anew(
    function: Function, chunk: bool, data: bytes, buffers: list[pickle.PickleBuffer] | None
) -> tuple[bytes, Lasting, list[pickle.PickleBuffer]]:
    """The result of `resolve_function` for a function that each call unpacks from `data`."""
    if len(data) > MAX_KEPT_FUNCTION_BYTES and (chunk or getattr(_submitting, "many", False)):
        warn_of_large(function, function_name(function), len(data))
    if buffers is None:
        if len(data) > MAX_BODY_BYTES:
            raise function_too_large(function, function_name(function), len(data), MAX_BODY_BYTES)
        return pickle.dumps(Fresh(data, chunk), PROTOCOL), False, []
    if len(data) > INBAND_BUFFER_BYTES:
        return pickle.dumps(Template(None, chunk), PROTOCOL), False, [pickle.PickleBuffer(data), *buffers]
    if buffers:
        return pickle.dumps(Template(data, chunk), PROTOCOL), False, buffers
    return pickle.dumps(Fresh(data, chunk), PROTOCOL), False, []


def _ready(function: Any, chunk: bool) -> Function:
    """A callable of an unpacked function: with its dependency check, and for a chunk of items if `chunk` is set."""
    return callable_of(MapChunk(function) if chunk else function)


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

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self._check()
        return self._call(*args, **kwargs)


def load_function(body: bytes, namespace: Namespace | None = None) -> Function:
    """The callable of a body, to keep and call many times.

    `namespace` becomes the namespace of this process if it is not already (see `set_namespace`).
    """
    if namespace is not None and namespace is not current_namespace():
        set_namespace(namespace)
    return unpacked(body)


def unpacked(data: Any, chunk: bool = False) -> Function:
    """The callable of a pickle, which can be called many times; for a chunk of items if `chunk` is set."""
    function, brought = _unpack(data, chunk)
    return Filled(function, brought, data, chunk) if brought else function


def _unpack(data: Any, chunk: bool) -> tuple[Function, Brought]:
    with collecting() as brought:
        return _ready(_loaded(data), chunk), brought
