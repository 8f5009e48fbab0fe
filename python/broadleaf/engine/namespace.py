"""The user's variables on an engine, and overwriting them in place."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from broadleaf.errors import InPlaceMismatch
from broadleaf.serialize import snapshot
from broadleaf.serialize.namespace import engine_cache, set_namespace
from broadleaf.serialize.values import arrays_of, form_of

# The engine's user namespace: the variables of `__main__`, so that objects pickled from there are found.


Namespace = dict[str, Any]

_OWN = frozenset({"__builtins__", "__loader__", "__name__", "__package__", "__spec__", "engine_id", "cluster_id"})


def create(engine_id: int, cluster_id: str) -> Namespace:
    """Makes a fresh `__main__` module and returns its variables, with the names every engine has."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    names = module.__dict__
    names["__builtins__"] = builtins
    names.update(engine_id=engine_id, cluster_id=cluster_id)
    set_namespace(names)
    return names


def clear(names: Namespace) -> None:
    """Removes the user's variables: everything except what every module has, `engine_id` and `cluster_id`; and what
    calls have left in functions and in the engine's cache."""
    own = {key: value for key, value in names.items() if key in _OWN}
    names.clear()
    names.update(own, __doc__=None)
    set_namespace(names)  # forgets which values were filled in with functions
    snapshot.forget_kept()
    engine_cache.clear()


def lookup(names: Namespace, name: str) -> Any:
    """The value of a dotted name; NameError or AttributeError says which part is missing."""
    first, *rest = name.split(".")
    try:
        value = names[first]
    except KeyError:
        raise NameError(f"name {first!r} is not defined") from None
    for part in rest:
        value = getattr(value, part)
    return value


def assign(names: Namespace, name: str, value: Any) -> None:
    """Sets a dotted name: the last part becomes an attribute of the object that the parts before it name."""
    owner, _, last = name.rpartition(".")
    if owner:
        setattr(lookup(names, owner), last, value)
    else:
        names[name] = value


# Values in the namespace that get new contents and stay the same objects.


Replace = Callable[[Any, Any], bool]


def check_fit(names: Namespace, forms: Mapping[str, Any]) -> None:
    """Raises `InPlaceMismatch` unless every name refers to a writable value of its form."""
    for name, form in forms.items():
        value = lookup(names, name)
        found = form_of(value, name)
        if found != form:
            raise InPlaceMismatch(f"{name} is {_describe(found)} here and cannot take {_describe(form)}")
        for array in arrays_of(value):
            if not array.flags.writeable:
                raise InPlaceMismatch(f"{name} is read-only here: push it again, or push it in mode 'private'")


def overwrite(names: Namespace, values: Mapping[str, Any], replace: Replace) -> None:
    """Overwrites every name's value with the pushed contents; all are checked before the first is touched. `replace`
    maps received bytes over others without copying them; if it cannot, they are copied.
    """
    check_fit(names, {name: form_of(value, name) for name, value in values.items()})
    for name, value in values.items():
        for destination, source in zip(arrays_of(lookup(names, name)), arrays_of(value), strict=True):
            if not (destination.nbytes and replace(_bytes_of(destination), _bytes_of(source))):
                destination[...] = source


def _bytes_of(array: Any) -> Any:
    import numpy as np

    # In memory order, so that no copy is made of a Fortran-ordered one.
    flat = np.asarray(array).ravel(order="K")
    return flat.view(np.uint8)


def _describe(form: Any) -> str:
    kind, *rest = form
    if len(rest) == 3:
        shape, dtype, order = rest
        return f"{kind} {shape} of {dtype} in {order} order"
    return f"{kind} {rest[0]}"
