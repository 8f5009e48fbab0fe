"""Classes by value: with their slots, and sent again without losing what tasks have set in them.

cloudpickle makes a class once in each process, and finds it again by a number. What it leaves out is added here: slots,
attributes that were deleted since, and that a class is not changed by its own copy that comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import MemberDescriptorType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from broadleaf.serialize.functions.contents import token_of

# Classes that were defined here, as far as they were sent. No pickle changes them.
_own: WeakSet[type] = WeakSet()
# Classes that came from elsewhere -> attribute -> what was sent last as its value; see `token_of`.
_arrived: WeakKeyDictionary[type, dict[str, Any]] = WeakKeyDictionary()


def reduce_class(kind: type, reduced: Any) -> Any:
    """How to pickle a class, given how cloudpickle reduces it by value."""
    make, made_of, (attributes, slot_state), *_, set_state = reduced
    if kind not in _arrived:
        _own.add(kind)
    if not issubclass(kind, Enum):
        constructor, name, bases, body, *rest = made_of
        body = {**body, "__qualname__": kind.__qualname__}
        names = _slot_names(kind)
        if names is not None:
            body["__slots__"] = names
            attributes = {key: value for key, value in attributes.items() if key not in names}
            # Made by `copyreg` when an object was pickled.
            attributes.pop("__slotnames__", None)
            if not isinstance(vars(kind)["__slots__"], str | tuple | list | dict | set | frozenset):
                # An iterator, which is used up.
                attributes["__slots__"] = tuple(names)
        made_of = (constructor, name, bases, body, *rest)
    return make, made_of, (set_state, attributes, slot_state), None, None, set_class_state


def _slot_names(kind: type) -> list[str] | None:
    """The names of the slots that the class itself has, as they are stored; None if it has a `__dict__` by default."""
    own = vars(kind)
    if "__slots__" not in own:
        return None
    names = [name for name, slot in own.items() if isinstance(slot, MemberDescriptorType)]
    return names + [name for name in ("__dict__", "__weakref__") if name in own]


def set_class_state(kind: type, state: tuple[Callable[[type, Any], Any], dict[str, Any], Any]) -> None:
    """Gives a class its attributes. If it has come before, what is sent now replaces only what was sent otherwise then:
    a task may have set the rest.
    """
    if kind in _own:
        return
    set_state, attributes, slot_state = state
    before = _arrived.get(kind, {})
    tokens = {name: token_of(value) for name, value in attributes.items()}
    for name in before.keys() - tokens.keys():
        try:
            delattr(kind, name)
        except (AttributeError, TypeError):
            # Deleted by a task, or set by the metaclass.
            continue
    changed = {
        name: value
        for name, value in attributes.items()
        if tokens[name] is None or name not in before or tokens[name] != before[name]
    }
    set_state(kind, (changed, slot_state))
    _arrived[kind] = tokens
