"""Durations, sizes and lists as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable


def listed(words: Iterable[str], max_items: int = 3) -> str:
    """Words as a list in a sentence; if there are many, the last ones are counted."""
    items = list(words)
    if len(items) > max_items:
        items = [*items[: max_items - 1], f"{len(items) - max_items + 1} more"]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else "none"


def change(ratio: float) -> str:
    """A ratio of times as a change: `-12.3 %`; a time without end, or one that cannot be, in words."""
    if ratio != ratio:
        return "unknown"
    return f"{100 * (ratio - 1):+.1f} %" if ratio < 1e6 else "unbounded"


def log_change(log_ratio: float) -> str:
    """The same of the logarithm of a ratio."""
    return change(math.exp(log_ratio))


def duration(seconds: float) -> str:
    """A duration in a suitable unit, and from a minute on in the two largest: `226 ms`, `5 min`, `3 d 4 h`.

    Below a minute it has three digits.
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
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
