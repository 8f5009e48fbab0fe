"""How values are pickled if the user chose another pickler.

With dill: objects that neither pickle nor cloudpickle can handle. Only these objects go through it, each by itself.
Everything around them is pickled as always, so functions keep the engine's namespace and arrays their out-of-band
buffers.

With cloudpickle: functions of `__main__` with the globals they have here, instead of onto the engine's namespace.
"""

from __future__ import annotations

import io
from _thread import LockType, RLock
from collections.abc import Callable, Mapping
from typing import Any

from broadleaf.serialize import PROTOCOL

_DILL_CAN = (io.IOBase, LockType, RLock)
_dill: Any = None
_brings_globals = False


def use_dill() -> None:
    """Makes dill pickle what nothing else here can, such as an open file.

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


def is_on() -> bool:
    """Whether `use_dill` is active."""
    return _dill is not None


def would_help(obj: Any) -> bool:
    """Whether `obj`, which cannot be pickled, could be after `use_dill`."""
    return _dill is None and isinstance(obj, _DILL_CAN)


def reduce(obj: Any, reducers: Mapping[type, Callable[[Any], Any]]) -> Any:
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
