"""Text for people: durations, sizes and numbers; the operating system's text in JSON; warnings that are said once."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Hashable

# Durations, sizes and numbers as people read them.


_DECIMAL = ("kB", "MB", "GB", "TB", "PB")
_SIZE = r"(?i)(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?"
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# Related units to use if a figure has too many digits, each with its size in the previous unit.
_LADDERS = (
    (("ns", 1), ("us", 1000), ("ms", 1000), ("s", 1000)),
    (("bytes", 1), ("kB", 1000), ("MB", 1000), ("GB", 1000)),
    (("B/s", 1), ("kB/s", 1000), ("MB/s", 1000), ("GB/s", 1000)),
)


def duration(seconds: float) -> str:
    """A duration in a suitable unit, and from a minute on in the two largest: `226 ms`, `5 min`, `3 d 4 h`.

    Below a minute it has three digits. For an age, where fractions of a second do not matter, round `seconds` first.
    """
    if seconds <= 0:
        return "0 s"
    if seconds < 59.95:
        value, unit = seconds * 1e9, "ns"
        for larger in ("us", "ms", "s"):
            if value < 999.5:
                break
            value, unit = value / 1000, larger
        return f"{value:.3g} {unit}"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest_s, "s"))
    first = next(index for index, (amount, _) in enumerate(parts) if amount)
    return " ".join(f"{amount} {unit}" for amount, unit in parts[first : first + 2] if amount)


def size(n_bytes: float) -> str:
    """Bytes in the decimal unit that needs at most three digits: `64 MB`."""
    value, unit = float(n_bytes), "B"
    for larger in _DECIMAL:
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"


def parse_size(text: str) -> int:
    """Bytes from `64000000`, `64MB`, `64 MiB` or `1.5G`. Raises `ValueError`."""
    found = re.fullmatch(_SIZE, text.strip())
    if found is None or (found[3] and not found[2]):
        raise ValueError(f"{text!r} is not a size such as 64000000, 64MB or 64MiB")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2].lower()])


def number(value: float) -> str:
    """Three digits, or all those before the point, with thousands separators."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def readable_unit(value: float, unit: str) -> tuple[float, str]:
    """The factor for figures in `unit` that gives `value` few digits, and the resulting unit. Keeps `unit` if there is
    no related one.
    """
    for ladder in _LADDERS:
        names = [name for name, _ in ladder]
        if unit not in names or value <= 0:
            continue
        index, factor = names.index(unit), 1.0
        while value * factor >= 999.5 and index + 1 < len(ladder):
            index += 1
            factor /= ladder[index][1]
        while value * factor < 0.9995 and index > 0:
            factor *= ladder[index][1]
            index -= 1
        return factor, names[index]
    return 1.0, unit


def count(n: int, noun: str) -> str:
    """`1 engine`, `2 engines`, `12,000 engines`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


# Paths and variables of the operating system, which may be any bytes, as text that JSON can hold.
#
# Python has surrogates where bytes are not UTF-8. JSON cannot hold those, but it can hold NUL, which is in no path
# and in no variable.


_FIRST = 0xDC00


def os_text_to_json(text: str) -> str:
    """The text with a NUL and two hexadecimal digits for each byte that is not UTF-8."""
    return re.sub("[\udc80-\udcff]", lambda found: f"\0{ord(found[0]) - _FIRST:02x}", text)


def os_text_from_json(text: str) -> str:
    """What `to_json` was given."""
    return re.sub("\0([0-9a-f]{2})", lambda found: chr(_FIRST + int(found[1], 16)), text)


# Warnings that are said once, about the program's own line.


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
