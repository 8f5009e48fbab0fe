"""Large arrays that NumPy would put into the pickle byte by byte, put out of band."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from typing import Any

from broadleaf.serialize import PROTOCOL
from broadleaf.serialize.arrays import reduce_array, reduce_repeating
from broadleaf.serialize.buffers import keep_out_of_band
from broadleaf.serialize.reducers import reducers

# Shorter pickles are not worth another attempt.
COMPACT_FROM_BYTES = 256 * 1024


class _CompactingPickler(pickle.Pickler):
    """Sends an array as a contiguous one of a plain type, with the information to restore it. It is copied once if it
    is not contiguous. Times, masked arrays and plain subclasses have no buffer that NumPy itself would send out of
    band.
    """

    def reducer_override(self, value: Any) -> Any:
        numpy = sys.modules.get("numpy")
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
