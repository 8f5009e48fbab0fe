"""Warnings about things that a program still sets and Broadleaf no longer needs."""

from __future__ import annotations

import sys
import warnings

_said: set[str] = set()


def warn_once(message: str) -> None:
    """Warns once per process and message, attributed to the program's own line."""
    if message in _said:
        return
    _said.add(message)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "broadleaf":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, FutureWarning, stacklevel=level)
