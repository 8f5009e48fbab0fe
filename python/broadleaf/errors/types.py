"""Types that are both one of Broadleaf's errors and the type of what a task raised."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from types import GetSetDescriptorType, MemberDescriptorType, new_class
from typing import Any, TypeVar

from broadleaf.errors.display import without_display
from broadleaf.errors.unpickling import unpickled

E = TypeVar("E", bound=BaseException)

# Cached types; each takes about a kilobyte.
_KEPT_TYPES = 256
# Py_TPFLAGS_HEAPTYPE: a type made by a class statement, or by an extension in the same way.
_MADE_AT_RUN_TIME = 1 << 9

# While a result is awaited, raising these would be misleading: they would say that the wait was too short, that local
# source cannot be parsed, or, with all types made of them, that an iterator has ended; and `CancelledError` that the
# wait was cancelled.
_MISLEADING = frozenset({TimeoutError, SyntaxError, IndentationError, TabError})
# Types that `raise` must not raise even under their own name, as `CancelledError`: a future that holds one appears
# cancelled or broken.
_NOT_FOR_FUTURES = (StopIteration, StopAsyncIteration)


def _is_cancelled_error(kind: type[Any]) -> bool:
    """Whether it is a `CancelledError`. There is none before its module is imported, which takes as long as all other
    imports of this package."""
    futures = sys.modules.get("concurrent.futures")
    # Another thread may be importing it.
    return issubclass(kind, getattr(futures, "CancelledError", ()))


@functools.lru_cache(_KEPT_TYPES)
def joint_type(kind: type[Any], original_type: type[Any]) -> type[BaseException]:
    """A subclass of `kind` and of `original_type`; `kind` itself if there can be none, or if it would be misleading.

    Not for exceptions that are not an `Exception`: a task's `SystemExit` must not end the client.
    """
    if not issubclass(original_type, Exception):
        return kind
    if original_type in _MISLEADING or issubclass(original_type, _NOT_FOR_FUTURES):
        return kind
    if _is_cancelled_error(original_type):
        return kind
    if getattr(original_type, "_joins_no_remote_error", False):
        # It would refer to a task or to the connection of this client.
        return kind
    names = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "_kind": kind,
        "_original_type": original_type,
    }
    try:
        return new_class(kind.__name__, (kind, original_type), {}, lambda body: body.update(names))
    except Exception:
        # A final type, a layout that cannot be combined, or a metaclass that objects.
        return kind


def joint_error(error: E, original: BaseException, original_type: type[BaseException]) -> E:
    """`error` as an instance of `original_type` as well, with the attributes of `original`; `error` itself if that is
    impossible.
    """
    own: Any = type(error)
    other: Any = original_type
    kind = joint_type(own, other)
    if kind is own:
        return error
    try:
        made: Any = blank(kind, original.args, group_of(original))
        set_fields(made, fields_of(original))
        made.__dict__.update((name, value) for name, value in vars(original).items() if name != "__notes__")
        made.__dict__.update(vars(error))
        # The other type may define our names differently.
        whole = all(getattr(made, name) is value for name, value in vars(error).items())
    except Exception:
        return error
    return made if whole else error


def common_type(types: Iterable[type[BaseException]]) -> type[BaseException] | None:
    """The most specific common base class of `types`, if it is more specific than `Exception`; otherwise None."""
    first, *others = dict.fromkeys(types)
    for candidate in first.__mro__:
        if candidate is Exception or candidate is BaseException:
            return None
        if issubclass(candidate, Exception) and all(issubclass(other, candidate) for other in others):
            return candidate
    return None


def can_be_raised(original: BaseException | None) -> bool:
    """Whether a client may raise a task's exception unchanged."""
    if not isinstance(original, Exception) or isinstance(original, _NOT_FOR_FUTURES):
        return False
    return not _is_cancelled_error(type(original))


Group = tuple[str, list[Any]]
"""Message and members of an exception group."""


def group_of(error: BaseException) -> Group | None:
    """Message and members of `error`; None if it is no group."""
    return (error.message, list(error.exceptions)) if isinstance(error, BaseExceptionGroup) else None


def blank(kind: type[BaseException], args: tuple[Any, ...], group: Group | None = None) -> BaseException:
    """An exception of `kind` with these `args`, made without running any of the user's code. `group` is what a group is
    made of.

    Few exceptions can be made from their `args`, and whatever their `__init__` does has been done already.
    """
    base: Any = kind
    while base.__flags__ & _MADE_AT_RUN_TIME:
        base = base.__base__
    error: BaseException = base.__new__(kind, *(args if group is None else group))
    BaseException.__setattr__(error, "args", args)
    return error


def fields_of(error: BaseException) -> dict[str, Any]:
    """What `error` stores outside its `__dict__`, by name: `errno` of an `OSError`, and slots."""
    kind: Any = type(error)
    fields: dict[str, Any] = {}
    for name, field in _fields(kind):
        try:
            value = field.__get__(error)
        except AttributeError:
            # Not set.
            continue
        # Python's own types show an unset field as None, and would show a field that is set to None as "None".
        if value is not None or field.__objclass__.__flags__ & _MADE_AT_RUN_TIME:
            fields[name] = value
    return fields


def set_fields(error: BaseException, fields: dict[str, Any]) -> None:
    """Sets what `fields_of` returned, as far as possible."""
    kind: Any = type(error)
    for name, field in _fields(kind):
        if name in fields:
            try:
                field.__set__(error, fields[name])
            except (AttributeError, TypeError):
                # Read-only: derived from the `args`.
                continue


@functools.lru_cache(_KEPT_TYPES)
def _fields(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, field)
        for base in kind.__mro__
        if base is not BaseException and base is not object
        for name, field in vars(base).items()
        if isinstance(field, MemberDescriptorType | GetSetDescriptorType) and name not in ("__dict__", "__weakref__")
    )


def copy_of(error: BaseException) -> BaseException:
    """Another exception like `error`, without its traceback, context and notes."""
    made = blank(type(error), error.args, group_of(error))
    set_fields(made, fields_of(error))
    made.__dict__.update((name, value) for name, value in vars(error).items() if name != "__notes__")
    set_cause(made, error.__cause__)
    BaseException.__setattr__(made, "__suppress_context__", error.__suppress_context__)
    return made


def set_cause(error: BaseException, cause: BaseException | None) -> None:
    """Sets the `__cause__`, even if the exception has its own `__setattr__`."""
    BaseException.__setattr__(error, "__cause__", cause)


def pickles_in_its_own_way(error: BaseException) -> bool:
    """Whether its type defines how it is pickled. Python's default calls `__init__` with the `args`, which fails or has
    another meaning if `__init__` takes other arguments than it passes on.
    """
    home = getattr(type(error).__reduce__, "__objclass__", None)
    return type(error).__reduce_ex__ is not object.__reduce_ex__ or home is None or home.__module__ != "builtins"


class ExceptionParts:
    """Pickles as an exception that is rebuilt from its parts, without calling its `__init__`.

    In its `args`, `replace` substitutes something that can be sent for what cannot; attributes that cannot be sent are
    omitted. `member` makes what is sent for each exception of a group.
    """

    def __init__(
        self,
        error: BaseException,
        replace: Callable[[Any], Any] | None = None,
        member: Callable[[BaseException], Any] | None = None,
    ) -> None:
        args: tuple[Any, ...] | None = error.args
        fields, attributes, group = fields_of(error), without_display(vars(error)), group_of(error)
        if group is not None:
            # Derived from what the group is made of.
            fields = {name: value for name, value in fields.items() if name not in ("message", "exceptions")}
            if args == group:
                args = None
            if member is not None:
                group = group[0], [member(one) for one in group[1]]
        if replace is not None:
            args = None if args is None else tuple(map(replace, args))
            fields = {name: value for name, value in fields.items() if replace(value) is value}
            attributes = {name: value for name, value in attributes.items() if replace(value) is value}
        self._parts = type(error), args, group, fields, attributes

    def __reduce__(self) -> tuple[Any, ...]:
        return _put_together, self._parts


def _put_together(
    kind: type[BaseException],
    args: tuple[Any, ...] | None,
    group: Group | None,
    fields: dict[str, Any],
    attributes: dict[str, Any],
) -> BaseException:
    error = blank(kind, (group or ()) if args is None else args, group)
    set_fields(error, fields)
    error.__dict__.update(attributes)
    return error


def load_exception(data: bytes | None) -> BaseException | None:
    """The exception pickled in `data`, None if it cannot be loaded."""
    if data is None:
        return None
    try:
        loaded = unpickled(data)
    except (Exception, SystemExit, GeneratorExit):
        return None
    return loaded if isinstance(loaded, BaseException) else None
