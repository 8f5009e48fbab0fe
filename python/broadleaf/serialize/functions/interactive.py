"""Marking functions as if they were typed at the engine's prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def interactive(function: F) -> F:
    """Decorator: the function's globals are those of `__main__` here, and the engine's namespace there.

    Functions defined in a session or script behave like that without it.

    Args:
        function: A function of a module.

    Returns:
        A copy of the function; another callable itself.
    """
    if type(function) is FunctionType:
        made = FunctionType(
            function.__code__,
            sys.modules["__main__"].__dict__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        made.__kwdefaults__ = function.__kwdefaults__
        made.__dict__.update(function.__dict__)
        made.__annotations__ = function.__annotations__
        made.__doc__ = function.__doc__
        made.__qualname__ = function.__qualname__
        made.__module__ = "__main__"
        return made  # type: ignore[return-value]
    function.__module__ = "__main__"
    return function
