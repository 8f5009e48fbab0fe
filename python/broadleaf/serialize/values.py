"""Values as pickle protocol 5 with large buffers out of band.

Plain pickle handles nearly everything. It cannot pickle lambdas, and it refers to objects in `__main__`, and in modules
that were loaded from a path, by names that mean nothing or something else in another process. All these are pickled by
value, with cloudpickle.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from broadleaf.errors import InPlaceMismatch, SerializationError
from broadleaf.errors.unpickling import unpickled
from broadleaf.serialize.picklers import (
    COMPACT_FROM_BYTES,
    INBAND_BUFFER_BYTES,
    dumps_by_name,
    dumps_compacted,
    keep_out_of_band,
)
from broadleaf.serialize.unfindable import advice_on, may_hold_generator, names_by_value

if TYPE_CHECKING:
    # From Python 3.13 on, Python's own accepts defaults.
    from typing_extensions import TypeVar

    Sent = TypeVar("Sent", default=Any)
else:
    from typing import TypeVar

    Sent = TypeVar("Sent")


def dumps(value: Any, out_of_band: bool = False) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle bytes and out-of-band buffers of `value`; with `out_of_band` even the smallest buffers.

    Raises whatever pickling it raises.
    """
    buffers: list[pickle.PickleBuffer] = []
    min_bytes = 1 if out_of_band else INBAND_BUFFER_BYTES
    try:
        data, names = dumps_by_name(value, keep_out_of_band(buffers, min_bytes))
        if pickle.STACK_GLOBAL not in names:
            # It names nothing, as most small values.
            return data, buffers
        if not names_by_value(data, names) and not may_hold_generator(data):
            if len(data) >= COMPACT_FROM_BYTES and b"reconstruct" in names:
                return dumps_compacted(value, min_bytes)
            return data, buffers
    except (pickle.PicklingError, AttributeError, TypeError):
        # Pickling by reference failed; the second attempt's error is the better one.
        pass
    from broadleaf.serialize.by_value import dumps_by_value

    return dumps_by_value(value, buffers, min_bytes=min_bytes), buffers


def dumps_in_band(value: Any) -> bytes:
    """Pickle bytes of `value`, including buffers. Raises whatever pickling it raises."""
    try:
        data, names = dumps_by_name(value)
        if pickle.STACK_GLOBAL not in names:
            return data
        if not names_by_value(data, names) and not may_hold_generator(data):
            return data
    except (pickle.PicklingError, AttributeError, TypeError):
        # As in `dumps`.
        pass
    from broadleaf.serialize.by_value import dumps_by_value

    return dumps_by_value(value)


def loads(data: bytes, buffers: Sequence[Any] = ()) -> Any:
    """The value of a result of `dumps`."""
    return pickle.loads(data, buffers=buffers)


FAULTS = (Exception, SystemExit)
"""Exceptions from an object's own code while it is pickled. They fail the call and nothing else."""


def load_result(data: bytes, buffers: Sequence[Any] = ()) -> Any:
    """Like `loads`; an error caused by a missing or outdated module says what to do, and any other that it was raised
    by loading the result: it would look like one that the task has raised.
    """
    try:
        return unpickled(data, buffers)
    except FAULTS as error:
        raise_unloadable(error, "the result", "here")


def raise_unloadable(error: BaseException, what: str, where: str = "") -> NoReturn:
    """Raises the error of loading `what` as `SerializationError`, unless it says by itself what is missing, or comes
    from the expression of a `Reference`.
    """
    from broadleaf.serialize.modules import explain_module
    from broadleaf.serialize.namespace import is_from_reference

    if isinstance(error, MemoryError | SerializationError) or explain_module(error) or is_from_reference(error):
        raise error
    raise SerializationError(what, reason_in(error), f"cannot be loaded {where}".rstrip()) from error


def dump_args(
    args: tuple[Any, ...], kwargs: dict[str, Any], out_of_band: bool = False
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickles a call's arguments as `dumps` does. Raises `SerializationError` that names the argument at fault."""
    try:
        return dumps((args, kwargs), out_of_band)
    except FAULTS as error:
        for name, value in [*((f"argument {i + 1}", a) for i, a in enumerate(args)), *kwargs.items()]:
            reason = unpicklable_reason(value)
            if reason is not None:
                what = name if name.startswith("argument ") else f"argument {name!r}"
                raise SerializationError(f"{what} ({_kind(value)})", reason) from error
        raise SerializationError("the arguments", reason_in(error)) from error


def load_args(data: bytes, buffers: Sequence[Any] = ()) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in a result of `dump_args`. Raises as `load_result` does."""
    try:
        args, kwargs = pickle.loads(data, buffers=buffers)
    except FAULTS as error:
        raise_unloadable(error, "an argument")
    return args, kwargs


def dump_value(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickles a result. Raises `SerializationError`."""
    try:
        return dumps(value)
    except FAULTS as error:
        raise unsendable_result(value, error) from error


def unsendable_result(value: Any, error: BaseException) -> SerializationError:
    """The exception for a result whose pickling raised `error`."""
    where, fault = _path_to_fault(value, depth=4)
    return SerializationError(f"the result ({_kind(value)}{where})", reason_in(error) + advice_on(fault))


def unpicklable_reason(value: Any) -> str | None:
    """Why `value` cannot be pickled, or None if it can."""
    try:
        dumps(value)
    except FAULTS as error:
        where, fault = _path_to_fault(value, depth=4)
        return reason_in(error) + where + advice_on(fault)
    return None


def reason_in(error: BaseException) -> str:
    """What an error from pickling says, without what could not be pickled."""
    return f"{type(error).__name__}: {error}" if not isinstance(error, SerializationError) else error.reason


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _path_to_fault(value: Any, depth: int) -> tuple[str, Any]:
    """Where in `value` the object that cannot be pickled is (', at [2].lock', or ''), and the object."""
    path = ""
    while depth:
        depth -= 1
        for step, child in _children(value):
            try:
                dumps(child)
            except FAULTS:
                path += step
                value = child
                break
        else:
            break
    return (f", at {path}" if path else ""), value


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    return [(f".{name}", item) for name, item in getattr(value, "__dict__", {}).items()]


class PrePickled(Generic[Sent]):
    """An object that is pickled once and sent many times. Engines receive the object itself.

    Args:
        value: The object.

    Raises:
        SerializationError: It cannot be pickled.

    Example:
        >>> table = ipp.PrePickled({"a": 1})
        >>> rc[:].apply_sync(lambda t: t["a"], table)
        [1, 1, 1, 1]
    """

    __slots__ = ("_buffers", "_data")

    def __init__(self, value: Sent) -> None:
        self._data, buffers = dump_value(value)
        # Not `bytes`: what is made of these could not be written to.
        self._buffers = [bytearray(memoryview(b).cast("B")) for b in buffers]

    def load(self) -> Sent:
        """Unpickles the object.

        Returns:
            A new copy of it.
        """
        return loads(self._data, list(map(bytearray, self._buffers)))  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_prepickled, (self._data, *map(pickle.PickleBuffer, self._buffers))


def _load_prepickled(data: bytes, *buffers: Any) -> Any:
    return loads(data, buffers)


# Which values can be overwritten in place, and the arrays they are made of.


# The arrays of SciPy's sparse formats.
_SPARSE_PARTS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
}


def form_of(value: Any, name: str) -> Any:
    """What another value must match to replace this one: types, keys, shapes, dtypes and orders.

    `name` is what messages call the value. Raises `InPlaceMismatch` when the value cannot be overwritten at all.
    """
    if isinstance(value, dict):
        return ("dict", {key: form_of(item, f"{name}[{key!r}]") for key, item in value.items()})
    if isinstance(value, list | tuple):
        return (type(value).__name__, [form_of(item, f"{name}[{i}]") for i, item in enumerate(value)])
    parts = _sparse_parts(value)
    if parts is not None:
        forms = [form_of(getattr(value, part), f"{name}.{part}") for part in parts]
        return (type(value).__name__, value.shape, forms)
    if hasattr(value, "dtype") and hasattr(value, "flags"):
        return _array_form(value, name)
    raise InPlaceMismatch(f"{name} is a {type(value).__name__}, which cannot be overwritten in place: push it instead")


def _array_form(array: Any, name: str) -> Any:
    if array.dtype.hasobject:
        raise InPlaceMismatch(f"{name} holds Python objects, which cannot be overwritten in place: push it instead")
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        raise InPlaceMismatch(f"{name} is not contiguous: push it instead, or use a contiguous copy")
    return (type(array).__name__, array.shape, array.dtype, "C" if flags.c_contiguous else "F")


def _sparse_parts(value: Any) -> tuple[str, ...] | None:
    if not type(value).__module__.startswith("scipy.sparse"):
        return None
    return _SPARSE_PARTS.get(getattr(value, "format", ""))


def arrays_of(value: Any) -> Iterator[Any]:
    """The arrays a value is made of, in the order of its form."""
    if isinstance(value, dict):
        for item in value.values():
            yield from arrays_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from arrays_of(item)
    else:
        parts = _sparse_parts(value)
        if parts is None:
            yield value
        else:
            yield from (getattr(value, part) for part in parts)


def n_bytes(value: Any) -> int:
    """Bytes of the arrays a value is made of."""
    return sum(array.nbytes for array in arrays_of(value))
