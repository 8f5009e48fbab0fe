"""What engines cannot find by its name, and what to do about it."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import repeat
from types import CoroutineType, GeneratorType, ModuleType
from typing import Any

from broadleaf.after_import import imported
from broadleaf.errors import SerializationError
from broadleaf.serialize import picklers

# Modules that another process would not find under their names: loaded from a path, or made in memory.
#
# `importlib.util.spec_from_file_location` loads a file under any name, and `exec` fills a module that has no file at
# all. Pickled by reference, their functions and classes would fail to load anywhere else, so they travel by value, or
# by name once their files were sent. What decides is whether this process, asked to import the name, would find the
# same file.


_MISSING = object()
_NOTHING: frozenset[str] = frozenset()
_STDLIB = os.path.dirname(os.__file__) + os.sep
_SITE = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

# What has been looked at: the spec that each module then had, and the size and last name of `sys.modules`.
_specs: dict[str, Any] = {}
_n_looked_at = 0
_last_looked_at = ""
_unfindable = _NOTHING
# cloudpickle's own set, once that is loaded.
_registered: set[str] | None = None
_shipped: ContextVar[frozenset[str]] = ContextVar("broadleaf_shipped", default=_NOTHING)


def unfindable_modules() -> frozenset[str]:
    """Names of the loaded modules that another process would not find.

    Costs next to nothing if no module has been loaded since the last call.
    """
    modules = sys.modules
    try:
        if len(modules) == _n_looked_at and next(reversed(modules)) == _last_looked_at:
            return _unfindable
    except RuntimeError:  # another thread imports something
        pass
    return _look()


def modules_not_by_name() -> frozenset[str]:
    """Names of the modules whose functions and classes plain pickle must not send: the unfindable ones, and those
    registered with `cloudpickle.register_pickle_by_value`, which stand for all their submodules."""
    registered = registered_by_value() if _registered is None else _registered
    return unfindable_modules() | registered if registered else unfindable_modules()


def is_not_by_name(name: str, modules: frozenset[str]) -> bool:
    """Whether `modules`, the names from `modules_not_by_name`, cover this module or a package that it is in."""
    if name in modules:
        return True
    if modules:
        registered = registered_by_value()
        while "." in name and registered:
            name = name.rpartition(".")[0]
            if name in registered:
                return True
    return False


def registered_by_value() -> set[str] | frozenset[str]:
    """Names of the modules that the user registered with `cloudpickle.register_pickle_by_value`."""
    global _registered
    if _registered is None:
        # Whoever has registered a module has loaded cloudpickle.
        cloudpickle = imported("cloudpickle.cloudpickle", "_PICKLE_BY_VALUE_MODULES")
        _registered = getattr(cloudpickle, "_PICKLE_BY_VALUE_MODULES", None)
    return _NOTHING if _registered is None else _registered


def shipped_modules() -> frozenset[str]:
    """Names of the unfindable modules that the receiver finds nevertheless; see `modules`."""
    return _shipped.get()


@contextmanager
def shipped(names: frozenset[str]) -> Iterator[None]:
    """Inside the block, whoever receives what is pickled finds these modules, because their files were sent there."""
    token = _shipped.set(names)
    try:
        yield
    finally:
        _shipped.reset(token)


def is_binary(name: str) -> bool:
    """Whether the module is an extension module, whose functions and classes cannot travel by value."""
    from importlib.machinery import ExtensionFileLoader

    spec = getattr(sys.modules.get(name), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), ExtensionFileLoader)


def _look() -> frozenset[str]:
    """Looks at the modules that are new, or were loaded anew, since the last time."""
    global _n_looked_at, _last_looked_at, _unfindable
    modules = dict(sys.modules)
    unfindable = {name for name in _unfindable if name in modules}
    for name in _specs.keys() - modules.keys():
        del _specs[name]
    for name, module in modules.items():
        spec = getattr(module, "__spec__", None)
        if _specs.get(name, _MISSING) is spec:
            continue
        _specs[name] = spec
        unfindable.discard(name)
        if name not in ("__main__", "__mp_main__") and not _is_findable(name, module, spec, unfindable):
            unfindable.add(name)
    _unfindable = frozenset(unfindable)
    _n_looked_at, _last_looked_at = len(modules), next(reversed(modules), "")
    return _unfindable


def _is_findable(name: str, module: Any, spec: Any, unfindable: set[str]) -> bool:
    # What is not Python code that ran in this very module is made by others when they are imported.
    if type(module) is not ModuleType or getattr(module, "__name__", None) != name:
        return True
    if spec is None:
        return "__builtins__" not in module.__dict__ or _is_made_by_parent(name, unfindable) or _is_found(name, None)
    if not spec.has_location:
        # Built in, frozen, or from a finder of somebody's own, unless nobody would load it.
        return spec.loader is not None or _is_found(name, None)
    folder = _folder(name, spec)
    parent = name.rpartition(".")[0]
    if parent:
        known = parent not in unfindable and folder in getattr(sys.modules.get(parent), "__path__", ())
    else:
        # A module of the user's own may stand behind another of its name, an installed one does not.
        known = folder in sys.path and (spec.origin.startswith(_STDLIB) or any(part in spec.origin for part in _SITE))
    return known or _is_found(name, spec.origin)


def _is_made_by_parent(name: str, unfindable: set[str]) -> bool:
    parent = name.rpartition(".")[0]
    above = sys.modules.get(parent)
    return parent not in unfindable and getattr(above, "__spec__", None) is not None


def _folder(name: str, spec: Any) -> str | None:
    """The folder that would be searched for the module's file; None if that is named otherwise."""
    place = spec.origin if spec.submodule_search_locations is None else os.path.dirname(spec.origin)
    folder, file = os.path.split(place)
    return folder if file.partition(".")[0] == name.rpartition(".")[2] else None


def _is_found(name: str, origin: str | None) -> bool:
    """Whether an import of this name would find the file, or anything if there is none. Runs no package's code."""
    path: Any = None
    spec: Any = None
    parts = name.split(".")
    for i in range(len(parts)):
        spec = _find_spec(".".join(parts[: i + 1]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
        if path is None and i + 1 < len(parts):
            return False
    if origin is None or spec.origin == origin:
        return True
    try:
        return os.path.samefile(spec.origin, origin)
    except (OSError, TypeError):
        return False


def _find_spec(name: str, path: Any) -> Any:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        try:
            spec = None if find_spec is None else find_spec(name, path)
        except Exception:  # a finder of somebody's own
            continue
        if spec is not None:
            return spec
    return None


# Whether a pickle refers by name to something that another process would not find, or find something else under.
#
# That is whatever `__main__` defines, and the modules whose contents travel by value.


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


# What an error about something that cannot be pickled advises.


def advice_on(value: Any) -> str:
    """What to do if `value` cannot be pickled; empty if nothing is known."""
    if isinstance(value, CoroutineType):
        return "; await it first and send its value, or send its function"
    if isinstance(value, GeneratorType):
        return "; send what it yields, as a list"
    if picklers.dill_would_help(value):
        if importlib.util.find_spec("dill") is None:
            return "; with dill installed (pip install dill), client[:].use_dill() has dill send it"
        return "; client[:].use_dill() has dill send it"
    named = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    return advice_on_module(value.__name__ if isinstance(value, ModuleType) else getattr(named, "__module__", None))


def advice_on_module(name: Any) -> str:
    """What to do if something that the module defines cannot be pickled; empty unless it is an unfindable one."""
    if name not in unfindable_modules() or name in shipped_modules():
        return ""
    if getattr(sys.modules.get(name), "__file__", None) is None:
        return f"; module {name!r} has no file: put it into one, and client.ship_module({name!r}) sends that"
    return f"; client.ship_module({name!r}) sends the module as a file instead"
