"""Engines as written on the line of a magic."""

from __future__ import annotations

import ast
import re
from typing import Any

_SLICE = re.compile(r"\[?\s*(-?\d+)?\s*:\s*(-?\d+)?\s*(?::\s*(-?\d+)?\s*)?\]?")
_RANGE = re.compile(r"range\(\s*(-?\d+(?:\s*,\s*-?\d+){0,2})\s*\)")


def parse_targets(text: str, ids: list[int]) -> Any:
    """Targets of a view from `all`, `3`, `-1`, `0,2`, `[0, 2]`, `range(4)`, or a slice of the `ids` such as `::2`.

    Raises `ValueError`.
    """
    text = text.strip().strip("'\"")
    if text == "all":
        return "all"
    found = _SLICE.fullmatch(text)
    if found:
        return ids[slice(*(None if part is None else int(part) for part in found.groups()))]
    found = _RANGE.fullmatch(text)
    if found:
        return list(range(*(int(part) for part in found[1].split(","))))
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = None
    if isinstance(value, int) and not isinstance(value, bool):
        return ids[value] if value < 0 else value
    if isinstance(value, list | tuple | set) and all(isinstance(item, int) for item in value):
        return list(value)
    raise ValueError(f"{text!r} names no engines; write all, 3, 0,2, [0, 2], range(4), or a slice such as ::2")
