"""Warnings about what a program still says and Broadleaf no longer needs."""

from __future__ import annotations

import sys
import warnings

_said: set[str] = set()


def warn_once(message: str) -> None:
    """Warns the first time in this process that it is given this message, as from the program's own line."""
    if message in _said:
        return
    _said.add(message)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "broadleaf":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, FutureWarning, stacklevel=level)
