"""What an engine keeps of the functions that it was sent, so that a call finds what an earlier one left: in a mutable
default argument, an attribute, a variable of a closure, a cache.

A function is kept under a key, which the sender makes of its content. Other content is another function, which starts
with what it brings. Functions that hold something that can be changed are also told apart by which object they are.
"""

from __future__ import annotations

import marshal
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from broadleaf.serialize import PROTOCOL
from broadleaf.serialize.functions.namespace import current_namespace
from broadleaf.serialize.functions.snapshot import is_constant, is_importable
from broadleaf.serialize.names_by_value import names_by_value

Function = Callable[..., Any]

# How many functions an engine keeps, and how many bytes the pickles of all of them have at most.
_MAX_FUNCTIONS = 512
_MAX_BYTES = 64 << 20
# A function is kept by the content of its default arguments and attributes up to this size.
_MAX_DEFAULTS_BYTES = 4096

_identities: WeakKeyDictionary[Any, bytes] = WeakKeyDictionary()
# By code, which is equal to other code of the same lines: file, what it is sent as, and a digest of that.
_sent_codes: WeakKeyDictionary[CodeType, tuple[str, bytes, bytes]] = WeakKeyDictionary()


def identity_of(obj: Any) -> bytes:
    """A name for an object, as long as it exists."""
    identity = _identities.get(obj)
    if identity is None:
        identity = _identities[obj] = os.urandom(8)
    return identity


def sent_code(code: CodeType) -> tuple[bytes, bytes]:
    """`code` as bytes that are always the same, and their digest. `marshal` alone writes the same code differently as
    the number of references to its constants changes.
    """
    known = _sent_codes.get(code)
    if known is None or known[0] != code.co_filename:
        from hashlib import blake2b

        data = marshal.dumps(code)
        known = _sent_codes[code] = (code.co_filename, data, blake2b(data, digest_size=16).digest())
    return known[1:]


def hash_bytes(*parts: Any) -> bytes:
    """A hash of these parts, which is the same within this process."""
    return hash(parts).to_bytes(8, "little", signed=True)


def function_key(function: FunctionType) -> bytes | None:
    """The key under which engines keep a function by itself, wherever it is sent; None if it has variables of an outer
    function, or default arguments or attributes that nothing is known of.
    """
    if function.__closure__:
        return None
    mutable = (function.__defaults__, function.__kwdefaults__, function.__dict__)
    identity, content = b"", b""
    if any(mutable):
        try:
            content = pickle.dumps(mutable, PROTOCOL)
        except Exception:
            return None
        if len(content) > _MAX_DEFAULTS_BYTES or names_by_value(content, content):
            return None
        if function.__kwdefaults__ or function.__dict__ or not is_constant(function.__defaults__):
            identity = identity_of(function)
    return sent_code(function.__code__)[1] + hash_bytes(function.__name__, function.__qualname__, content) + identity


def cache_key(cached: Any) -> bytes | None:
    """The same for a function under `lru_cache`."""
    function = cached.__wrapped__
    if is_importable(function):
        return identity_of(cached)
    key = function_key(function) if type(function) is FunctionType else None
    return None if key is None else identity_of(cached) + key


class _Kept:
    """Functions by key, the latest ones."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, tuple[Any, Any, int]] = OrderedDict()
        self._bytes = 0

    def find(self, key: bytes) -> Any:
        """What is kept under `key` for this namespace, or None."""
        entry = self._entries.get(key)
        if entry is None or entry[1] is not current_namespace():
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def keep(self, key: bytes, value: Any, n_bytes: int = 0) -> None:
        """Keeps `value`, and gives up the oldest others if there are too many."""
        before = self._entries.pop(key, None)
        self._bytes += n_bytes - (0 if before is None else before[2])
        self._entries[key] = value, current_namespace(), n_bytes
        while len(self._entries) > 1 and (len(self._entries) > _MAX_FUNCTIONS or self._bytes > _MAX_BYTES):
            _, (_, _, oldest_bytes) = self._entries.popitem(last=False)
            self._bytes -= oldest_bytes

    def clear(self) -> None:
        """Forgets all of them."""
        self._entries.clear()
        self._bytes = 0


single: _Kept = _Kept()
"""Functions by themselves, wherever they were sent; see `function_key`."""
called: _Kept = _Kept()
"""Functions that were sent to be called, with all that they hold."""


def forget() -> None:
    """Forgets all functions, and what calls have left in them."""
    single.clear()
    called.clear()
