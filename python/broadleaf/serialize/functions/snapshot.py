"""What a function's pickle was made from, to tell at a later submission whether it is still valid."""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from broadleaf.serialize.unfindable import is_not_by_name, modules_not_by_name

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


class Snapshot:
    """The values that went into one pickle, and where they came from."""

    __slots__ = ("_cells", "_functions", "_globals", "complete", "holds_state")

    def __init__(self) -> None:
        self.complete: bool = True
        """False once something went in that can change unseen."""
        self.holds_state: bool = False
        """Whether a function holds something itself that a call can change; globals are not its own."""
        self._functions: list[tuple[FunctionType, CodeType, Any]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._cells: list[tuple[CellType, Any]] = []

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
        if function.__closure__ and rebinds_outer_variables(function.__code__):
            self.complete, self.holds_state = False, True
        for cell in function.__closure__ or ():
            value = _contents(cell)
            if value is not _MISSING and not is_constant(value):
                self.complete, self.holds_state = False, True
            self._cells.append((cell, value))

    @property
    def fixed(self) -> bool:
        """Whether only the function's own, unchanging parts went in."""
        return self.complete and not self._globals and not self._cells and len(self._functions) == 1

    def holds(self) -> bool:
        """Whether pickling again would give the same result."""
        return (
            self.complete
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
