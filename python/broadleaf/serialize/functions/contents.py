"""Whether two values have the same content, told from a short token of each."""

from __future__ import annotations

import io
import pickle
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from broadleaf.serialize import PROTOCOL

_ATOMS = frozenset({type(None), bool, int, str, bytes})
# Larger values have no token: to make it would take longer than to replace them.
_MAX_BYTES = 1 << 20
_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType)


class _TooLargeError(Exception):
    """The value is too large for a token."""


class _Counted(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > _MAX_BYTES:
            raise _TooLargeError
        return super().write(data)


class _ContentPickler(pickle.Pickler):
    """Pickles functions, classes and modules as numbers, and keeps them in `named`."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, PROTOCOL)
        self.named: list[Any] = []

    def reducer_override(self, obj: Any) -> Any:
        """How to pickle an object that is not of a basic type."""
        if obj is int or not isinstance(obj, _NAMED):
            return NotImplemented
        self.named.append(obj)
        return int, (len(self.named),)


def token_of(value: Any) -> Any:
    """A token of a value's content; None if it has none. Values with equal tokens are alike in this process.

    Functions, classes and modules are alike only if they are one object, which the token holds.
    """
    kind = type(value)
    if kind in _ATOMS or isinstance(value, _NAMED):
        return kind, value
    stream = _Counted()
    pickler = _ContentPickler(stream)
    try:
        pickler.dump(value)
    except Exception:
        return None
    data = stream.getvalue()
    return kind, len(data), hash(data), tuple(pickler.named)
