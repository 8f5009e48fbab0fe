"""How long a job may run, as people write it and as schedulers accept it."""

from __future__ import annotations

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def clock_time(walltime: str) -> str:
    """``"90s"``, ``"30m"``, ``"2h"`` and ``"1d"`` as hours, minutes and seconds; anything else unchanged."""
    number, unit = walltime[:-1], walltime[-1:]
    if unit not in _UNITS_S or not number.isdigit():
        return walltime
    total_s = int(number) * _UNITS_S[unit]
    return f"{total_s // 3600}:{total_s // 60 % 60:02}:{total_s % 60:02}"


def seconds(walltime: str) -> int:
    """The seconds of a walltime that `clock_time` gives as hours, minutes and seconds; 0 for another form."""
    parts = clock_time(walltime).split(":")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        return 0
    hours, minutes, rest = map(int, parts)
    return 3600 * hours + 60 * minutes + rest
