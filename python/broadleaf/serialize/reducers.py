"""How values are reduced for pickling that their libraries would pickle slowly, or with more than they show.

Libraries that this process has not loaded are not loaded for it: then there are no such values.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

from broadleaf.serialize import PROTOCOL
from broadleaf.serialize.arrays import reduce_array

Reducer = Callable[[Any], Any]

# The reducers for the libraries that were loaded when they were last asked for, and what stands for those.
_reducers: dict[type, Reducer] = {}
_loaded: tuple[bool, int, bool] = (False, 0, False)


def reducers() -> dict[type, Reducer]:
    """The reducers for values of the libraries that are loaded."""
    global _reducers, _loaded
    modules = sys.modules
    # A module lacks its last names while another thread imports it.
    numpy: Any = modules.get("numpy")
    pyarrow: Any = modules.get("pyarrow")
    polars: Any = modules.get("polars")
    n_extensions = 0 if pyarrow is None else _n_extensions(pyarrow)
    loaded = (hasattr(numpy, "ndarray"), n_extensions, hasattr(polars, "DataFrame"))
    if loaded != _loaded:
        made: dict[type, Reducer] = {}
        if hasattr(numpy, "ndarray"):
            made[numpy.ndarray] = reduce_array
        if n_extensions:
            from broadleaf.serialize.tables import array_types, reduce_arrow_array

            made.update(dict.fromkeys(array_types(pyarrow), reduce_arrow_array))
        if hasattr(polars, "DataFrame"):
            from broadleaf.serialize.tables import reduce_polars

            made |= {polars.DataFrame: reduce_polars, polars.Series: reduce_polars}
        _reducers, _loaded = made, loaded
    return _reducers


def _n_extensions(pyarrow: Any) -> int:
    """One more than the number of Arrow's array types that were made by a class statement, 0 if it is being loaded."""
    kind = getattr(pyarrow, "ExtensionArray", None)
    return 0 if kind is None or not hasattr(pyarrow, "concat_arrays") else 1 + len(kind.__subclasses__())


def dumps_by_name(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Like `pickle.dumps`, with the reducers above. Raises whatever pickling raises.

    NumPy's own pickle of an array builds its dtype from parts, wraps its buffer in one array and reshapes that into
    another: up to a third of the time of a small broadcast to many engines, whose caches others have used in the
    meantime.
    """
    own = reducers()
    if not own:
        return pickle.dumps(value, PROTOCOL, buffer_callback=buffer_callback)
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, PROTOCOL, buffer_callback=buffer_callback)
    pickler.dispatch_table = {**copyreg.dispatch_table, **own}
    pickler.dump(value)
    return stream.getvalue()
