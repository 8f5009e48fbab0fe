"""Whether a pickle refers by name to something that another process would not find, or find something else under.

That is whatever `__main__` defines, and the modules whose contents travel by value.
"""

from __future__ import annotations

import io
import pickle
from itertools import repeat
from typing import Any

from broadleaf.errors import SerializationError
from broadleaf.serialize.unfindable import is_not_by_name, modules_not_by_name, shipped_modules, unfindable_modules

# The functions of the modules `random` and `numpy.random` are pickled with the generator of their process, of some
# kilobytes; pickled by value they are without it.
_MAX_GENERATOR_BYTES = 16_384
_NUMPY_GENERATOR = b"__randomstate_ctor"
_PYTHON_GENERATOR = b"\x8c\x06Random\x94"


def may_hold_generator(data: bytes) -> bool:
    """Whether there may be a generator of random numbers in `data`, a plain pickle."""
    return len(data) <= _MAX_GENERATOR_BYTES and (_NUMPY_GENERATOR in data or _PYTHON_GENERATOR in data)


class _NamesOneError(Exception):
    """The pickle names something that travels by value: a module, and what in it."""


class _Placeholder(Exception):
    """Stands for everything a pickle names, so that reading it runs no other code. It is an exception, because those
    accept any arguments without a line of Python.
    """

    def __call__(self, *_: Any, **__: Any) -> _Placeholder:
        return self

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def extend(self, _: Any) -> None:
        """Accepts what a pickle appends to a list type."""


class _NameReader(pickle.Unpickler):
    def __init__(self, data: bytes, modules: frozenset[str]) -> None:
        super().__init__(io.BytesIO(data), buffers=repeat(b""))
        self._modules = modules

    def find_class(self, module: str, name: str) -> Any:
        """Called for each name once."""
        if is_not_by_name(module, self._modules):
            raise _NamesOneError(module, name)
        return _Placeholder


def names_by_value(data: bytes, names: bytes) -> bool:
    """Whether `data`, a plain pickle, names anything of `__main__` or of a module whose contents travel by value. All
    names are in `names`, a part of it.

    The text alone proves nothing: scikit-learn sends Python's warning filters with each call, and they contain it.
    """
    modules = modules_not_by_name()
    if b"__main__" not in names and not (modules and any(name.encode() in names for name in modules)):
        return False
    try:
        _NameReader(data, modules | {"__main__"}).load()
    except Exception:
        # Also if a placeholder does not work: pickling by value is always correct.
        return True
    return False


def refuse_unfindable_names(data: bytes) -> None:
    """Raises `SerializationError` if `data`, a pickle by value, names something of an unfindable module nevertheless.

    That is how objects are pickled that say no more of themselves than their name.
    """
    modules = unfindable_modules()
    if not modules or not any(name.encode() in data for name in modules):
        return
    try:
        _NameReader(data, modules - shipped_modules()).load()
    except _NamesOneError as error:
        module, name = error.args
        why = f"it is pickled by name, and engines would not find its module {module!r}, which was loaded from a path"
        raise SerializationError(f"{module}.{name}", why) from None
    except Exception:
        # A placeholder that does not work says nothing about names.
        return
