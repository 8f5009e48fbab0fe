"""Pickling with dill what neither pickle nor cloudpickle can, where the user asked for it.

Only the objects at fault go through dill, each by itself. What surrounds them is pickled as always, so functions keep
the engine's namespace and arrays their out-of-band buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broadleaf.serialize import PROTOCOL

_dill: Any = None


def use_dill() -> None:
    """Has dill pickle what nothing else here can, such as an open file. Raises `ImportError` where it is missing."""
    global _dill
    import dill  # pyright: ignore[reportMissingImports]

    _dill = dill


def use_pickle() -> None:
    """Undoes `use_dill`. Plain pickle is used wherever it can be anyway, and cloudpickle where it cannot."""
    global _dill
    _dill = None


use_cloudpickle = use_pickle


def is_on() -> bool:
    """Whether dill was asked for."""
    return _dill is not None


def reduce(obj: Any, reducers: Mapping[type, Callable[[Any], Any]]) -> Any:
    """What dill makes of `obj` in the form of `__reduce__`; NotImplemented if a pickler with `reducers` can reduce it.

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
