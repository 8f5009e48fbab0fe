"""Calls that an engine makes once, however often it is asked to."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# Numbers of the calls that this process has made.
_made: set[bytes] = set()


class Once:
    """Calls `function(*args)`, unless this process has made that call. One that raised was not made."""

    __slots__ = ("_args", "_function", "_number")

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...], number: bytes = b"") -> None:
        self._function = function
        self._args = args
        self._number = number or os.urandom(16)

    def __call__(self) -> None:
        if self._number not in _made:
            self._function(*self._args)
            _made.add(self._number)

    def __reduce__(self) -> tuple[Any, ...]:
        return Once, (self._function, self._args, self._number)
