"""NumPy's arrays: plain ones are built on the other side with one call, and those that show the same memory several
times are sent as that memory."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from broadleaf.serialize import PROTOCOL

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
