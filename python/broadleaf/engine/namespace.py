"""The engine's user namespace: the variables of `__main__`, so that objects pickled from there are found."""

import builtins
import sys
from types import ModuleType
from typing import Any

from broadleaf.serialize import snapshot
from broadleaf.serialize.namespace import engine_cache, set_namespace

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
