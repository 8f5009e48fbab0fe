"""What helps plain pickle: buffers out of band, arrays, tables, the compact encoding, the pickler that a user chose."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from _thread import LockType, RLock
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from broadleaf.after_import import imported
from broadleaf.serialize import PROTOCOL

# NumPy's arrays: plain ones are built on the other side with one call, and those that show the same memory several
# times are sent as that memory.


# Bool, signed, unsigned, real, complex, bytes and text: a string describes their dtype completely, and they have a
# buffer.
_PLAIN_KINDS = frozenset("biufcSU")


def reduce_array(array: Any) -> Any:
    """The reduced form of an array; NumPy's own if a string does not describe its dtype completely. The array that is
    made of it can be written to.
    """
    dtype, flags = array.dtype, array.flags
    # A user-defined dtype may claim a kind of NumPy's.
    is_plain = dtype.kind in _PLAIN_KINDS and dtype.isbuiltin != 2 and dtype.itemsize > 0 and dtype.metadata is None
    if is_plain and flags.c_contiguous:
        return type(array), (
            array.shape,
            dtype.str,
            pickle.PickleBuffer(array if flags.writeable else _bytes_of(array)),
        )
    if is_plain and flags.f_contiguous:
        data = array.T if flags.writeable else _bytes_of(array)
        return type(array), (array.shape, dtype.str, pickle.PickleBuffer(data), 0, None, "F")
    if not (flags.c_contiguous or flags.f_contiguous):
        repeating = reduce_repeating(array)
        if repeating is not None:
            return repeating
    if is_plain:
        # NumPy would put its items into the pickle one by one.
        return type(array), (array.shape, dtype.str, pickle.PickleBuffer(array.copy()))
    reduced = array.__reduce_ex__(PROTOCOL)
    if dtype.hasobject:
        # As NumPy does it, but without the function in whose stead large arrays are sought (`dumps_compacted`): in a
        # second attempt these objects would only be pickled again.
        return type(array), ((0,), "b"), reduced[2]
    if not flags.writeable and type(reduced[1][0]) is pickle.PickleBuffer:
        made_of = (pickle.PickleBuffer(_bytes_of(array)), *reduced[1][1:])
        return (reduced[0], made_of, *reduced[2:])
    return reduced


def reduce_repeating(array: Any) -> Any:
    """The reduced form of an array that shows the same items several times: what `broadcast_to` makes, or windows.

    It arrives with the same strides, and read-only if it is. None for other arrays.
    """
    strides = array.strides
    once = array[tuple(slice(1) if stride == 0 else slice(None) for stride in strides)] if 0 in strides else array
    steps = [abs(stride) for stride in once.strides]
    item_bytes = once.itemsize
    extent_bytes = item_bytes + sum((n - 1) * step for n, step in zip(once.shape, steps, strict=True))
    # Items of a structured type may lie at any distance, and those between the shown ones must not be objects.
    is_regular = not (once.dtype.hasobject or item_bytes == 0 or any(step % item_bytes for step in steps))
    if is_regular and extent_bytes < once.nbytes:
        from numpy.lib.stride_tricks import as_strided

        backwards = [stride < 0 for stride in once.strides]
        ascending = once[tuple(slice(None, None, -1) if back else slice(None) for back in backwards)]
        items = as_strided(ascending, (extent_bytes // item_bytes,), (item_bytes,))
        first = sum(
            (n - 1) * step // item_bytes for n, step, back in zip(once.shape, steps, backwards, strict=True) if back
        )
        return windows, (items, first, array.shape, strides, array.flags.writeable)
    # `as_strided` refuses records with objects.
    if once.size < array.size and not (array.flags.writeable and once.dtype.hasobject and once.dtype.names):
        return repeated, (once, array.shape, array.flags.writeable)
    return None


def windows(items: Any, first: int, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool) -> Any:
    """The array of this shape and these strides that begins with item `first` of `items`."""
    from numpy.lib.stride_tricks import as_strided

    return as_strided(items[first:], shape, strides, writeable=writeable)


def repeated(once: Any, shape: tuple[int, ...], writeable: bool) -> Any:
    """The array of this shape that shows `once` again along each axis in which that has a single item."""
    import numpy
    from numpy.lib.stride_tricks import as_strided

    if not writeable:
        return numpy.broadcast_to(once, shape)
    strides = [0 if have != n else step for have, n, step in zip(once.shape, shape, once.strides, strict=True)]
    return as_strided(once, shape, strides, writeable=True)


class _Bytes:
    """The memory of a contiguous array, which says of itself that it can be written to. Nobody writes: but what a
    pickle makes of a buffer can be written to only if the buffer can.
    """

    __slots__ = ("__array_interface__", "_array")

    def __init__(self, array: Any) -> None:
        self._array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {"data": (address, False), "shape": (array.nbytes,), "typestr": "|u1", "version": 3}


def _bytes_of(array: Any) -> Any:
    return sys.modules["numpy"].asarray(_Bytes(array)) if array.nbytes else bytearray()


# Which buffers of a pickle travel out of band.


# Below this size a buffer costs more as a separate object than as a copy.
INBAND_BUFFER_BYTES = 4096


def keep_out_of_band(
    buffers: list[pickle.PickleBuffer], min_bytes: int = INBAND_BUFFER_BYTES
) -> Callable[[pickle.PickleBuffer], bool]:
    """A `buffer_callback` that appends buffers from `min_bytes` on to `buffers`; smaller ones stay in the pickle."""

    def on_buffer(buffer: pickle.PickleBuffer) -> bool:
        if memoryview(buffer).nbytes < min_bytes:
            return True
        buffers.append(buffer)
        return False

    return on_buffer


# Arrow's arrays, of which tables and frames are made, and frames of polars.
#
# A slice of an Arrow array refers to the buffers of the whole, and Arrow pickles these. Here a slice takes only its
# own part along.


# Buffers of a whole array may be this much longer than what they hold.
_SLACK_BYTES = 1024


def array_types(pyarrow: Any) -> Iterator[type]:
    """Arrow's types of arrays, those that users have defined included."""
    left = [pyarrow.Array]
    while left:
        kind = left.pop()
        yield kind
        left += kind.__subclasses__()


def reduce_arrow_array(array: Any) -> Any:
    """The reduced form of an Arrow array, without the parts of its buffers that it does not show."""
    return _own_part(array).__reduce_ex__(PROTOCOL)


def _own_part(array: Any) -> Any:
    import pyarrow

    try:
        if array.get_total_buffer_size() - array.nbytes <= _SLACK_BYTES:
            return array
        if array.type in (pyarrow.string_view(), pyarrow.binary_view()):
            # Copying it keeps all that its views could refer to.
            large = pyarrow.large_string() if array.type == pyarrow.string_view() else pyarrow.large_binary()
            return array.cast(large).cast(array.type)
        return pyarrow.concat_arrays([array])
    except (pyarrow.ArrowNotImplementedError, pyarrow.ArrowInvalid):
        # A type that Arrow can neither measure nor copy.
        return array


def reduce_polars(value: Any) -> Any:
    """The reduced form of a frame or series of polars, with its contents out of band."""
    return _polars_from, (type(value), pickle.PickleBuffer(value.__getstate__()))


def _polars_from(kind: Any, state: Any) -> Any:
    value = kind.__new__(kind)
    value.__setstate__(bytes(state))
    return value


# How values are reduced for pickling that their libraries would pickle slowly, or with more than they show.
#
# Libraries that this process has not loaded are not loaded for it: then there are no such values.


Reducer = Callable[[Any], Any]

# The reducers for the libraries that were loaded when they were last looked for: these libraries, how many modules were
# loaded, and how many types of arrays users had added to Arrow's.
_reducers: dict[type, Reducer] = {}
_n_modules = 0
_numpy: Any = None
_pyarrow: Any = None
_polars: Any = None
_n_extensions = 0


def reducers() -> dict[type, Reducer]:
    """The reducers for values of the libraries that are loaded."""
    global _n_modules
    if len(sys.modules) == _n_modules and _pyarrow is None:
        return _reducers
    loaded = sys.modules.get
    n_modules = len(sys.modules)
    if (
        loaded("numpy") is _numpy
        and loaded("pyarrow") is _pyarrow
        and loaded("polars") is _polars
        and (_pyarrow is None or len(_pyarrow.ExtensionArray.__subclasses__()) == _n_extensions)
    ):
        _n_modules = n_modules
        return _reducers
    return _look()


def _look() -> dict[type, Reducer]:
    global _reducers, _numpy, _pyarrow, _polars, _n_extensions
    made: dict[type, Reducer] = {}
    _numpy, _polars = imported("numpy", "ndarray"), imported("polars", "Series")
    _pyarrow = imported("pyarrow", "concat_arrays")
    if _numpy is not None:
        made[_numpy.ndarray] = reduce_array
    if _pyarrow is not None:
        _n_extensions = len(_pyarrow.ExtensionArray.__subclasses__())
        made.update(dict.fromkeys(array_types(_pyarrow), reduce_arrow_array))
    if _polars is not None:
        made |= {_polars.DataFrame: reduce_polars, _polars.Series: reduce_polars}
    _reducers = made
    return made


class _Parts(list[bytes]):
    """What a pickler writes, part by part."""

    __slots__ = ()
    write = list.append


# The pickler writes longer text and bytes separately, and everything else in frames, the first one after a header.
_LONG_BYTES = 64 * 1024
_FRAME_STARTS = (pickle.FRAME[0], pickle.PROTO[0])


def dumps_by_name(
    value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
) -> tuple[bytes, bytes]:
    """Like `pickle.dumps`, with the reducers above. Raises whatever pickling raises.

    Also returns the pickle without its long text and bytes: all that it names is there, and looking for names in the
    rest takes many times as long as pickling it.

    NumPy's own pickle of an array builds its dtype from parts, wraps its buffer in one array and reshapes that into
    another: up to a third of the time of a small broadcast to many engines, whose caches others have used in the
    meantime.
    """
    written = _Parts()
    pickler = pickle.Pickler(written, PROTOCOL, buffer_callback=buffer_callback)
    own = reducers()
    if own:
        pickler.dispatch_table = {**copyreg.dispatch_table, **own}
    pickler.dump(value)
    if len(written) == 1:
        return written[0], written[0]
    frames = [part for part in written if type(part) is bytes and (len(part) < _LONG_BYTES or part[0] in _FRAME_STARTS)]
    data = b"".join(written)
    return data, data if len(frames) == len(written) else b"".join(frames)


# Large arrays that NumPy would put into the pickle byte by byte, put out of band.


# Shorter pickles are not worth another attempt.
COMPACT_FROM_BYTES = 256 * 1024


class _CompactingPickler(pickle.Pickler):
    """Sends an array as a contiguous one of a plain type, with the information to restore it. It is copied once if it
    is not contiguous. Times, masked arrays and plain subclasses have no buffer that NumPy itself would send out of
    band.
    """

    def reducer_override(self, value: Any) -> Any:
        numpy = imported("numpy", "ndarray")
        if numpy is None or not isinstance(value, numpy.ndarray) or value.dtype.hasobject:
            return NotImplemented
        kind = type(value)
        if kind is numpy.ma.MaskedArray:
            mask = value.mask if value.mask is not numpy.ma.nomask else None
            return _masked, (value.data, mask, value.fill_value, bool(value.hardmask))
        if kind is not numpy.ndarray:
            plain = kind.__reduce__ is numpy.ndarray.__reduce__ and not getattr(value, "__dict__", None)
            return (_view_as, (value.view(numpy.ndarray), kind)) if plain else NotImplemented
        contiguous = value.flags.c_contiguous or value.flags.f_contiguous
        repeating = None if contiguous else reduce_repeating(value)
        if repeating is not None:
            return repeating
        if value.dtype.kind in "mM":
            dense = value if contiguous else value.copy()
            return _of_dtype, (dense.view(numpy.int64), value.dtype)
        return reduce_array(value if contiguous else value.copy())


def _of_dtype(array: Any, dtype: Any) -> Any:
    return array.view(dtype)


def _view_as(array: Any, kind: Any) -> Any:
    return array.view(kind)


def _masked(data: Any, mask: Any, fill_value: Any, hard: bool) -> Any:
    from numpy.ma import MaskedArray, nomask

    return MaskedArray(data, nomask if mask is None else mask, fill_value=fill_value, hard_mask=hard, copy=False)


def dumps_compacted(value: Any, min_bytes: int) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle bytes and out-of-band buffers of a value with large arrays that `pickle.dumps` would put in band."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = _CompactingPickler(stream, PROTOCOL, buffer_callback=keep_out_of_band(buffers, min_bytes))
    pickler.dispatch_table = {**copyreg.dispatch_table, **reducers()}
    pickler.dump(value)
    return stream.getvalue(), buffers


# How values are pickled if the user chose another pickler.
#
# With dill: objects that neither pickle nor cloudpickle can handle. Only these objects go through it, each by itself.
# Everything around them is pickled as always, so functions keep the engine's namespace and arrays their out-of-band
# buffers.
#
# With cloudpickle: functions of `__main__` with the globals they have here, instead of onto the engine's namespace.


_DILL_CAN = (io.IOBase, LockType, RLock)
_dill: Any = None
_brings_globals = False


def use_dill() -> None:
    """Uses dill for objects that nothing else here can pickle, such as an open file.

    Affects this process only; `client[:].use_dill()` includes the engines.

    Raises:
        ImportError: Dill is not installed.
    """
    global _dill, _brings_globals
    import dill  # pyright: ignore[reportMissingImports]

    _dill, _brings_globals = dill, False


def use_pickle() -> None:
    """Undoes `use_dill` and `use_cloudpickle`, in this process."""
    global _dill, _brings_globals
    _dill, _brings_globals = None, False


def use_cloudpickle() -> None:
    """Makes functions of `__main__` bring their globals, even if the engine's namespace has the same names.

    Anything else that plain pickle cannot handle goes through cloudpickle anyway. Affects this process only;
    `client[:].use_cloudpickle()` includes the engines.
    """
    global _dill, _brings_globals
    _dill, _brings_globals = None, True


def brings_globals() -> bool:
    """Whether `use_cloudpickle` is active."""
    return _brings_globals


def dill_is_on() -> bool:
    """Whether `use_dill` is active."""
    return _dill is not None


def dill_would_help(obj: Any) -> bool:
    """Whether `obj`, which cannot be pickled, could be after `use_dill`."""
    return _dill is None and isinstance(obj, _DILL_CAN)


def reduce_with_dill(obj: Any, reducers: Mapping[type, Callable[[Any], Any]]) -> Any:
    """How dill pickles `obj`, in the form of `__reduce__`; NotImplemented if a pickler with `reducers` can reduce it.

    Raises whatever dill raises.
    """
    reducer = reducers.get(type(obj))
    try:
        if reducer is None:
            obj.__reduce_ex__(PROTOCOL)
        else:
            reducer(obj)
    except Exception:
        return _dill.loads, (_dill.dumps(obj, PROTOCOL),)
    return NotImplemented
