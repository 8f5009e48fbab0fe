"""What a pickle of a function was made from, and functions that are kept between calls."""

from __future__ import annotations

import marshal
import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from broadleaf.serialize import PROTOCOL
from broadleaf.serialize.namespace import current_namespace
from broadleaf.serialize.unfindable import is_not_by_name, modules_not_by_name, names_by_value

# What a function's pickle was made from, to tell at a later submission whether it is still valid.


_MISSING = object()
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented)})

# Whether code sets a variable of the function around it.
_rebinding: WeakKeyDictionary[CodeType, bool] = WeakKeyDictionary()


def is_importable(obj: Any) -> bool:
    """Whether its module and qualified name lead to `obj`, in a module that other processes can import and may use."""
    module_name = getattr(obj, "__module__", None)
    name = getattr(obj, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(name, str) or "<" in name:
        return False
    if module_name in ("__main__", "__mp_main__"):
        return False
    found: Any = sys.modules.get(module_name)
    if found is None or (getattr(found, "__spec__", None) is None and module_name != "builtins"):
        return False
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is obj and not is_not_by_name(module_name, modules_not_by_name())


def is_constant(value: Any) -> bool:
    """Whether `value` can only be replaced, never changed in place (functions count, because their contents are
    checked)."""
    kind = type(value)
    if kind in _ATOMS or kind is FunctionType:
        return True
    if kind is tuple or kind is frozenset:
        return all(map(is_constant, value))
    if kind is ModuleType:
        found = sys.modules.get(value.__name__) is value and getattr(value, "__spec__", None) is not None
        return found and not is_not_by_name(value.__name__, modules_not_by_name())
    if kind is BuiltinFunctionType or isinstance(value, type):
        return is_importable(value)
    return False


def is_package(value: Any) -> bool:
    """Whether `value` is a module that has submodules."""
    return type(value) is ModuleType and "__path__" in value.__dict__


class Snapshot:
    """The values that went into one pickle, and where they came from."""

    __slots__ = ("_cells", "_functions", "_globals", "_n_modules", "complete", "holds_state")

    def __init__(self) -> None:
        self.complete: bool = True
        """False once something went in that can change unseen."""
        self.holds_state: bool = False
        """Whether a function holds something itself that a call can change; globals are not its own."""
        self._functions: list[tuple[FunctionType, CodeType, Any]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._cells: list[tuple[CellType, Any]] = []
        # How many modules were loaded, if a function has a package, whose submodules go in as far as they are loaded.
        self._n_modules: int | None = None

    def add_function(self, function: FunctionType, names: tuple[str, ...]) -> None:
        """Records a function sent by value: its code, defaults, closure and the globals it refers to."""
        if function.__kwdefaults__ or function.__dict__ or not is_constant(function.__defaults__):
            self.complete, self.holds_state = False, True
        self._functions.append((function, function.__code__, function.__defaults__))
        known = function.__globals__
        for name in names:
            value = known.get(name, _MISSING)
            if value is not _MISSING and not is_constant(value):
                self.complete = False
            self._globals.append((known, name, value))
            self._note_package(value)
        if function.__closure__ and rebinds_outer_variables(function.__code__):
            self.complete, self.holds_state = False, True
        for cell in function.__closure__ or ():
            value = _contents(cell)
            if value is not _MISSING and not is_constant(value):
                self.complete, self.holds_state = False, True
            self._cells.append((cell, value))
            self._note_package(value)
        for value in function.__defaults__ or ():
            self._note_package(value)

    def _note_package(self, value: Any) -> None:
        if is_package(value):
            self._n_modules = len(sys.modules)

    @property
    def fixed(self) -> bool:
        """Whether only the function's own, unchanging parts went in."""
        own = not self._globals and not self._cells and self._n_modules is None
        return self.complete and own and len(self._functions) == 1

    def holds(self) -> bool:
        """Whether pickling again would give the same result."""
        return (
            self.complete
            and self._n_modules in (None, len(sys.modules))
            and all(f.__code__ is code and f.__defaults__ is defaults for f, code, defaults in self._functions)
            and all(known.get(name, _MISSING) is value for known, name, value in self._globals)
            and all(_contents(cell) is value for cell, value in self._cells)
        )


def rebinds_outer_variables(code: CodeType) -> bool:
    """Whether `code`, or code nested in it, sets a variable of the function around it, as `nonlocal` allows."""
    known = _rebinding.get(code)
    if known is None:
        import dis

        names = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_DEREF", "DELETE_DEREF")}
        nested = (constant for constant in code.co_consts if isinstance(constant, CodeType))
        known = _rebinding[code] = not names.isdisjoint(code.co_freevars) or any(
            rebinds_outer_variables(inner) and not set(inner.co_freevars).isdisjoint(code.co_freevars)
            for inner in nested
        )
    return known


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


# What an engine keeps of the functions that it was sent, so that a call finds what an earlier one left: in a mutable
# default argument, an attribute, a variable of a closure, a cache.
#
# A function is kept under a key, which the sender makes of its content. Other content is another function, which
# starts with what it brings. Functions that hold something that can be changed are also told apart by which object
# they are.


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


def forget_kept() -> None:
    """Forgets all functions, and what calls have left in them."""
    single.clear()
    called.clear()
