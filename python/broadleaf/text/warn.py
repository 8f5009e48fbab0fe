"""Warnings that are said once, about the program's own line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable

_said: set[Hashable] = set()
# All are forgotten when there are more.
_MAX_SAID = 10_000


def warn_once(message: str, category: type[Warning] = FutureWarning, about: Hashable = None) -> None:
    """Warns once per process for what `about` names, by default the message; attributed to the program's own line."""
    about = message if about is None else about
    if about in _said:
        return
    if len(_said) >= _MAX_SAID:
        _said.clear()
    _said.add(about)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "broadleaf":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
