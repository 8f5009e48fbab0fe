"""What an error about something that cannot be pickled advises."""

from __future__ import annotations

import importlib.util
import sys
from types import CoroutineType, ModuleType
from typing import Any

from broadleaf.serialize import asked_for
from broadleaf.serialize.unfindable import shipped_modules, unfindable_modules


def advice_on(value: Any) -> str:
    """What to do if `value` cannot be pickled; empty if nothing is known."""
    if isinstance(value, CoroutineType):
        return "; await it first and send its value, or send its function"
    if asked_for.would_help(value):
        if importlib.util.find_spec("dill") is None:
            return "; with dill installed (pip install dill), client[:].use_dill() has dill send it"
        return "; client[:].use_dill() has dill send it"
    named = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    return advice_on_module(value.__name__ if isinstance(value, ModuleType) else getattr(named, "__module__", None))


def advice_on_module(name: Any) -> str:
    """What to do if something that the module defines cannot be pickled; empty unless it is an unfindable one."""
    if name not in unfindable_modules() or name in shipped_modules():
        return ""
    if getattr(sys.modules.get(name), "__file__", None) is None:
        return f"; module {name!r} has no file: put it into one, and client.ship_module({name!r}) sends that"
    return f"; client.ship_module({name!r}) sends the module as a file instead"
