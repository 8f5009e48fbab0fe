"""Classes by value: with their slots, and sent again without losing what tasks have set in them.

cloudpickle makes a class once in each process, and finds it again by a number. What it leaves out is added here: slots,
attributes that were deleted since, and that a class is not changed by its own copy that comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import MemberDescriptorType
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from broadleaf.serialize.functions.contents import token_of
from broadleaf.serialize.functions.namespace import note_brought

# Classes that were defined here, as far as they were sent. No pickle changes them.
_own: WeakSet[type] = WeakSet()
# The attribute of a class from elsewhere that holds its `_Record`. A weak dictionary would keep the class alive,
# because what was sent refers to it.
_RECORD = "__broadleaf_record__"


def reduce_class(kind: type, reduced: Any) -> Any:
    """How to pickle a class, given how cloudpickle reduces it by value."""
    make, made_of, (attributes, slot_state), *_, set_state = reduced
    if _RECORD in vars(kind):
        attributes = {name: value for name, value in attributes.items() if name != _RECORD}
    else:
        _own.add(kind)
    if not issubclass(kind, Enum):
        constructor, name, bases, body, *rest = made_of
        body = {**body, "__qualname__": kind.__qualname__}
        names = _slot_names(kind)
        # What makes a NamedTuple sets its slots, and refuses others.
        if names is not None and NamedTuple not in getattr(kind, "__orig_bases__", ()):
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


class _Sent:
    """The attributes of a class as they were sent."""

    __slots__ = ("attributes", "set_state", "slot_state", "tokens")

    def __init__(self, set_state: Callable[[type, Any], Any], attributes: dict[str, Any], slot_state: Any) -> None:
        self.set_state = set_state
        self.attributes = attributes
        self.slot_state = slot_state
        self.tokens: dict[str, Any] = {name: token_of(value) for name, value in attributes.items()}

    def is_like(self, other: _Sent) -> bool:
        return None not in self.tokens.values() and self.tokens == other.tokens


class _Record:
    """A class from elsewhere, and how it was sent last."""

    __slots__ = ("_kind", "sent")

    def __init__(self, kind: type) -> None:
        self._kind = ref(kind)
        self.sent: _Sent | None = None

    def apply(self, sent: _Sent) -> None:
        """Makes the class what was sent. Only what was sent otherwise before is replaced: a task may have set the
        rest."""
        kind, before = self._kind(), {} if self.sent is None else self.sent.tokens
        if kind is None:
            return
        for name in before.keys() - sent.tokens.keys():
            try:
                delattr(kind, name)
            except (AttributeError, TypeError):
                # Deleted by a task, or set by the metaclass.
                continue
        changed = {
            name: value
            for name, value in sent.attributes.items()
            if name not in before or sent.tokens[name] is None or sent.tokens[name] != before[name]
        }
        sent.set_state(kind, (changed, sent.slot_state))
        self.sent = sent


def set_class_state(kind: type, state: tuple[Callable[[type, Any], Any], dict[str, Any], Any]) -> None:
    """Gives a class from elsewhere its attributes, or those that have changed since it came last."""
    if kind in _own:
        return
    record: _Record | None = vars(kind).get(_RECORD)
    if record is None:
        record = _Record(kind)
        type.__setattr__(kind, _RECORD, record)
    sent = _Sent(*state)
    if record.sent is not None and sent.is_like(record.sent):
        sent = record.sent
    else:
        record.apply(sent)
    note_brought(record, sent)
