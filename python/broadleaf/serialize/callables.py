"""What cannot be called, and what was probably meant."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from types import CoroutineType
from typing import Any

from broadleaf.serialize.namespace import Reference
from broadleaf.serialize.values import PrePickled


def check_callable(function: Any) -> None:
    """Raises `TypeError` unless `function`, or what engines make of it, can be called."""
    if callable(function) or isinstance(function, Reference | PrePickled):
        return
    if type(function) is CoroutineType:
        name = function.__name__
        raise TypeError(
            f"{name}(...) is a coroutine, which cannot be sent: pass {name} itself, then its arguments, and the engine "
            "awaits it"
        )
    if isinstance(function, str):
        raise TypeError(
            f"{reprlib.repr(function)} is a str, not a function: use Reference({reprlib.repr(function)}) to call "
            "the function of that name on the engines, or execute() to run code"
        )
    raise TypeError(f"{_shown(function)} cannot be called: the function comes first, then its arguments")


def check_map(function: Any, sequences: Sequence[Any]) -> None:
    """Raises `TypeError` unless `function` can be called; the message says if it was swapped with a sequence."""
    swapped = next((sequence for sequence in sequences if callable(sequence)), None)
    if not callable(function) and swapped is not None and not isinstance(function, Reference | PrePickled):
        name = getattr(swapped, "__name__", None) or type(swapped).__name__
        raise TypeError(f"{_shown(function)} was passed before {name}: the first argument of a map is the function")
    check_callable(function)


def _shown(value: Any) -> str:
    return "None" if value is None else f"{reprlib.repr(value)} ({type(value).__name__})"
