"""What unfindable modules define, pickled by value: functions, classes, and the modules themselves.

Where the receiver has loaded a module of that name itself, as a client has that gets its own class back, the receiver's
is taken, as plain pickle would. So classes keep their identity, and a module's state is not overwritten.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from broadleaf.errors import SerializationError
from broadleaf.serialize.functions.classes import reduce_class
from broadleaf.serialize.unfindable import is_binary, is_not_by_name, modules_not_by_name, registered_by_value

DEFINED = (FunctionType, type, BuiltinFunctionType)
"""The types of what a module defines."""
# What says where a module came from; the receiver's importers would not find it there.
_OWN_TO_PROCESS = ("__builtins__", "__cached__", "__loader__", "__spec__")
_MISSING = object()


def reduce_unfindable(pickler: Any, obj: Any, unfindable: frozenset[str], shipped: frozenset[str]) -> Any:
    """How to pickle what an unfindable module defines, in the form of `__reduce__`; NotImplemented for anything else.

    It is pickled by name if its module was shipped. Plain pickle could not: it imports the packages that the name
    mentions, which need not exist here.

    Raises `SerializationError` if it has no value that could be sent, as in an extension module.
    """
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if module not in unfindable or not isinstance(name, str) or _named(module, name) is not obj:
        return NotImplemented
    if module in shipped:
        return _by_name, (module, name)
    if isinstance(obj, BuiltinFunctionType) or is_binary(module):
        raise _no_value(module, name)
    from cloudpickle import cloudpickle

    if isinstance(obj, type):
        reduced = reduce_class(obj, cloudpickle._dynamic_class_reduce(obj))
    else:
        reduced = pickler._dynamic_function_reduce(obj)
    make, arguments, state, *_, set_state = reduced
    return _named_or_made, (module, name, make, arguments), (module, name, set_state, state), None, None, _complete


def _no_value(module: str, name: str) -> SerializationError:
    why = f"{name!r} is compiled, and engines would not find its module {module!r}, which was loaded from a path"
    return SerializationError(f"{module}.{name}", why)


def _by_name(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            # In the words of pickle, which the advice on such errors knows.
            raise AttributeError(f"Can't get attribute {name!r} on {sys.modules[module]!r}")
        found = getattr(found, part)
    return found


def _named(module: str, name: str) -> Any:
    """What this process has under that name, if it has the module at all."""
    found: Any = sys.modules.get(module, _MISSING)
    for part in name.split("."):
        if found is _MISSING:
            break
        found = getattr(found, part, _MISSING)
    return found


def _named_or_made(module: str, name: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    found = _named(module, name)
    return make(*arguments) if found is _MISSING else found


def _complete(obj: Any, state: tuple[str, str, Callable[..., Any], Any]) -> None:
    module, name, set_state, own_state = state
    if _named(module, name) is not obj:
        set_state(obj, own_state)


def reduce_module(pickler: Any, module: ModuleType, unfindable: frozenset[str], shipped: frozenset[str]) -> Any:
    """How to pickle a module that travels by value, or whose file was sent, in the form of `__reduce__`; NotImplemented
    for any other.

    Entries that cannot be pickled are left out once a first attempt has failed.
    """
    name = module.__name__
    if sys.modules.get(name) is module and not is_not_by_name(name, modules_not_by_name()):
        return NotImplemented
    if name in shipped and name not in registered_by_value():
        return importlib.import_module, (name,)
    entries = {entry: value for entry, value in vars(module).items() if entry not in _OWN_TO_PROCESS}
    make = _module_or_made if name in unfindable else _made_module
    return make, (name,), pickler.without_faults(entries), None, None, _complete_module


def _module_or_made(name: str) -> ModuleType:
    return sys.modules.get(name) or _made_module(name)


def _made_module(name: str) -> ModuleType:
    import builtins

    made = ModuleType(name)
    made.__dict__["__builtins__"] = builtins
    return made


def _complete_module(module: ModuleType, state: tuple[dict[str, Any], dict[str, str]]) -> None:
    if sys.modules.get(module.__name__) is module:
        return
    entries, left_out = state
    module.__dict__.update(entries)
    if left_out and "__getattr__" not in entries:
        module.__dict__["__getattr__"] = _LeftOut(module.__name__, left_out)


class _LeftOut:
    """The `__getattr__` of a module from which something could not be sent: it says what, and why."""

    def __init__(self, module: str, reasons: dict[str, str]) -> None:
        self._module = module
        self._reasons = reasons

    def __call__(self, name: str) -> Any:
        text = f"module {self._module!r} has no attribute {name!r}"
        if name in self._reasons:
            text += f" here: your session's could not be sent ({self._reasons[name]})"
        raise AttributeError(text, name=name)
