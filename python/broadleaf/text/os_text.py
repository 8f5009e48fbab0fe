"""Paths and variables of the operating system, which may be any bytes, as text that JSON can hold.

Python has surrogates where bytes are not UTF-8. JSON cannot hold those, but it can hold NUL, which is in no path and in
no variable.
"""

from __future__ import annotations

import re

_FIRST = 0xDC00


def to_json(text: str) -> str:
    """The text with a NUL and two hexadecimal digits for each byte that is not UTF-8."""
    return re.sub("[\udc80-\udcff]", lambda found: f"\0{ord(found[0]) - _FIRST:02x}", text)


def from_json(text: str) -> str:
    """What `to_json` was given."""
    return re.sub("\0([0-9a-f]{2})", lambda found: chr(_FIRST + int(found[1], 16)), text)
