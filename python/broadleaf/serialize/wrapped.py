"""What the standard library makes of functions, and what pickle refers to by a name that only the sender knows: caches,
generic functions, cached properties, context variables.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextvars import Context, ContextVar
from types import FunctionType
from typing import Any

from broadleaf.serialize.namespace import current_namespace
from broadleaf.serialize.snapshot import cache_key, is_importable, single

Function = Callable[..., Any]

CachedFunction: type[Any] = type(functools.lru_cache(lambda: None))
_GENERIC_CODE: Any = getattr(functools.singledispatch(abs), "__code__")  # noqa: B009 (its type hides it)
# What these wrappers have in any case.
_OWN_ATTRIBUTES = frozenset(
    {
        "__wrapped__",
        "cache_parameters",
        "register",
        "dispatch",
        "registry",
        "_clear_cache",
        *functools.WRAPPER_ASSIGNMENTS,
    }
)


def reduce_wrapped(obj: Any) -> Any:
    """How to pickle `obj`, in the form of `__reduce__`; None if it is pickled as everything else."""
    kind = type(obj)
    if kind is FunctionType:
        return _reduce_generic(obj) if obj.__code__ is _GENERIC_CODE and not is_importable(obj) else None
    if kind is CachedFunction:
        return None if is_importable(obj) or not hasattr(obj, "__wrapped__") else _reduce_cached(obj)
    if kind is ContextVar:
        return _reduce_variable(obj)
    if isinstance(obj, functools.cached_property):
        # Until Python 3.11 it has a lock.
        return _blank_property, (kind,), {name: value for name, value in vars(obj).items() if name != "lock"}
    return None


def _more_attributes(wrapper: Function) -> dict[str, Any]:
    return {name: value for name, value in vars(wrapper).items() if name not in _OWN_ATTRIBUTES}


def _reduce_cached(cached: Any) -> Any:
    parameters = cached.cache_parameters() if hasattr(cached, "cache_parameters") else {}
    maxsize = parameters.get("maxsize", cached.cache_info().maxsize)
    made_of = (cached.__wrapped__, maxsize, parameters.get("typed", False), cache_key(cached))
    return _make_cached, made_of, _more_attributes(cached) or None


def _make_cached(function: Function, maxsize: int | None, typed: bool, key: bytes | None) -> Any:
    if key is None or current_namespace() is None:
        return functools.lru_cache(maxsize, typed)(function)
    cached = single.find(key)
    if cached is None:
        cached = functools.lru_cache(maxsize, typed)(function)
        single.keep(key, cached)
    return cached


def _reduce_generic(generic: Any) -> Any:
    implementations = dict(generic.registry)
    state = (implementations.pop(object), implementations, _more_attributes(generic))
    return _make_generic, (), state, None, None, _set_generic_state


def _make_generic() -> Function:
    return functools.singledispatch(abs)


def _set_generic_state(generic: Any, state: tuple[Function, dict[type, Function], dict[str, Any]]) -> None:
    default, implementations, attributes = state
    functools.update_wrapper(generic, default)
    generic.register(object, default)
    for kind, implementation in implementations.items():
        generic.register(kind, implementation)
    generic.__dict__.update(attributes)
    # It names the function where it is called without arguments.
    for name, cell in zip(_GENERIC_CODE.co_freevars, generic.__closure__, strict=True):
        if name == "funcname":
            cell.cell_contents = getattr(default, "__name__", "singledispatch function")


def _blank_property(kind: type[functools.cached_property[Any]]) -> functools.cached_property[Any]:
    blank = functools.cached_property.__new__(kind)
    functools.cached_property.__init__(blank, abs)
    return blank


# Context variables live as long as the process. Each is found by its module and name, or else by a number.
_places: dict[ContextVar[Any], tuple[str, str] | bytes] = {}
_variables: dict[bytes, ContextVar[Any]] = {}


def _reduce_variable(variable: ContextVar[Any]) -> Any:
    place = _places.get(variable)
    if place is None:
        place = _places[variable] = _place_in_modules(variable) or os.urandom(16)
    if isinstance(place, tuple):
        return _of_module, place
    _variables[place] = variable
    try:
        return _make_variable, (place, variable.name, Context().run(variable.get))
    except LookupError:
        return _make_variable, (place, variable.name)


def _place_in_modules(variable: ContextVar[Any]) -> tuple[str, str] | None:
    for module_name, module in list(sys.modules.items()):
        if module_name not in ("__main__", "__mp_main__"):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is variable:
                    return module_name, name
    return None


def _of_module(module: str, name: str) -> Any:
    from importlib import import_module

    return getattr(import_module(module), name)


def _make_variable(number: bytes, name: str, *default: Any) -> ContextVar[Any]:
    variable = _variables.get(number)
    if variable is None:
        variable = ContextVar(name, default=default[0]) if default else ContextVar(name)
        _variables[number] = variable
        _places[variable] = number
    return variable
