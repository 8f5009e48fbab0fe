"""How values are reduced for pickling that their libraries would pickle slowly, or with more than they show.

Libraries that this process has not loaded are not loaded for it: then there are no such values.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
from collections.abc import Callable
from typing import Any

from broadleaf.serialize import PROTOCOL
from broadleaf.serialize.arrays import reduce_array

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
    # A module lacks its last names while another thread imports it.
    _numpy, _pyarrow, _polars = _with("numpy", "ndarray"), _with("pyarrow", "concat_arrays"), _with("polars", "Series")
    if _numpy is not None:
        made[_numpy.ndarray] = reduce_array
    if _pyarrow is not None:
        from broadleaf.serialize.tables import array_types, reduce_arrow_array

        _n_extensions = len(_pyarrow.ExtensionArray.__subclasses__())
        made.update(dict.fromkeys(array_types(_pyarrow), reduce_arrow_array))
    if _polars is not None:
        from broadleaf.serialize.tables import reduce_polars

        made |= {_polars.DataFrame: reduce_polars, _polars.Series: reduce_polars}
    _reducers = made
    return made


def _with(module: str, name: str) -> Any:
    found = sys.modules.get(module)
    return found if hasattr(found, name) else None


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
