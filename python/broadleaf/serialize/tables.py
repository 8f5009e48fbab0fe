"""Arrow's arrays, of which tables and frames are made, and frames of polars.

A slice of an Arrow array refers to the buffers of the whole, and Arrow pickles these. Here a slice takes only its own
part along.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from broadleaf.serialize import PROTOCOL

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
